"""A KV cache's host memory tier as seen by a scheduler: lookups, and copies issued with each step.

A request's blocks are looked up after those on the GPU. If its prefix is in the tier, it allocates blocks and waits for
the copy; others may overtake it, as they may a request that waits for another one's copy. Blocks are stored with the
step that computes them. Rules as in vLLM 0.25, 0.32 and 0.33 (kv_connector/v1/offloading/scheduler.py,
v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from infercast.serve.cache.blocks import BlockAllocation, KvShape
from infercast.serve.cache.tiers import PLACES, HostTier, Offload, Use
from infercast.serve.scheduler.base import Plan, Sequence
from infercast.serve.scheduler.cohort import DecodeBatch


class KvTransfer:
    """One copy of a sequence's blocks."""

    __slots__ = ("end", "is_store", "keys", "num_bytes", "num_pieces", "sequence")

    def __init__(self, sequence: Sequence, keys: list[int], num_bytes: int, num_pieces: int, *, is_store: bool) -> None:
        self.sequence, self.keys, self.is_store = sequence, keys, is_store
        self.num_bytes, self.num_pieces = num_bytes, num_pieces
        self.end = 0.0  # When the copy completes


class _Books:
    """Per request: block keys, how many were submitted for storing, and copies in flight."""

    __slots__ = ("keys", "moves", "stored", "use")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.use = Use()
        self.stored = 0
        self.moves: list[KvTransfer] = []


class HostOffload:
    """The scheduler's interface to the tier, and the copies to issue."""

    def __init__(
        self, offload: Offload, shape: KvShape, steps_under_way: int = 2, *, drops_last: bool = False,
        in_order: bool = False,
    ) -> None:  # fmt: skip
        """``drops_last``: drafts may still change a request's last block, which is then neither stored nor loaded."""
        groups = len(shape.windows)
        self.rules = offload
        self.tier = HostTier(
            offload.num_blocks // groups, offload.store_threshold, in_order=in_order, by_request=offload.by_request,
            by_position=offload.by_position,
        )  # fmt: skip
        self.loads: list[KvTransfer] = []  # Issued with the step being planned ...
        self.stores: list[KvTransfer] = []  # ... and those submitted at the start of the step after it.
        self.flushed: list[KvTransfer] = []  # Copies that must complete before the step may begin
        self.num_under_way = 0
        self.num_queried = self.num_hit = 0  # Tokens looked up in the tier when requests started, and those found
        self._shape, self._size = shape, shape.block_size * offload.factor
        self._windows = [window for window in shape.windows if window]
        self._full = groups - len(self._windows)
        self._books: dict[Sequence, _Books] = {}
        self._being_loaded: set[int] = set()
        self._outlived: dict[KvTransfer, None] = {}  # Stores of finished requests, whose blocks may be reallocated
        self.loading: dict[Sequence, bool] = {}  # Waiting requests that hold blocks, and whether all are loaded
        self.settling: list[Sequence] = []  # Loaded or chunked requests that the step being planned goes on with
        self._unstored: dict[Sequence, None] = {}  # Running requests with blocks that did not fit in the tier
        self._leaving: dict[BlockAllocation, tuple[Plan, bool]] = {}
        """Blocks of preempted or finished requests: the last step in flight then, and which of the two."""
        self.ended: dict[Sequence, int] = {}
        """Requests that finished since the last step was planned, of which the tier learns with the next; tokens."""
        self._unknown, self._drops_last = steps_under_way - 1, drops_last and not offload.keeps_last
        self.loaded: dict[int, int] = {}  # Tokens each request loaded from the tier at its first start, if any

    @property
    def is_quiet(self) -> bool:
        return not (self.num_under_way or self.tier.counts_lookups)

    # Starting requests.

    def look_up(self, sequence: Sequence, computed: int, known: int) -> int | None:
        """Tokens in the tier after the ``computed`` ones; None: retry in the next step."""
        books = self._books.setdefault(sequence, _Books())
        if self.rules.offers_again:
            books.stored = 0
        if books.moves:
            return None
        keys = self._keys_of(sequence, books, known)
        found = self._find(keys, computed, known)
        if not self.rules.by_request:
            self.tier.touch(keys)
        return found

    def _find(self, keys: list[int], computed: int, known: int) -> int | None:
        size, start = self._size, computed // self._size
        # With sliding windows, the last token is left to be computed; otherwise that is handled later.
        most = min(len(keys) * size, known - 1 if self._windows else known)
        if most - computed < size:
            return 0
        count = self.tier.look_up(keys[start:])
        if count is None:
            return None
        count -= bool(count) and self._drops_last
        found = min(most, size * (start + count)) - computed
        if not count or found < size:
            return 0
        loading = self._being_loaded
        return None if loading and not loading.isdisjoint(keys[start : start + count]) else found

    def begin_load(self, sequence: Sequence, computed: int, found: int) -> None:
        """A request with blocks allocated for these tokens waits for them to be loaded."""
        books, size = self._books[sequence], self._size
        first, end = computed // size, -(-(computed + found) // size)
        keys = books.keys[first:end]
        self.tier.begin_load(keys, books.use)
        self._being_loaded.update(keys)
        count = -(-found // self._shape.block_size)
        in_windows = sum([min(count, -(-window // self._shape.block_size)) for window in self._windows])
        self.loads.append(self._move(sequence, keys, self._full * count + in_windows, is_store=False))
        self.loading[sequence] = False
        books.stored = end

    def note_start(self, sequence: Sequence, known: int, local: int, found: int) -> None:
        """Count what a starting request found, and where."""
        if local and self._outlived:
            # It reuses another one's blocks, which may still be being stored.
            mine = set(self._books[sequence].keys[: local // self._size])
            self.flushed += [move for move in self._outlived if not mine.isdisjoint(move.keys)]
        self.num_queried += known - local
        self.num_hit += found
        if not sequence.num_preemptions:
            sequence.num_cached = local + found
            if found:
                self.loaded[sequence.index] = found

    # Storing blocks.

    def store(self, plan: Plan, cohort: DecodeBatch) -> None:
        """Store blocks filled by the planned step, and the unstored rest of finished requests."""
        prompts_only = self.rules.prompts_only
        if plan.decodes and prompts_only:
            for sequence in [each for each in self._unstored if each.joined >= 0]:
                self._store(sequence, sequence.num_input)
        elif plan.decodes:
            for member in cohort.members:
                self._store(member, member.num_computed + cohort.steps - member.joined + 1 - self._unknown)
        for sequence, new_tokens, computed in zip(plan.sequences, plan.new_tokens, plan.computed, strict=True):
            reached = min(computed + new_tokens, sequence.num_input + sequence.num_produced)
            self._store(sequence, min(reached, sequence.num_input) if prompts_only else reached)
        for sequence, reached in self.ended.items():
            self._begin_store(sequence, min(reached, sequence.num_input) if prompts_only else reached, has_ended=True)
        for sequence in self.ended:
            self._forget(sequence)
        self.ended.clear()

    def _store(self, sequence: Sequence, num_tokens: int) -> None:
        if self._begin_store(sequence, num_tokens):
            self._unstored.pop(sequence, None)
        else:
            self._unstored[sequence] = None

    def _begin_store(self, sequence: Sequence, num_tokens: int, *, has_ended: bool = False) -> bool:
        """Submit blocks up to this many tokens; False: no room, retry later."""
        books = self._books.get(sequence)
        if books is None:
            return True
        keys = self._keys_of(sequence, books, num_tokens)
        end = last = num_tokens // self._size
        if self._drops_last and not self.rules.stores_ends:
            last = max(0, end - 1)  # not tried again
        elif self._drops_last and num_tokens > sequence.num_input and not has_ended:
            end = last = max(0, end - 1)
        if last <= books.stored:
            if not self.rules.stores_ends:
                books.stored = end  # a preempted request starts over and submits what follows again
            return True
        new = self.tier.begin_store(keys[books.stored : last], books.use)
        if new is None:
            return False
        books.stored = end
        if new:
            if not self.rules.by_request:
                self.tier.touch(keys)
            count = len(new) * self.rules.factor * (self._full + len(self._windows))
            self.stores.append(self._move(sequence, new, count, is_store=True))
        return True

    # Leaving requests and completed copies.

    def preempt(self, sequence: Sequence) -> None:
        """Its stores have to complete before its blocks are reused."""
        books = self._books.get(sequence)
        if books is not None:
            self.flushed += books.moves
        self._unstored.pop(sequence, None)

    def leave(self, blocks: BlockAllocation, last: Plan, *, done: bool) -> None:
        """A request was preempted or is ``done``; its blocks are freed when the ``last`` step completes."""
        self._leaving[blocks] = last, done

    def leave_after(self, plan: Plan) -> list[tuple[BlockAllocation, bool]]:
        """Blocks kept for the step that just completed, and whether their requests are done."""
        gone = [(blocks, done) for blocks, (last, done) in self._leaving.items() if last is plan]
        for blocks, _ in gone:
            del self._leaving[blocks]
        return gone

    def end(self, done: list[Sequence], reached: int | None = None) -> None:
        """Requests have ended, or one that its client left has ``reached`` this many tokens."""
        for sequence in done:
            self._unstored.pop(sequence, None)
            if not self.rules.stores_ends:
                self._forget(sequence)
            elif reached is None:  # the last token is never computed on
                self.ended[sequence] = sequence.num_input + max(sequence.num_output - 1, 0)
            else:
                self.ended[sequence] = reached

    def end_moves(self, moves: list[KvTransfer]) -> None:
        for move in moves:
            self.num_under_way -= 1
            if move.is_store:
                self.tier.end_store(move.keys)
                self._outlived.pop(move, None)
            else:
                self.tier.end_load(move.keys)
                self._being_loaded.difference_update(move.keys)
                self.loading[move.sequence] = True
            if (books := self._books.get(move.sequence)) is not None:
                books.moves.remove(move)

    def _forget(self, sequence: Sequence) -> None:
        books = self._books.pop(sequence, None)
        if books is not None:
            self._outlived.update(dict.fromkeys(books.moves))
            if self.rules.by_request:
                self.tier.touch([key for key in books.keys if key in books.use.met])

    def _move(self, sequence: Sequence, keys: list[int], count: int, *, is_store: bool) -> KvTransfer:
        offload = self.rules
        move = KvTransfer(sequence, keys, count * offload.block_bytes, count * offload.block_pieces, is_store=is_store)
        self._books[sequence].moves.append(move)
        self.num_under_way += 1
        return move

    def _keys_of(self, sequence: Sequence, books: _Books, num_tokens: int) -> list[int]:
        """Keys of a request's full blocks up to this many tokens, or more if computed earlier."""
        keys, factor = books.keys, self.rules.factor
        start, end = len(keys) * factor, num_tokens // self._size * factor
        if start < end:
            for edge, first, stop in (*sequence.path, (sequence.own_edge, sequence.shared, end)):
                low, high = max(start, first), min(end, stop)
                # The last block of each group of blocks is its key, since it covers all before it.
                low += (factor - 1 - low) % factor
                keys += [(edge << PLACES) + place for place in range(low, high, factor)]
        return keys
