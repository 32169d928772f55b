"""A KV cache organised as a radix tree of token content, with an optional host memory tier."""

from __future__ import annotations

import heapq

from infercast.serve.cache.blocks import KvShape
from infercast.serve.workload.request import Request

# A request's content without tokens: named pieces in sequence. Two tokens are the same if they are in a piece of the
# same name that begins at the same position. So a prompt of 100,000 tokens is a few pieces, and divergence is found
# piece by piece.

Piece = tuple[object, int, int]  # A name, and the tokens from one position to another
Content = tuple[Piece, ...]  # All tokens of a request, prompt and answer
Mark = tuple[object, ...]  # What distinguishes a page from others after the same prefix


def content_of(request: Request, own: object) -> Content:
    """The content of a request by segment names: ``own`` if unshared; answers to shared prompts keep their names."""
    end = request.num_input + request.num_output
    if not request.prefix:
        return ((own, 0, end),)
    pieces: list[Piece] = []
    start = 0
    for segment in request.prefix:
        pieces.append((segment.content, start, start + segment.num_tokens))
        start += segment.num_tokens
    is_shared = start == request.num_input and request.answer is not None
    pieces.append((request.answer if is_shared else own, start, end))
    return tuple(pieces)


def in_pairs(content: Content) -> Content:
    """The same where a token is known by the next one too: one less, and one in two pieces where two meet."""
    pieces: list[Piece] = []
    for number, (name, start, end) in enumerate(content, start=1):
        if end - 1 > start:
            pieces.append((name, start, end - 1))
        if number < len(content):
            pieces.append(((name, content[number][0]), end - 1, end))
    return tuple(pieces)


def same_until(one: Content, here: int, other: Content, there: int, limit: int) -> int:
    """The first position before ``limit`` where contents that agree up to pieces ``here`` and ``there`` differ."""
    if one is other:
        return limit
    position = max(one[here][1], other[there][1])
    while True:
        name, start, end = one[here]
        other_name, other_start, other_end = other[there]
        if start != other_start or name != other_name:
            return position
        if end != other_end:
            position = end if end < other_end else other_end
            return position if position < limit else limit
        if end >= limit:
            return limit
        position = end
        here += 1
        there += 1


def piece_at(content: Content, number: int, position: int) -> int:
    """Index of the piece that contains a position, searching from ``number`` on."""
    last = len(content) - 1
    while number < last and content[number][2] <= position:
        number += 1
    return number


def mark_of(content: Content, number: int, position: int, page: int) -> Mark:
    """The key of the page at a position, which is in piece ``number``."""
    name, start, end = content[number]
    if end - position >= page:
        return (name, start)
    mark: list[object] = [name, start, end]
    stop = position + page
    while end < stop:
        number += 1
        name, start, end = content[number]
        mark += (name, start, end if end < stop else 0)
    return tuple(mark)


# The radix tree of computed tokens. A node stands for pages that follow those of its parent, and is split where a
# request diverges. Nodes on a running request's path are locked; of the others, leaves are evicted as a whole, least
# recently used first.


class Node:
    """Pages ``start`` to ``end`` of a content, after those of the parent."""

    __slots__ = (
        "children", "content", "end", "hits", "is_queued", "is_queued_there", "locks", "mark", "on_gpu", "on_host",
        "parent", "piece", "start", "time",
    )  # fmt: skip

    def __init__(self, parent: Node | None, mark: Mark, content: Content, piece: int, start: int, end: int) -> None:
        self.parent, self.mark = parent, mark  # Its key among the parent's children
        self.content, self.piece = content, piece  # Tokens of some request, and the piece with the node's first token
        self.start, self.end = start, end
        self.children: dict[Mark, Node] = {}
        self.locks = 0  # Running requests on this path
        self.time = 0  # Last access
        self.is_queued = False  # True if it is in the eviction queue
        self.on_gpu, self.on_host = True, False
        """On every path, nodes on the GPU come before all others, and so do those with a host copy."""
        self.hits = 0  # With host pages: insertions at or below this node
        self.is_queued_there = False  # True if it is in the host's eviction queue

    @property
    def has_children_on_gpu(self) -> bool:
        return any(child.on_gpu for child in self.children.values())


Met = tuple[Node, int]  # Where a walk along a content ends: the last matching node, and the piece with the next token


class RadixTree:
    def __init__(self, page: int) -> None:
        self.page = page
        self.root = Node(None, (), (), 0, 0, 0)
        self.root.locks = 1
        self.root.on_host = True
        self.clock = 0

    def walk(self, content: Content, end: int, node: Node | None = None, piece: int = 0) -> Met:
        """Follow a content up to page ``end``, marking nodes as accessed; one that matches in part is split."""
        page, last, node = self.page, len(content) - 1, node or self.root
        self.touch(node)
        position, time = node.end, self.clock
        while position < end:
            if piece < last:
                piece = piece_at(content, piece, position * page)
            mark = content[piece][:2] if page == 1 else mark_of(content, piece, position * page, page)
            child = node.children.get(mark)
            if child is None:
                break
            child.time = time
            limit = child.end if child.end < end else end
            position = same_until(child.content, child.piece, content, piece, limit * page) // page
            if position < child.end:
                node = self._cut(child, position, time + 1)
                break
            node = child
        return node, piece if piece == last else piece_at(content, piece, node.end * page)

    def touch(self, node: Node) -> None:
        self.clock = time = self.clock + 2
        above: Node | None = node
        while above is not None:
            above.time = time
            above = above.parent

    def add(self, met: Met, content: Content, end: int) -> Node:
        before, piece = met
        mark = content[piece][:2] if self.page == 1 else mark_of(content, piece, before.end * self.page, self.page)
        before.children[mark] = node = Node(before, mark, content, piece, before.end, end)
        node.time = self.clock + 1
        return node

    def remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.mark]

    def _cut(self, node: Node, position: int, time: int) -> Node:
        """Split a node; returns the first part, which is new."""
        assert node.parent is not None
        content, page = node.content, self.page
        first = Node(node.parent, node.mark, content, node.piece, node.start, position)
        first.locks, first.time = node.locks, time
        first.on_gpu, first.on_host, first.hits = node.on_gpu, node.on_host, node.hits
        node.parent.children[node.mark] = first
        node.piece = piece = piece_at(content, node.piece, position * page)
        node.start, node.parent = position, first
        node.mark = content[piece][:2] if page == 1 else mark_of(content, piece, position * page, page)
        first.children[node.mark] = node
        return first


# Host pages, a second cache tier. Insertions are copied to the host after enough accesses, parents before children.
# Pages with a host copy survive eviction from the GPU: the node stays, and is loaded when a request begins with it. The
# host evicts leaves that are not on the GPU, least recently used first. Rules as in SGLang's write_through
# (mem_cache/hiradix_cache.py, later unified_radix_cache.py); a copy to the host counts as done when it begins.


class HostPages:
    """``num_blocks`` pages in host memory; pages are copied there at their ``copied_at``-th insertion."""

    def __init__(self, num_blocks: int, copied_at: int = 1) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.peak = 0  # Peak number of pages in use
        self.num_refused = 0  # Times a copy did not fit
        self.loaded: list[int] = []  # Pages of each copy to the GPU since the last step ...
        self.stored: list[int] = []  # ... and of each copy to the host.
        self.found: dict[int, int] = {}  # Tokens each request found here at its first start, if any
        self.new_loads: list[int] = []  # Requests in the step just planned with pages to load
        self.num_queried = self.num_hit = 0  # Prompt tokens missing on the GPU at starts, and those of them found here
        self.copies_paths = self.counts_once = False  # Rules of some releases (`PrefillRules`)
        self._copied_at = copied_at
        self._queue: list[tuple[int, int, Node]] = []
        self._num_queued = 0

    def note_start(self, index: int, missing: int, found: int, *, is_first: bool) -> None:
        """A request starts with ``found`` tokens from here, and others that are ``missing``."""
        self.num_queried += missing + found
        self.num_hit += found
        if found and is_first:
            self.found[index] = found
            self.new_loads.append(index)

    def meet(self, node: Node, tree: RadixTree, known: int) -> None:
        """Count an insertion at a node and those above it after page ``known``; pages with enough are copied, parents
        first.
        """
        path: list[Node] = []
        while node.end > known:
            assert node.parent is not None
            path.append(node)
            node = node.parent
        for each in reversed(path):
            each.hits += 1
            if not each.on_host and each.hits >= self._copied_at:
                self._copy(each, tree)

    def _copy(self, node: Node, tree: RadixTree) -> bool:
        """Copy a node if its parent is here, or gets here; returns False if there is no room."""
        assert node.parent is not None
        if not node.parent.on_host and not (self.copies_paths and self._copy(node.parent, tree)):
            return False
        count = node.end - node.start
        if self.num_free < count:
            self._forget(count - self.num_free if self.copies_paths else count, tree)
        if self.num_free < count:
            self.num_refused += 1
            return False
        self.num_free -= count
        self.peak = max(self.peak, self.num_blocks - self.num_free)
        node.on_host = True
        self.stored.append(count)
        return True

    def enqueue(self, node: Node) -> None:
        if not (node.is_queued_there or node.children):
            node.is_queued_there = True
            self._num_queued += 1
            heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _forget(self, count: int, tree: RadixTree) -> None:
        queue = self._queue
        while count > 0 and queue:
            time, _, node = heapq.heappop(queue)
            node.is_queued_there = False
            if node.locks or node.children or node.on_gpu:
                continue
            if node.time != time:
                self.enqueue(node)
                continue
            self.num_free += node.end - node.start
            count -= node.end - node.start
            tree.remove(node)
            parent = node.parent
            assert parent is not None
            if parent.parent is not None and not parent.on_gpu and not parent.locks:
                self.enqueue(parent)


# A sequence owns what it computes until the tree takes it over: a prompt when its result arrives, a chunk when the next
# one is planned, an answer when it is complete. Pages of the tree that no running sequence uses stay until room is
# needed. They are evicted node by node, so usually more than were requested.


class Lease:
    __slots__ = ("alone_from", "content", "node", "num_inserted", "num_pages", "piece", "prompt_pages")

    def __init__(self, content: Content, root: Node, alone_from: int, prompt_pages: int) -> None:
        self.content = content
        self.node = root
        self.piece = 0  # The piece of its content with the first token after the node
        self.num_pages = 0  # All pages it uses, including those of the tree
        self.num_inserted = 0  # Pages up to which it was inserted before
        self.alone_from = alone_from
        """The page from which on the tree cannot match: its own content, unless it was inserted earlier."""
        self.prompt_pages = prompt_pages  # Where its answer begins, if nodes are split there


class RadixCache:
    """``num_blocks`` pages on the GPU; without ``caching`` there are no prefix hits."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool = True, host: HostPages | None = None) -> None:
        self.num_blocks, self.shape, self.caching, self.host = num_blocks, shape, caching, host
        self.evicts_missing = self.parts_answers = False  # Rules of some releases (`PrefillRules`)
        self.paired = 0  # 1 if tokens are known by the next one too, so the last one computed is not cached (drafts)
        self.beyond = 0  # Tokens that may be computed and cached after the end of an answer (drafts)
        self.page = shape.block_size
        self.num_groups = 1
        self.num_blank = num_blocks  # Free pages without cached content
        self.num_evictable = 0  # Pages of the tree that no running sequence uses
        self.tree = RadixTree(self.page)
        self._queue: list[tuple[int, int, Node]] = []
        self._num_queued = 0
        self._arriving: list[Node] = []  # Nodes being loaded from host memory

    @property
    def num_free(self) -> int:
        return self.num_blank + self.num_evictable

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_blank - self.num_evictable

    def lease(self, content: Content, own: object = None, num_input: int = 0) -> Lease:
        """An empty lease for a content. The piece named ``own`` is not shared."""
        if self.beyond:
            name, start, end = content[-1]
            content = (*content[:-1], (name, start, end + self.beyond))
        content = in_pairs(content) if self.paired else content
        name, start, end = content[-1]
        prompt_pages = (num_input - self.paired) // self.page if self.parts_answers else 0
        return Lease(content, self.tree.root, (start if name is own else end) // self.page, prompt_pages)

    def match(self, lease: Lease, num_tokens: int) -> int:
        """Tokens of the longest cached prefix, up to ``num_tokens``; not locked yet."""
        if not (self.caching and lease.alone_from):
            return 0
        lease.node, lease.piece = self.tree.walk(lease.content, (num_tokens - self.paired) // self.page)
        return lease.node.end * self.page

    def match_to_load(self, lease: Lease, num_tokens: int) -> int:
        """The same as a prompt starts with it: few tokens that are only in host memory are left there."""
        found = self.match(lease, num_tokens)
        least_loaded = 10  # Tokens: fewer are not worth a copy
        if self.host is None or not 0 < self.num_to_load(lease) * self.page < least_loaded:
            return found
        lease.node = self._on_gpu(lease.node)
        lease.piece = piece_at(lease.content, 0, lease.node.end * self.page)
        return lease.node.end * self.page

    def _on_gpu(self, node: Node) -> Node:
        """The last node on the GPU, up to this one."""
        while not node.on_gpu:
            assert node.parent is not None
            node = node.parent
        return node

    def num_to_load(self, lease: Lease) -> int:
        """Pages of the match that are only in host memory."""
        return lease.node.end - self._on_gpu(lease.node).end

    def load(self, lease: Lease) -> None:
        """Load a sequence's match to the GPU, where it is already locked."""
        assert self.host is not None
        count, node = self.num_to_load(lease), lease.node
        if self.num_blank < count:
            self._forget((count - self.num_blank if self.host.copies_paths else count) * self.page)
        self.take(count)
        while not node.on_gpu:
            node.on_gpu = True
            assert node.parent is not None
            node = node.parent
        self._lock(lease.node, self.tree.root)
        self._arriving.append(lease.node)
        self.host.loaded.append(count)

    def settle(self) -> None:
        """Loads have arrived: only their holders keep them locked."""
        assert self.host is not None
        self.host.new_loads = []
        for node in self._arriving:
            self._unlock(node)
        self._arriving.clear()

    def hold(self, lease: Lease) -> None:
        self._lock(lease.node, self.tree.root)
        lease.num_pages = lease.node.end

    def make_room(self, num_tokens: int) -> None:
        """If there are too few blank pages for these tokens, evict nodes for the missing ones, or all of them."""
        blank = self.num_blank * self.page
        if blank < num_tokens:
            self._forget(num_tokens - blank if self.evicts_missing else num_tokens)

    def clear(self) -> None:
        """Forget everything that no sequence uses."""
        self._forget(self.num_blocks * self.page)

    def take(self, count: int) -> None:
        self.num_blank -= count

    def take_for_decoding(self, count: int, num_sequences: int) -> None:
        """Allocate pages that some sequences of a step begin; with pages, the engine evicts as if all of them did."""
        if self.num_blank < num_sequences:
            self.make_room(count * self.page)
            if self.page > 1:
                self.make_room(num_sequences * self.page)
        self.num_blank -= count

    def keep(self, lease: Lease, num_tokens: int, *, is_part: bool = False) -> None:
        """Insert what a running sequence has computed; what is there is shared."""
        if not self.caching:
            return
        before = lease.node
        self._insert(lease, (num_tokens - self.paired) // self.page, is_part=is_part)
        self._lock(lease.node, before)

    def finish(self, lease: Lease, num_tokens: int) -> None:
        """Insert a finished sequence, with this many computed tokens, and release it."""
        if not self.caching:
            self.drop(lease)
            return
        before = lease.node
        self._insert(lease, (num_tokens - self.paired) // self.page)
        self.num_blank += lease.num_pages - lease.node.end
        if lease.node is not before:
            self._enqueue(lease.node)
        self._unlock(before)
        lease.node, lease.num_pages = self.tree.root, 0

    def drop(self, lease: Lease) -> None:
        """Release a sequence without inserting anything more."""
        self.num_blank += lease.num_pages - lease.node.end
        self._unlock(lease.node)
        lease.node, lease.num_pages, lease.piece, lease.num_inserted = self.tree.root, 0, 0, 0
        lease.alone_from = lease.content[-1][2]  # it may match its own tokens

    def _insert(self, lease: Lease, last: int, *, is_part: bool = False) -> None:
        """Insert a sequence's pages up to ``last``; duplicates become blank."""
        first, met = lease.node.end, (lease.node, lease.piece)
        if first < lease.alone_from:
            met = self.tree.walk(lease.content, last, *met)
        else:
            self.tree.touch(lease.node)
        found = met[0].end
        self.num_blank += found - first
        if self.host is not None:
            self._compute_again(met[0], first)
        if found < last:
            self.num_evictable += last - found
            lease.node, lease.piece = self.tree.add(met, lease.content, last), met[1]
            if lease.piece < len(lease.content) - 1:
                lease.piece = piece_at(lease.content, lease.piece, last * self.page)
        else:
            lease.node, lease.piece = met
        if self.host is not None and (self.host.counts_once or not is_part):
            self.host.meet(lease.node, self.tree, lease.num_inserted)
            lease.num_inserted = last if self.host.counts_once else 0
        if 0 < lease.prompt_pages < last:
            self.tree.walk(lease.content, lease.prompt_pages)

    def _compute_again(self, node: Node, first: int) -> None:
        """A sequence has recomputed pages, from ``first`` on, that only host memory had: they are on the GPU too."""
        while node.end > first:
            if not node.on_gpu:
                node.on_gpu = True
                self.num_blank -= node.end - node.start
                self.num_evictable += node.end - node.start
            assert node.parent is not None
            node = node.parent

    def _lock(self, node: Node, above: Node) -> None:
        """Lock the nodes from one up to an ancestor, exclusive."""
        while node is not above:
            if node.locks == 0 and node.on_gpu:
                self.num_evictable -= node.end - node.start
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                if node.on_gpu:
                    self.num_evictable += node.end - node.start
                    self._enqueue(node)
                elif self.host is not None:
                    self.host.enqueue(node)
            node = node.parent

    def _enqueue(self, node: Node) -> None:
        """Let a node be evicted, unless others on the GPU follow it."""
        if not (node.is_queued or (node.children and node.has_children_on_gpu)):
            node.is_queued = True
            self._num_queued += 1
            heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _forget(self, num_tokens: int) -> None:
        queue, missing = self._queue, -(-num_tokens // self.page)
        while missing > 0 and queue:
            time, _, node = heapq.heappop(queue)
            node.is_queued = False
            if node.locks or not node.on_gpu or (node.children and node.has_children_on_gpu):
                continue
            if node.time != time:
                self._enqueue(node)
                continue
            count = node.end - node.start
            missing -= count
            self.num_blank += count
            self.num_evictable -= count
            node.on_gpu = False
            if self.host is not None and node.on_host:
                self.host.enqueue(node)
            else:
                self.tree.remove(node)
            parent = node.parent
            assert parent is not None
            if parent.locks == 0:
                self._enqueue(parent)
