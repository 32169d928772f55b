"""Data-parallel engines that share experts: every forward pass is synchronous across all, which meet in each layer.

Like vLLM's data-parallel engine cores, an engine without work joins with a dummy batch of one token, so a request that
arrives there waits for the pass in flight. A pass lasts as long as its slowest engine: the maximum of the engines' own
work, plus the shared work over all tokens. If all engines only decode, CUDA graphs pad all to the largest. SGLang's DP
attention groups do the same with idle batches. While one of them prefills, the others launch without graphs, which
takes no longer than that prefill: DP groups have no prefill graphs.

Engines plan a pass one after the other. One that decoded in the previous pass is assumed to continue with the same
batch until it has planned. If another then brings more, those that planned earlier got their tokens too early, but
their next pass does not begin until this one has ended for all.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace

from infercast.lazy_classes import NamedTuple
from infercast.serve.loop import Replica
from infercast.serve.step import Contexts, Prompts, StepEstimate, StepShape, StepTimer, estimated, groups_of

Shared = Callable[[float], float]  # Seconds of shared work, by tokens per engine if all have the same number


class _Part(NamedTuple):
    """One engine's contribution to a pass."""

    own: float  # Seconds of its own work
    tokens: int
    decodes: bool


class _BarrierRound:
    """One pass of all engines: those that have planned it, and those assumed to continue decoding.

    Its length is updated incrementally as engines join, for there may be hundreds.
    """

    def __init__(self, begin: float, before: _BarrierRound | None = None) -> None:
        self.begin = self.end = begin
        self.parts: dict[int, _Part] = {}
        self._own = self._most_tokens = self._num_tokens = self._num_prompts = 0.0
        self._expected: dict[int, _Part] = {}
        self._expected_tokens = 0
        # Engines that have not joined, sorted by own time and by tokens.
        self._by_own: list[tuple[float, int]] = []
        self._by_tokens: list[tuple[float, int]] = []
        for rank, part in () if before is None else before.parts.items():
            self.expect(rank, part)

    def expect(self, rank: int, part: _Part) -> None:
        """Note an engine's previous pass; if it decoded, it is assumed to continue until it has planned."""
        if part.decodes and rank not in self.parts:
            self._expected[rank] = part
            self._expected_tokens += part.tokens
            insort(self._by_own, (part.own, rank))
            insort(self._by_tokens, (part.tokens, rank))

    def join(self, rank: int, part: _Part) -> None:
        """An engine has planned its contribution."""
        if (expected := self._expected.pop(rank, None)) is not None:
            self._expected_tokens -= expected.tokens
        self.parts[rank] = part
        self._own = max(self._own, part.own)
        self._most_tokens = max(self._most_tokens, part.tokens)
        self._num_tokens += part.tokens
        self._num_prompts += not part.decodes

    def seconds(self, num_engines: int, shared: Shared) -> float:
        """Its duration as far as known; engines not yet seen have a dummy batch."""
        own = max(self._own, self._largest(self._by_own))
        if not self._num_prompts:
            return own + shared(float(max(self._most_tokens, self._largest(self._by_tokens))))
        dummies = num_engines - len(self.parts) - len(self._expected)
        dummy_tokens = 1
        tokens = self._num_tokens + self._expected_tokens + dummy_tokens * dummies
        return own + shared(tokens / num_engines)

    def _largest(self, ranked: list[tuple[float, int]]) -> float:
        """The maximum over engines that have not joined; joined ones are dropped."""
        while ranked and ranked[-1][1] not in self._expected:
            ranked.pop()
        return ranked[-1][0] if ranked else 0.0


class DpBarrier:
    def __init__(self, num_engines: int, shared: Shared, *, overlap: bool = False) -> None:
        """``overlap``: the engines are pipelines, with several passes in flight."""
        self.time = 0.0  # The clock of the engine taking its turn, set by the driver
        self.shared, self.overlap = shared, overlap
        self._num_engines = num_engines
        self._passes = {0: _BarrierRound(0.0)}

    def join(self, rank: int, number: int, start: float, launched: float, part: _Part) -> float:
        """An engine joins a pass from ``start`` on, its last kernel ``launched``; returns when it ends, if known."""
        before = self._passes.get(number - 1)
        each = self._passes.get(number)
        if each is None:
            each = self._passes[number] = _BarrierRound(start, before)
        kept = 64  # Passes kept; engines are never further apart
        self._passes.pop(number - kept, None)
        each.join(rank, part)
        if (after := self._passes.get(number + 1)) is not None:
            after.expect(rank, part)
        each.begin = max(each.begin, start, 0.0 if self.overlap or before is None else before.end)
        each.end = max(each.end, launched, each.begin + each.seconds(self._num_engines, self.shared))
        return each.end

    def under_way(self, time: float) -> int:
        """The number of the pass running at that time, or of the last one."""
        running = (number for number, each in self._passes.items() if each.begin <= time < each.end)
        return max(running, default=max(self._passes))


class _Rank:
    """One engine's step timer, which stretches its steps to the passes they are part of."""

    def __init__(self, timer: StepTimer, rank: int, meeting: DpBarrier) -> None:
        self._timer, self._groups, self._rank, self._meeting = timer, groups_of(timer), rank, meeting
        self._number, self._end, self._host = 0, 0.0, 0.0

    def next_number(self) -> int:
        """The pass that the engine would join now."""
        is_idle = self._meeting.time > self._end + self._host
        return max(self._number, self._meeting.under_way(self._meeting.time) if is_idle else 0) + 1

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """The cost of one step; repetitions cannot be predicted independently of the other engines."""
        return self._meet(self._timer(shape, 1), shape.num_tokens, decodes=shape.is_decode)

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        return self._meet(self._groups.decode(count, computed, contexts, 1), count, decodes=True)

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        estimate = self._groups.compute(prefills, num_first, count, computed, contexts)
        tokens = sum([new for new, _ in prefills])
        return self._meet(estimate, count + tokens, decodes=tokens == len(prefills))

    def _meet(self, estimate: StepEstimate, tokens: int, *, decodes: bool) -> StepEstimate:
        meeting, host, time, end = self._meeting, estimate.host, self._meeting.time, self._end
        ready, total = time + host.plan + host.prepare, host.total
        start = ready if meeting.overlap or ready > end else end
        self._number, self._host = self._number + 1, total
        if time > end + total:  # it was idle, and is in a pass with its dummy batch
            self._number = max(self._number, meeting.under_way(start) + 1)
        part = _Part(max(0.0, estimate.gpu_seconds[0] - meeting.shared(tokens)), tokens, decodes)
        self._end = meeting.join(self._rank, self._number, start, ready + host.launch, part)
        return estimated(([self._end - start], *estimate[1:6], 0.0))


def in_lockstep(replicas: Sequence[Replica], shared: Shared | None) -> tuple[DpBarrier, tuple[Replica, ...]]:
    """The same engines, synchronised in every step; without ``shared``, all work is each engine's own."""
    meeting = DpBarrier(len(replicas), shared or (lambda tokens: 0.0), overlap=replicas[0].stages is not None)
    ranks = (replace(each, timer=_Rank(each.timer, number, meeting)) for number, each in enumerate(replicas))
    return meeting, tuple(ranks)
