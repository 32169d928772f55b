"""Engines that share experts: every pass through the model is one of all of them, which meet in each layer.

Like vLLM's data-parallel engine cores, an engine without work runs along with a dummy batch of one token, so a request
that comes to it waits for the pass that is under way. A pass lasts as long as its slowest engine: the longest of what
engines do for themselves, and what all do together over the tokens of all. Where every engine only decodes, CUDA
graphs pad all to the fullest. SGLang's groups of DP attention do the same with empty batches. While one of them has
prompts the others launch without graphs, which takes no longer than those prompts: they have no graphs in groups.

Engines plan a pass one after the other. One that decoded in the pass before is taken to go on with the same batch until
it has planned. Where another brings more than that, those that planned before it have had their tokens too early, but
their next pass begins no sooner than this one has ended for all.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from infercast.serve.simulation import Replica
from infercast.serve.step import StepEstimate, StepShape, StepTimer

Shared = Callable[[float], float]
"""Seconds that all engines spend together, by the tokens of each if all bring as many."""
DUMMY_TOKENS = 1
KEPT = 64
"""Passes that may still be asked for; engines are never so far apart."""


class _Part(NamedTuple):
    """What one engine brings to a pass."""

    own: float
    """Seconds that it needs for itself."""
    tokens: int
    decodes: bool


class _Pass:
    """One pass of all engines; those that have planned it so far, and those that are taken to go on decoding.

    Everything that its length depends on is kept up to date as engines join, for there may be hundreds of them.
    """

    def __init__(self, begin: float, before: _Pass | None = None) -> None:
        self.begin = self.end = begin
        self.parts: dict[int, _Part] = {}
        self._own = self._most_tokens = self._num_tokens = self._num_prompts = 0.0
        self._expected: dict[int, _Part] = {}
        self._expected_tokens = 0
        # Of those who have not joined: the slowest and the fullest last.
        self._by_own: list[tuple[float, int]] = []
        self._by_tokens: list[tuple[float, int]] = []
        for rank, part in () if before is None else before.parts.items():
            self.expect(rank, part)

    def expect(self, rank: int, part: _Part) -> None:
        """What an engine brought to the pass before; one that decoded is taken to go on until it has planned."""
        if part.decodes and rank not in self.parts:
            self._expected[rank] = part
            self._expected_tokens += part.tokens
            insort(self._by_own, (part.own, rank))
            insort(self._by_tokens, (part.tokens, rank))

    def join(self, rank: int, part: _Part) -> None:
        """An engine has planned what it brings."""
        if (expected := self._expected.pop(rank, None)) is not None:
            self._expected_tokens -= expected.tokens
        self.parts[rank] = part
        self._own = max(self._own, part.own)
        self._most_tokens = max(self._most_tokens, part.tokens)
        self._num_tokens += part.tokens
        self._num_prompts += not part.decodes

    def seconds(self, num_engines: int, shared: Shared) -> float:
        """How long it takes as far as is known; whoever is not among them has a dummy batch."""
        own = max(self._own, self._largest(self._by_own))
        if not self._num_prompts:
            return own + shared(float(max(self._most_tokens, self._largest(self._by_tokens))))
        dummies = num_engines - len(self.parts) - len(self._expected)
        tokens = self._num_tokens + self._expected_tokens + DUMMY_TOKENS * dummies
        return own + shared(tokens / num_engines)

    def _largest(self, ranked: list[tuple[float, int]]) -> float:
        """Of those who have not joined; the others are forgotten."""
        while ranked and ranked[-1][1] not in self._expected:
            ranked.pop()
        return ranked[-1][0] if ranked else 0.0


class Meeting:
    """Where engines in lockstep stand."""

    def __init__(self, num_engines: int, shared: Shared, *, overlap: bool = False) -> None:
        """``overlap``: the engines are pipelines, whose stages work on several passes at a time."""
        self.time = 0.0
        """The clock of the engine whose turn it is, told by whoever drives them."""
        self.shared, self.overlap = shared, overlap
        self._num_engines = num_engines
        self._passes = {0: _Pass(0.0)}

    def join(self, rank: int, number: int, start: float, launched: float, part: _Part) -> float:
        """An engine takes part in a pass from ``start`` on; its last kernel is launched at the time ``launched``.

        Returns when the pass ends, as far as is known.
        """
        before = self._passes.get(number - 1)
        each = self._passes.get(number)
        if each is None:
            each = self._passes[number] = _Pass(start, before)
        self._passes.pop(number - KEPT, None)
        each.join(rank, part)
        if (after := self._passes.get(number + 1)) is not None:
            after.expect(rank, part)
        each.begin = max(each.begin, start, 0.0 if self.overlap or before is None else before.end)
        each.end = max(each.end, launched, each.begin + each.seconds(self._num_engines, self.shared))
        return each.end

    def under_way(self, time: float) -> int:
        """The number of the pass that runs then, or of the last one."""
        running = (number for number, each in self._passes.items() if each.begin <= time < each.end)
        return max(running, default=max(self._passes))


class _Rank:
    """The step timer of one engine, which makes its steps as long as the passes they are part of."""

    def __init__(self, timer: StepTimer, rank: int, meeting: Meeting) -> None:
        self._timer, self._rank, self._meeting = timer, rank, meeting
        self._number, self._end = 0, 0.0

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What one step costs; steps in a row cannot be told ahead of the others."""
        estimate = self._timer(shape, 1)
        meeting, host = self._meeting, estimate.host
        ready = meeting.time + host.plan + host.prepare
        start = ready if meeting.overlap else max(ready, self._end)
        self._number += 1
        if meeting.time > self._end + host.total:  # it had nothing to do, and is inside a pass with its dummy batch
            self._number = max(self._number, meeting.under_way(start) + 1)
        own = max(0.0, estimate.gpu_seconds[0] - meeting.shared(shape.num_tokens))
        part = _Part(own, shape.num_tokens, shape.is_decode)
        self._end = meeting.join(self._rank, self._number, start, ready + host.launch, part)
        return estimate._replace(gpu_seconds=[self._end - start], throttled=0.0)


def in_lockstep(replicas: Sequence[Replica], shared: Shared | None) -> tuple[Meeting, tuple[Replica, ...]]:
    """The same engines, whose steps are passes of all; without ``shared``, everything is each engine's own."""
    meeting = Meeting(len(replicas), shared or _nothing, overlap=replicas[0].stages is not None)
    ranks = (replace(each, timer=_Rank(each.timer, number, meeting)) for number, each in enumerate(replicas))
    return meeting, tuple(ranks)


def _nothing(tokens: float) -> float:
    return 0.0
