"""Sequences that decode in steps of their own, of which an engine learns late that they have ended.

A member whose last token is made in a step is in the next one too, if that was planned before the result was known: it
leaves when the result is taken in. What members may still ask for is kept as a sum.
"""

from __future__ import annotations

from itertools import accumulate
from operator import attrgetter

from infercast.serve.cache.content import content_of
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.group import Group
from infercast.serve.scheduler.sequence import APART, Sequence
from infercast.serve.workload.request import Request

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

    def __init__(self, cache: RadixCache, longest_promise: int) -> None:
        super().__init__(cache)
        self._cache, self._longest_promise = cache, longest_promise
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
        """Every member computes so many tokens, for which pages were taken; returns those that have all of theirs."""
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
