"""Admission of prompts in a prefill-first engine: queue order, token budgets, room for the decode batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import accumulate
from math import fsum, inf
from operator import attrgetter

from infercast.serve.cache.radix_cache import RadixCache, RadixTree, content_of
from infercast.serve.scheduler.base import APART, Group, PrefillFirst, Sequence
from infercast.serve.workload.request import Request

# Sequences that decode in steps of their own, of which an engine learns late that they have ended.
#
# A member whose last token is made in a step is in the next one too, if that was planned before the result was known:
# it leaves when the result is taken in. What members may still ask for is kept as a sum.


PLACE = attrgetter("place")


class DeclaredSequence(Sequence):
    """A request inside an engine that reckons with the answer it asks for."""

    __slots__ = ("ignores_end", "lease", "num_declared", "prompt_end", "since")

    def __init__(self, index: int, request: Request, cache: RadixCache, longest_answer: int) -> None:
        super().__init__(index, request)
        own = object()  # not the sequence itself, which would then hold on to itself for good
        self.lease = cache.lease(content_of(request, own), own)
        self.num_declared = max(min(request.num_declared, longest_answer), request.num_output)
        self.ignores_end = request.most_output == request.num_output
        """Whether it produces all that it declares."""
        self.prompt_end = 0
        """Tokens that were known when it was last started: its prompt, and what it had produced before."""
        self.since = 0
        """In a batch, the steps whose results had been taken in when it joined."""

    @property
    def num_known(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_input + self.num_produced


class DecodeBatch(Group[DeclaredSequence]):
    """The sequences that an engine decodes, and those of them that it does not know to have ended."""

    def __init__(self, cache: RadixCache, max_reserved_output: int) -> None:
        super().__init__(cache)
        self._cache, self._longest_promise = cache, max_reserved_output
        self.done = 0
        """Steps whose results have been taken in."""
        self.num_ended = 0
        """Members that have all their tokens, in a result that is not there yet."""
        # Sums over members: what they declare, and what they have produced apart from the steps since they joined.
        self._declared = self._produced = 0
        self._long: dict[DeclaredSequence, None] = {}
        """Members that may ask for more than is promised to anybody."""

    def in_order(self) -> list[DeclaredSequence]:
        """The members as the engine has them in its batch."""
        return sorted(self.members, key=PLACE)

    def join(self, sequence: DeclaredSequence) -> None:
        """A sequence whose prompt is computed is a member from the next step on."""
        self._enter(sequence)
        sequence.since = self.done
        self._declared += sequence.num_declared
        self._produced += sequence.num_produced - self.done
        if sequence.num_declared - sequence.num_produced > self._longest_promise:
            self._long[sequence] = None
        self.num_ended += sequence.last_step <= self.steps

    def note_first(self, member: DeclaredSequence) -> None:
        """The result of a member's prompt has come, after it joined."""
        member.num_produced += 1
        self._produced += 1

    def leave(self, member: DeclaredSequence) -> None:
        """A member gets its own counts back."""
        del self.members[member]
        self._long.pop(member, None)
        self.blocks[(member.joined + 1 - member.num_computed) % self._block_size] -= 1
        self.num_ended -= member.last_step <= self.steps
        self._declared -= member.num_declared
        self._produced -= member.num_produced - member.since
        steps = self.steps - member.joined
        member.num_computed += steps
        member.num_promised += steps
        member.num_produced += self.done - member.since
        self.computed -= member.num_computed
        member.lease.num_pages = -(-member.num_computed // self._block_size)
        member.joined = APART

    def produced(self, member: DeclaredSequence) -> int:
        """Tokens of a member that are known."""
        return member.num_produced + self.done - member.since

    def num_produced(self) -> int:
        """The same of all members together."""
        return self._produced + self.done * len(self.members)

    def num_declared(self) -> int:
        """What all members together declare."""
        return self._declared

    def still_asked(self) -> int:
        """Tokens that members may still ask for, as far as they are promised."""
        asked = self._declared - self.num_produced()
        for member in [*self._long]:
            beyond = member.num_declared - self.produced(member) - self._longest_promise
            if beyond > 0:
                asked -= beyond
            else:
                del self._long[member]
        return asked

    def blocks_due(self) -> int:
        """Pages that members begin in the next step."""
        return self.blocks[(self.steps + 1) % self._block_size]

    def grow(self, steps: int) -> list[int]:
        """Take the pages of the steps after the next one; returns how many are held in each."""
        cache, needed = self._cache, self._blocks_needed(steps)
        held = [*accumulate(needed, initial=cache.num_held)]
        if cache.num_blank - (held[-1] - held[0]) >= len(self.members):
            cache.take(held[-1] - held[0])
        else:
            for count in needed:
                cache.take_for_decoding(count, len(self.members))
        del held[0]
        return held

    def advance(self, steps: int) -> list[DeclaredSequence]:
        """Every member computes this many tokens, for which pages were taken; returns those that have all of theirs."""
        self.steps += steps
        self.computed += steps * len(self.members)
        if not self._last_steps or self._last_steps[0][0] > self.steps:
            return []
        # Who has all its tokens from its prompt ends with that.
        ending = [member for member in self._due() if member.last_step > member.joined]
        self.num_ended += len(ending)
        if len(ending) > 1:
            ending.sort(key=PLACE)
        return ending


# Room by the time at which others end, where every request produces all that it declares and nothing is cached.
#
# Whoever has the fewest tokens left ends first and gives back what it holds. At each of these moments there must be
# some room left for those who go on.


RESERVE = 1
"""Tokens of each sequence that goes on for which there must be more than room."""

State = tuple[float, int]
"""Tokens that a sequence has left, and those that it holds."""


class Timetable:
    """When running requests will end."""

    def __init__(self, running: Callable[[], Iterable[State]], ratio: float) -> None:
        """``ratio``: the share of a declared answer that is reckoned with where the end of a text counts."""
        self._running, self._ratio = running, ratio
        self._states: list[State] | None = None

    def has_room(self, sequence: DeclaredSequence, beside: list[DeclaredSequence], free: int) -> bool:
        """Whether a sequence may start, with others of the same step ``beside`` it and so many tokens ``free`` then.

        Like the engine, it stays in the timetable even if it may not.
        """
        state = state_of(sequence, sequence.num_produced, self._ratio)
        if self._states is None:
            states = [state, *self._running(), *(state_of(each, each.num_produced, self._ratio) for each in beside)]
            self._states = sorted([each for each in states if each[0] > 0], key=lambda each: each[0])
        elif state[0] > 0:
            self._insert(state)
        given_back = 0
        for number, (left, held) in enumerate(self._states):
            going_on = len(self._states) - number
            if free + given_back - left * going_on <= RESERVE * going_on:
                return False
            given_back += held
        return True

    def _insert(self, state: State) -> None:
        """Before the first that has as much left or more; who has most of all comes before the last."""
        assert self._states is not None
        place = max(len(self._states) - 1, 0)
        for number, (left, _) in enumerate(self._states):
            if state[0] <= left:
                place = number
                break
        self._states.insert(place, state)


def state_of(sequence: DeclaredSequence, num_produced: int, ratio: float) -> State:
    """What a sequence has left and holds, with this many tokens known."""
    declared = sequence.num_declared if sequence.ignores_end else sequence.num_declared * ratio
    return declared - num_produced, sequence.num_input + num_produced


# The order in which requests that wait are looked at: those of whose beginning the cache has most come first.
#
# Of several that begin alike, none of which the cache knows, one goes first and the others wait until they find what
# it has left.


MOST_SORTED = 128
"""A longer queue is left as it is."""
ALIKE = 32
"""Tokens: what the cache has at most of a beginning that it does not know, and what two that begin alike share."""


def by_longest_match(waiting: deque[DeclaredSequence], cache: RadixCache) -> deque[DeclaredSequence]:
    """The queue in a new order; equals stay as they are."""
    if len(waiting) > MOST_SORTED or not cache.caching:
        return waiting
    seen, ranks = RadixTree(1), dict[DeclaredSequence, float]()
    for sequence in waiting:
        known = sequence.num_known
        matched = cache.match(sequence.lease, known)
        ranks[sequence] = -min(matched, known - 1)
        if matched > ALIKE:
            continue
        content = sequence.lease.content
        met = seen.walk(content, known)
        alike = met[0].end
        if alike >= ALIKE:
            ranks[sequence] = inf
        elif alike < known:
            seen.add(met, content, known)
    return deque(sorted(waiting, key=ranks.__getitem__))


# One of these stands for one step that is being planned. Every prompt that it takes in leaves less for the next.


CLOSE = 1e-6
"""Tokens within which a sum of shares may be on either side of a whole number."""


class Answer(Enum):
    """What became of a prompt, and whether the next may be asked."""

    NEXT = 0
    NO_ROOM = 1
    """There is no room for it or for another, until a request ends."""
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
        self.loaded: dict[DeclaredSequence, int] = {}
        """Pages that come from host memory, of each prompt that has some."""

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
        """By what is reserved for all running requests."""
        cache, page, lease = self._cache, self._page, sequence.lease
        # What host memory has of it is loaded even if the step turns out to be full.
        to_load = cache.num_to_load(lease) * page if sequence.num_computed and cache.host is not None else 0
        left = min(sequence.num_declared - sequence.num_produced, self._policy.max_reserved_output)
        needed, in_pages = missing + to_load + left + page, self._in_pages(missing)
        if self._lacks(needed):
            return Answer.NO_ROOM
        if self._of_chunk is None and self.sequences and in_pages >= self._of_step:
            return Answer.STOP
        if sequence.num_computed:
            cache.hold(lease)  # what it found is not evictable any more
            if self._lacks(needed):
                return Answer.NO_ROOM
            if to_load:
                cache.load(lease)
        if self._of_chunk is None or in_pages <= self._of_chunk:
            self._add(sequence, missing, missing)
        elif (part := self._of_chunk // page * page) > 0:
            self._add(sequence, part, missing)
        else:
            return Answer.STOP
        if to_load:
            self.loaded[sequence] = to_load // page
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
            charge += min(sequence.num_declared, self._policy.max_reserved_output)
        self._offset += charge
        self._charges.append(charge)
        self._of_step -= in_pages
        if self._of_chunk is not None:
            self._of_chunk -= in_pages

    def _room(self) -> float:
        """Tokens that are neither held nor reserved."""
        cache = self._cache
        return (cache.num_blank + cache.num_evictable) * self._page - self._offset

    def _lacks(self, needed: int) -> bool:
        """Whether there is no room for these tokens and one more."""
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
