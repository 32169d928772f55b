"""Admission of prompts in a prefill-first engine: queue order, token budgets, room for the decode batch."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import accumulate
from math import fsum, inf
from operator import attrgetter, itemgetter

from infercast.serve.cache.radix_cache import RadixCache, RadixTree, content_of
from infercast.serve.scheduler.base import APART, Group, PrefillFirstPolicy, Sequence
from infercast.serve.workload.request import Request

# The decode batch of an engine that learns late which sequences have finished. A member whose last token is made in one
# step is in the next one too, if that was planned before the result was known; it leaves when the result is processed.
# Members' remaining declared output is kept as a sum.

PLACE = attrgetter("place")

State = tuple[float, int]  # (remaining, held) tokens of a sequence
MOST_SORTED = 128  # A longer queue is not sorted
ALIKE = 32
"""Tokens: longest match that counts as uncached, and shortest common prefix of two requests that counts as shared."""
CLOSE = 1e-6  # Tokens by which a sum of shares may be on either side of an integer


class DeclaredSequence(Sequence):
    """A request inside an engine that reserves KV space by declared output length."""

    __slots__ = ("accepted", "ignores_end", "lease", "num_declared", "num_tried", "prompt_end", "room", "since")

    def __init__(self, index: int, request: Request, cache: RadixCache, longest_answer: int) -> None:
        super().__init__(index, request)
        own = object()  # not the sequence itself, which would make a reference cycle
        self.lease = cache.lease(content_of(request, own), own, request.num_input)
        self.num_declared = max(min(request.num_declared, longest_answer), request.num_output)
        self.ignores_end = self.num_most == request.num_output  # True if it produces all it declares
        self.prompt_end = 0  # Tokens known at its last start: the prompt, and earlier output
        self.num_tried = 0  # Tokens it had to compute when it was last tried; 0: it was not tried yet
        self.since = 0  # In a batch: the results processed when it joined
        self.accepted = b""  # With drafts, those accepted by output position ...
        self.room = 0  # ... and the tokens that it has KV slots for.

    @property
    def num_known(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_input + self.num_produced


class ReservingDecodeBatch(Group[DeclaredSequence]):
    def __init__(self, cache: RadixCache, policy: PrefillFirstPolicy) -> None:
        super().__init__(cache)
        self._cache, self._longest_promise = cache, policy.max_reserved_output
        self.knows_ends = policy.rules.reserves_fixed and policy.ignores_end
        """True if all that a sequence declares is reserved once it runs, not a share, unless it may end earlier."""
        self._num_fixed = 0  # Members whose whole remaining output is reserved
        self.done = 0  # Steps with processed results
        self.num_ended = 0  # Members that have all their tokens, in a result not yet processed
        # Sums over members: declared output, and output apart from the steps since they joined.
        self.num_declared = self._produced = 0
        self._long: dict[DeclaredSequence, None] = {}  # Members with more output left than is reserved for any sequence

    def in_order(self) -> list[DeclaredSequence]:
        return sorted(self.members, key=PLACE)

    def join(self, sequence: DeclaredSequence) -> None:
        self._enter(sequence)
        self._count(sequence)
        self._produced += sequence.num_produced - self.done
        self.num_ended += sequence.last_step <= self.steps

    def _count(self, sequence: DeclaredSequence) -> None:
        sequence.since = self.done
        self.num_declared += sequence.num_declared
        self._num_fixed += self.knows_ends and sequence.ignores_end
        if sequence.num_declared - sequence.num_produced > self._longest_promise:
            self._long[sequence] = None

    def note_first(self, member: DeclaredSequence) -> None:
        """The result of a member's prefill arrived after it joined."""
        member.num_produced += 1
        self._produced += 1

    def leave(self, member: DeclaredSequence) -> None:
        """Remove a member and restore its own counts."""
        del self.members[member]
        self._long.pop(member, None)
        self.blocks[(member.joined + 1 - member.num_computed) % self._block_size] -= 1
        self.num_ended -= member.last_step <= self.steps
        self.num_declared -= member.num_declared
        self._produced -= member.num_produced - member.since
        self._num_fixed -= self.knows_ends and member.ignores_end
        steps = self.steps - member.joined
        member.num_computed += steps
        member.num_promised += steps
        member.num_produced += self.done - member.since
        self.computed -= member.num_computed
        member.lease.num_pages = -(-member.num_computed // self._block_size)
        member.joined = APART

    def produced(self, member: DeclaredSequence) -> int:
        return member.num_produced + self.done - member.since

    def num_produced(self) -> int:
        return self._produced + self.done * len(self.members)

    def still_asked(self) -> int:
        """Remaining declared output of all members, each up to the reservation limit."""
        asked = self.num_declared - self.num_produced()
        for member in [*self._long]:
            beyond = member.num_declared - self.produced(member) - self._longest_promise
            if beyond > 0:
                asked -= beyond
            else:
                del self._long[member]
        return asked

    def reserved(self, ratio: float) -> float | None:
        """Tokens reserved for members, at this share of what they declared; None if it differs between them."""
        if 0 < self._num_fixed < len(self.members):
            return None
        return self.still_asked() * (1.0 if self._num_fixed else ratio)

    def ending(self) -> list[DeclaredSequence]:
        """Members with their last token in flight, by their declared length."""
        if not self.num_ended:
            return []
        return [
            member
            for member in self.members
            if member.last_step <= self.steps and member.num_declared == member.num_output
        ]

    def blocks_due(self) -> int:
        """Pages that members begin in the next step."""
        return self.blocks[(self.steps + 1) % self._block_size]

    def grow(self, steps: int) -> list[int]:
        """Allocate the pages of the steps after the next one; returns the pages held in each."""
        cache, needed = self._cache, self._blocks_needed(steps)
        before, *held = accumulate(needed, initial=cache.num_held)
        taken = held[-1] - before if held else 0
        if cache.num_blank - taken >= len(self.members):
            cache.num_blank -= taken
        else:
            for count in needed:
                cache.take_for_decoding(count, len(self.members))
        return held

    def advance(self, steps: int) -> list[DeclaredSequence]:
        """Advance every member by this many tokens, in pages allocated before; returns finished members."""
        self.steps += steps
        self.computed += steps * len(self.members)
        if not self._last_steps or self._last_steps[0][0] > self.steps:
            return []
        # A sequence that has all its tokens after prefill finishes with that step.
        ending = [member for member in self._due() if member.last_step > member.joined]
        self.num_ended += len(ending)
        if len(ending) > 1:
            ending.sort(key=PLACE)
        return ending


# Admission by the end times of other requests, if every request produces all it declares and nothing is cached. The
# sequence with the fewest tokens left ends first and frees what it holds. At each of these ends, some room must be left
# for those that continue.


class EosFreeForecast:
    """When running requests will end."""

    def __init__(self, running: Callable[[], Iterable[State]], ratio: float) -> None:
        """``ratio``: share of the declared output assumed for requests that stop at EOS."""
        self._running, self._ratio = running, ratio
        self._states: list[State] | None = None

    def has_room(self, sequence: DeclaredSequence, prefills: list[DeclaredSequence], free: int) -> bool:
        """True if a sequence may start, given others admitted to the same step (``prefills``) and the ``free`` tokens
        left then. As in the engine, it stays in the timetable even if rejected.
        """
        state = state_of(sequence, sequence.num_produced, self._ratio)
        if self._states is None:
            states = [state, *self._running(), *(state_of(each, each.num_produced, self._ratio) for each in prefills)]
            self._states = sorted([each for each in states if each[0] > 0], key=itemgetter(0))
        elif state[0] > 0:  # before the first with at least as much left; one with the most left, before the last
            place = bisect_left(self._states, state[0], key=itemgetter(0))
            self._states.insert(min(place, max(len(self._states) - 1, 0)), state)
        given_back = 0
        reserve = 1  # Free tokens required per continuing sequence, beyond what it needs
        for number, (left, held) in enumerate(self._states):
            going_on = len(self._states) - number
            if free + given_back - left * going_on <= reserve * going_on:
                return False
            given_back += held
        return True


def state_of(sequence: DeclaredSequence, num_produced: int, ratio: float) -> State:
    """Remaining and held tokens of a sequence, with this many output tokens known."""
    declared = sequence.num_declared if sequence.ignores_end else sequence.num_declared * ratio
    return declared - num_produced, sequence.num_input + num_produced


# Queue order by longest prefix match. Of several requests with the same uncached prefix, one goes first and the others
# wait for it to fill the cache.


def by_longest_match(waiting: deque[DeclaredSequence], cache: RadixCache) -> deque[DeclaredSequence]:
    """The queue in a new order; ties keep theirs."""
    if len(waiting) > MOST_SORTED or not cache.caching:
        return waiting
    seen, ranks = RadixTree(1), dict[DeclaredSequence, float]()
    for sequence in waiting:
        known = sequence.num_known
        matched = cache.match(sequence.lease, known)
        ranks[sequence] = -min(matched, known - 1)
        if matched - cache.num_to_load(sequence.lease) * cache.page > ALIKE:
            continue
        content = sequence.lease.content
        met = seen.walk(content, known - cache.paired)
        alike = met[0].end + cache.paired
        if alike >= ALIKE:
            ranks[sequence] = inf
        elif alike < known:
            seen.add(met, content, known - cache.paired)
    return deque(sorted(waiting, key=ranks.__getitem__))


# One `Admission` stands for one step being planned. Every admitted prompt leaves less for the next.


class AdmissionOutcome(Enum):
    """The outcome for one prompt, and whether to try the next."""

    NEXT = 0
    NO_ROOM = 1  # No room for this or any other until a request ends
    STOP = 2  # The step is full


class Admission:
    """The remaining budget of a prefill step."""

    def __init__(
        self, policy: PrefillFirstPolicy, cache: RadixCache, num_running: int, promised: float,
        shares: Callable[[], list[float]], timetable: EosFreeForecast | None,
    ) -> None:  # fmt: skip
        """``promised``: tokens reserved for running requests, the sum of ``shares``."""
        decoding = num_running if policy.mixed_chunk else 0
        size = policy.chunked_prefill_size
        self.sequences: list[DeclaredSequence] = []
        self.new_tokens: list[int] = []
        self.cut: DeclaredSequence | None = None  # The prompt with a chunk left for the next step
        self._policy, self._cache, self._page = policy, cache, cache.page
        self._of_step = policy.max_prefill_tokens - decoding
        self._of_chunk = None if size is None else size - decoding
        self._first, self._shares = decoding, shares
        self._offset = decoding + promised
        self._is_exact = False
        self._charges: list[int] = []
        self._taken = decoding
        self._timetable = timetable
        self.loaded: dict[DeclaredSequence, int] = {}  # Pages to load from host memory, by prompt

    def go_on(self, sequence: DeclaredSequence) -> None:
        assert self._of_chunk is not None
        room = self.room()
        if abs(room - round(room)) < CLOSE:
            self._make_exact()
            room = self.room()
        most = min(self._of_chunk, int(room))
        most = most if most > 0 else self._of_chunk
        missing = sequence.num_known - sequence.num_computed
        self._add(sequence, min(missing, most), missing)

    def ask(self, sequence: DeclaredSequence) -> AdmissionOutcome:
        """Try to admit a waiting prompt, or at least its first chunk; its cache match is then locked."""
        if self._policy.max_prompts is not None and len(self.sequences) >= self._policy.max_prompts:
            return AdmissionOutcome.STOP
        lease, cache, known = sequence.lease, self._cache, sequence.num_input + sequence.num_produced
        found = sequence.num_computed = cache.match_to_load(lease, known - 1)
        sequence.num_tried = known - found
        by_ends = self._timetable is not None and sequence.ignores_end
        gate = self._of_timetable if by_ends else self._of_others
        answer = gate(sequence, known - found)
        if answer is not AdmissionOutcome.NEXT:
            if lease.num_pages:
                cache.drop(lease)
            sequence.num_computed = 0
            return answer
        return self.state()

    def state(self) -> AdmissionOutcome:
        """Whether any further prompt can be tried."""
        cache = self._cache
        if self._lacks(0) or (cache.num_blank + cache.num_evictable) * self._page <= self._taken:
            return AdmissionOutcome.NO_ROOM
        is_full = self._of_step <= 0 or (self._of_chunk is not None and self._of_chunk <= 0)
        return AdmissionOutcome.STOP if is_full else AdmissionOutcome.NEXT

    def _of_others(self, sequence: DeclaredSequence, missing: int) -> AdmissionOutcome:
        """Admission by the output reserved for all running requests."""
        cache, page, lease = self._cache, self._page, sequence.lease
        # Host pages are loaded even if the step turns out to be full.
        to_load = cache.num_to_load(lease) * page if sequence.num_computed and cache.host is not None else 0
        left = min(sequence.num_declared - sequence.num_produced, self._policy.max_reserved_output)
        needed, in_pages = missing + to_load + left + page, -(-missing // page) * page
        if self._lacks(needed):
            return AdmissionOutcome.NO_ROOM
        if self._of_chunk is None and self.sequences and in_pages >= self._of_step:
            return AdmissionOutcome.STOP
        if sequence.num_computed:
            cache.hold(lease)  # its match is no longer evictable
            if self._lacks(needed):
                return AdmissionOutcome.NO_ROOM
            if to_load:
                cache.load(lease)
        if self._of_chunk is None or in_pages <= self._of_chunk:
            self._add(sequence, missing, missing)
        elif (part := self._of_chunk // page * page) > 0:
            self._add(sequence, part, missing)
        else:
            return AdmissionOutcome.STOP
        if to_load:
            self.loaded[sequence] = to_load // page
        return AdmissionOutcome.NEXT

    def _of_timetable(self, sequence: DeclaredSequence, missing: int) -> AdmissionOutcome:
        """Admission by the known end times of others."""
        assert self._timetable is not None
        in_pages, now = -(-missing // self._page) * self._page, self._cache.num_free * self._page - self._taken
        in_pages += self._page if self._policy.rules.spares_page else 0
        if in_pages > min(now, self.room()) or not self._timetable.has_room(sequence, self.sequences, now - in_pages):
            return AdmissionOutcome.NO_ROOM
        if self._of_chunk is not None and missing > self._of_chunk:
            if self._of_chunk <= 0:
                return AdmissionOutcome.STOP
            self._add(sequence, self._of_chunk, missing)
        else:
            self._add(sequence, missing, missing)
        return AdmissionOutcome.NEXT

    def _add(self, sequence: DeclaredSequence, new_tokens: int, missing: int) -> None:
        """Add a prompt or a chunk; output is reserved only for a complete prompt."""
        self.sequences.append(sequence)
        self.new_tokens.append(new_tokens)
        page = self._page
        in_pages = -(-new_tokens // page) * page
        charge = in_pages + page
        self._taken += charge
        if new_tokens < missing:
            self.cut = sequence
        else:
            charge += min(sequence.num_declared, self._policy.max_reserved_output)
        self._offset += charge
        self._charges.append(charge)
        self._of_step -= in_pages
        if self._of_chunk is not None:
            self._of_chunk -= in_pages

    def give_back(self, num_tokens: float) -> None:
        """A running request gives way: nothing is reserved for it any more."""
        self._offset -= num_tokens

    def room(self) -> float:
        cache = self._cache
        return (cache.num_blank + cache.num_evictable) * self._page - self._offset

    def _lacks(self, needed: int) -> bool:
        """True if there is no room for these tokens and one more."""
        cache = self._cache
        lacking = needed - ((cache.num_blank + cache.num_evictable) * self._page - self._offset)
        if -CLOSE < lacking < CLOSE and not self._is_exact:
            self._make_exact()
            lacking = needed - self.room()
        return lacking >= 0

    def _make_exact(self) -> None:
        """Near a tie the order of summation matters: the engine adds the shares one by one."""
        self._is_exact = True
        self._offset = self._first + fsum(self._shares())
        for charge in self._charges:
            self._offset += charge
