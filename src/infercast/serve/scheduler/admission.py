"""Which prompts a step takes in: budgets of tokens, and the room that is promised to those who run.

One of these stands for one step that is being planned. Every prompt that it takes in leaves less for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import fsum

from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.decode_batch import DeclaredSequence
from infercast.serve.scheduler.ignored_ends import Timetable
from infercast.serve.scheduler.prefill_first import PrefillFirst

CLOSE = 1e-6
"""Tokens within which a sum of shares may be on either side of a whole number."""


class Answer(Enum):
    """What became of a prompt, and whether the next may be asked."""

    NEXT = 0
    NO_ROOM = 1
    """There is no room for it or for another, until somebody ends."""
    STOP = 2
    """The step is full."""


class Admission:
    """What is left of a step of prompts."""

    def __init__(
        self,
        policy: PrefillFirst,
        cache: RadixCache,
        num_running: int,
        promised: float,
        shares: Callable[[], list[float]],
        timetable: Timetable | None,
    ) -> None:
        """``promised`` tokens to those who run, each of whom has one of the ``shares``."""
        decoding = num_running if policy.mixed_chunk else 0
        size = policy.chunked_prefill_size
        self.sequences: list[DeclaredSequence] = []
        self.new_tokens: list[int] = []
        self.cut: DeclaredSequence | None = None
        """The prompt of which a part is left for the next step."""
        self._policy, self._cache, self._page = policy, cache, cache.page
        self._of_step = policy.max_prefill_tokens - decoding
        self._of_chunk = None if size is None else size - decoding
        self._first, self._shares = decoding, shares
        self._offset = decoding + promised
        self._is_exact = False
        self._charges: list[int] = []
        self._taken = decoding
        self._timetable = timetable

    def go_on(self, sequence: DeclaredSequence) -> None:
        """The next part of the prompt that was cut, which cannot wait."""
        assert self._of_chunk is not None
        room = self._room()
        if abs(room - round(room)) < CLOSE:
            self._make_exact()
            room = self._room()
        most = min(self._of_chunk, int(room))
        most = most if most > 0 else self._of_chunk
        missing = sequence.num_known - sequence.num_computed
        self._add(sequence, min(missing, most), missing)

    def ask(self, sequence: DeclaredSequence) -> Answer:
        """Take a prompt in that waits, or at least its beginning; its match in the cache is held then."""
        if self._policy.max_prompts is not None and len(self.sequences) >= self._policy.max_prompts:
            return Answer.STOP
        lease, cache, known = sequence.lease, self._cache, sequence.num_input + sequence.num_produced
        found = sequence.num_computed = cache.match(lease, known - 1)
        by_ends = self._timetable is not None and sequence.ignores_end
        gate = self._of_timetable if by_ends else self._of_others
        answer = gate(sequence, known - found)
        if answer is not Answer.NEXT:
            if lease.num_pages:
                cache.drop(lease)
            sequence.num_computed = 0
            return answer
        if self._lacks(0) or cache.num_free * self._page <= self._taken:
            return Answer.NO_ROOM
        is_full = self._of_step <= 0 or (self._of_chunk is not None and self._of_chunk <= 0)
        return Answer.STOP if is_full else Answer.NEXT

    def _of_others(self, sequence: DeclaredSequence, missing: int) -> Answer:
        """By what all who run are promised."""
        page, left = self._page, sequence.num_declared - sequence.num_produced
        needed = missing + min(left, self._policy.longest_promise) + page
        if self._lacks(needed):
            return Answer.NO_ROOM
        in_pages = self._in_pages(missing)
        if self._of_chunk is None and self.sequences and in_pages >= self._of_step:
            return Answer.STOP
        if sequence.num_computed:
            self._cache.hold(sequence.lease)  # what it found is not evictable any more
            if self._lacks(needed):
                return Answer.NO_ROOM
        if self._of_chunk is None or in_pages <= self._of_chunk:
            self._add(sequence, missing, missing)
            return Answer.NEXT
        part = self._of_chunk // page * page
        if part <= 0:
            return Answer.STOP
        self._add(sequence, part, missing)
        return Answer.NEXT

    def _of_timetable(self, sequence: DeclaredSequence, missing: int) -> Answer:
        """By when others will end, where that is known."""
        assert self._timetable is not None
        in_pages, now = self._in_pages(missing), self._cache.num_free * self._page - self._taken
        if in_pages > min(now, self._room()) or not self._timetable.has_room(sequence, self.sequences, now - in_pages):
            return Answer.NO_ROOM
        if self._of_chunk is not None and missing > self._of_chunk:
            if self._of_chunk <= 0:
                return Answer.STOP
            self._add(sequence, self._of_chunk, missing)
        else:
            self._add(sequence, missing, missing)
        return Answer.NEXT

    def _add(self, sequence: DeclaredSequence, new_tokens: int, missing: int) -> None:
        """A prompt or a part of it is in the step; only who is complete may ask for an answer."""
        self.sequences.append(sequence)
        self.new_tokens.append(new_tokens)
        in_pages = self._in_pages(new_tokens)
        charge = in_pages + self._page
        self._taken += charge
        if new_tokens < missing:
            self.cut = sequence
        else:
            charge += min(sequence.num_declared, self._policy.longest_promise)
        self._offset += charge
        self._charges.append(charge)
        self._of_step -= in_pages
        if self._of_chunk is not None:
            self._of_chunk -= in_pages

    def _room(self) -> float:
        """Tokens that nobody holds and nobody is promised."""
        cache = self._cache
        return (cache.num_blank + cache.num_evictable) * self._page - self._offset

    def _lacks(self, needed: int) -> bool:
        """Whether there is no room for so many tokens and one more."""
        lacking = needed - self._room()
        if -CLOSE < lacking < CLOSE and not self._is_exact:
            self._make_exact()
            lacking = needed - self._room()
        return lacking >= 0

    def _make_exact(self) -> None:
        """Here it matters that an engine adds the shares up one by one."""
        self._is_exact = True
        self._offset = self._first + fsum(self._shares())
        for charge in self._charges:
            self._offset += charge

    def _in_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page) * self._page
