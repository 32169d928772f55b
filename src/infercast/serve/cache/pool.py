"""Blocks that sequences hold or have left, by content where somebody may look for it.

Blocks have no numbers, for nobody can tell one from another: what counts is how many are held and what can still be
found. A free block is, in the order in which it is handed out, *blank* (nothing can be found in it) or *unused*
(complete and findable, least recently used first; handing it out forgets its content).

Only content that somebody may look for is kept by name: the shared beginnings of prompts, and what a sequence leaves
behind before it is done. What a request that is done has computed on its own is never asked for again, so its blocks
wait to be handed out as one *run* without a name.
"""

from __future__ import annotations

from collections import OrderedDict

from infercast.serve.cache.holding import Bundle, Holding, Line, Span
from infercast.serve.cache.lookup import Lookup
from infercast.serve.cache.shape import KvShape

Pieces = tuple[tuple[int, int], ...]
"""Blocks from one position to another, in order."""


class BlockPool:
    """``num_blocks`` blocks that all groups of layers share."""

    def __init__(self, num_blocks: int, shape: KvShape, *, caching: bool) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        """Blocks that somebody holds."""
        self.caching = caching
        self.num_groups = len(shape.windows)
        self._num_blank = num_blocks
        # What was given back together, and runs (whole numbers) with as many blocks as they have.
        self._unused: OrderedDict[Bundle | int, int] = OrderedDict()
        self._num_runs = 0
        self._lookup = Lookup(shape)
        self._ratios = tuple(size // shape.block_size for size in shape.sizes)
        """How many times as long as the shortest a block of each group is."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, findable ones among them."""
        return self.num_blocks - self.num_held

    def take(self, count: int) -> None:
        """Hand out free blocks: blank ones first, then those whose content was used least recently."""
        self.num_held += count
        self._num_blank -= count
        if self._num_blank < 0:
            self._forget()

    def _forget(self) -> None:
        """Make blank what was used least recently; the rest of a run is as good as blank then."""
        unused = self._unused
        while self._num_blank < 0:
            entry = next(iter(unused))
            if isinstance(entry, int):
                self._num_blank += unused.pop(entry)
                continue
            span = entry.spans[-1]
            count = min(-self._num_blank, span.end - span.start)
            self._num_blank += count
            span.end -= count
            if span.start == span.end:
                self._lookup.forget(span)
                entry.spans.pop()
                if not entry.spans:
                    del unused[entry]

    def _add(self, holding: Holding, line: Line, start: int, end: int) -> None:
        """A sequence has filled these blocks."""
        if holding.spans is None:
            holding.spans = [[] for _ in range(self.num_groups)]
        own = holding.spans[line.group]
        last = own[-1] if own else None
        # Its last span becomes longer, if nobody else has it and no other copy has come since.
        if last is not None and line.spans and last is line.spans[-1] and last.end == start and len(last.holders) == 1:
            last.end = end
            return
        span = Span(line, start, end)
        span.holders.add(holding)
        line.spans.append(span)
        own.append(span)

    def _lengthen(self, holding: Holding, before: int, full: int) -> bool:
        """The same for one group, where a sequence goes on filling its last span; False where it does not."""
        spans = holding.spans
        if spans is None or not spans[0]:
            return False
        last, (edge, _, end) = spans[0][-1], holding.path[-1]
        line = last.line
        if last.end != before or line.edge != edge or full > end or line.spans[-1] is not last or len(last.holders) > 1:
            return False
        last.end = full
        return True

    def _release(self, holding: Holding, group: int, pieces: Pieces, *, named: bool) -> None:
        """A sequence lets go of blocks of a group, from the last to the first; ``named``: it may look for its own."""
        spans = [] if holding.spans is None else holding.spans[group]
        released: list[Span] = []
        start, end = pieces[0][0], pieces[-1][1]
        freed = end - start if len(pieces) == 1 else sum([stop - begin for begin, stop in pieces])
        while spans and spans[0].start < end:
            span = spans[0]
            if span.end > end:
                span.cut(end)
            del spans[0]
            span.holders.discard(holding)
            if span.holders:
                freed -= span.end - span.start
            else:
                released.append(span)
        self.num_held -= freed
        # Its own blocks come after what it shares; those that it found again have a name already.
        shared, known = holding.shared // self._ratios[group], holding.named // self._ratios[group]
        own = max(start, shared, released[-1].end if released and released[-1].line.edge < 0 else 0)
        parts: list[tuple[int, int]] = []
        if self.caching and known > own:
            for begin, stop in pieces:
                parts += holding.kept(group, max(own, begin), min(stop, known))
        if named:
            for part in parts:
                span = Span(self._lookup.line(holding.own_edge, group), *part)
                span.line.spans.append(span)
                released.append(span)
        elif parts:
            self._num_runs += 1
            run = self._unused[self._num_runs] = sum([stop - begin for begin, stop in parts])
            freed -= run
        if released:
            self._unused[Bundle(released)] = 0
            freed -= sum([span.end - span.start for span in released])
        self._num_blank += freed

    def _hold(self, holding: Holding, line: Line, start: int, end: int) -> Span:
        """One holder more of blocks that lie in one span."""
        span = line.at(start)
        assert span is not None
        if span.start < start:
            span = span.cut(start)
        if span.end > end:
            span.cut(end)
        if span.bundle is not None:
            span.bundle.spans.remove(span)
            if not span.bundle.spans:
                del self._unused[span.bundle]
            span.bundle = None
            self.num_held += end - start
        span.holders.add(holding)
        return span
