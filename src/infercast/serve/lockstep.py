"""Engines that share experts: every pass through the model is one of all of them, which meet in each layer.

Like vLLM's data-parallel engine cores, an engine without work runs along with a dummy batch of one token, so a request
that comes to it waits for the pass that is under way. A pass lasts as long as its slowest engine: the longest of what
engines do for themselves, and what all do together over the tokens of all. Where every engine only decodes, CUDA
graphs pad all to the fullest.

Engines plan a pass one after the other. One that decoded in the pass before is taken to go on with the same batch until
it has planned. Where another brings more than that, those that planned before it have had their tokens too early, but
their next pass begins no sooner than this one has ended for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from infercast.engine.step import StepEstimate, StepShape, StepTimer
from infercast.records import dataclass
from infercast.serve.simulation import Replica

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


@dataclass(slots=True)
class _Pass:
    """One pass of all engines; those that have planned it so far."""

    begin: float
    end: float
    parts: dict[int, _Part] = field(default_factory=dict)


class Meeting:
    """Where engines in lockstep stand."""

    def __init__(self, num_engines: int, shared: Shared, *, overlap: bool = False) -> None:
        """``overlap``: the engines are pipelines, whose stages work on several passes at a time."""
        self.time = 0.0
        """The clock of the engine whose turn it is, told by whoever drives them."""
        self.shared, self.overlap = shared, overlap
        self._num_engines = num_engines
        self._passes = {0: _Pass(0.0, 0.0)}

    def join(self, rank: int, number: int, start: float, launched: float, part: _Part) -> float:
        """An engine takes part in a pass from ``start`` on; its last kernel is launched at the time ``launched``.

        Returns when the pass ends, as far as is known.
        """
        before = self._passes.get(number - 1, _Pass(0.0, 0.0))
        each = self._passes.setdefault(number, _Pass(start, start))
        self._passes.pop(number - KEPT, None)
        each.parts[rank] = part
        each.begin = max(each.begin, start, 0.0 if self.overlap else before.end)
        expected = (last for other, last in before.parts.items() if last.decodes and other not in each.parts)
        each.end = max(each.end, launched, each.begin + self._seconds([*each.parts.values(), *expected]))
        return each.end

    def under_way(self, time: float) -> int:
        """The number of the pass that runs then, or of the last one."""
        running = (number for number, each in self._passes.items() if each.begin <= time < each.end)
        return max(running, default=max(self._passes))

    def _seconds(self, parts: Sequence[_Part]) -> float:
        """How long a pass of these takes; whoever is not among them has a dummy batch."""
        tokens = [part.tokens for part in parts]
        if all(part.decodes for part in parts):
            mean = float(max(tokens))
        else:
            mean = (sum(tokens) + DUMMY_TOKENS * (self._num_engines - len(tokens))) / self._num_engines
        return max(part.own for part in parts) + self.shared(mean)


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
