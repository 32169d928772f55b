"""Clock jumping: while a batch only decodes, many steps are computed at once.

Between two events (an arrival, a finished sequence, a KV cache that runs full) the same sequences compute one token
each, step after step. Such a stretch is priced as arrays and the clock jumps to its end. Every number comes out as
if the steps had been taken one by one: the same additions are made in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.step import StepEstimate, StepShape
from infercast.serve.scheduler import Plan, Sequence
from infercast.serve.state import Flight, State
from infercast.serve.timeline import Span, Timeline

MOST_STEPS = 32
"""Steps priced at once: enough to matter, few enough that an arrival in between wastes little."""


def coast(state: State) -> bool:
    """Jump over as many steps as nothing can happen in; False if not even two."""
    sequences = state.scheduler.running
    if not _is_steady(state, sequences):
        return False
    steps = min(MOST_STEPS, *(_steps_left(sequence) for sequence in sequences))
    if steps < 2:
        return False
    computed = np.array([sequence.num_computed for sequence in sequences])
    held = _blocks_held(state, computed, steps)
    steps = min(steps, int(np.count_nonzero(held[1:] - held[0] <= state.scheduler.cache.num_free)))
    if steps < 2:
        return False
    shape = StepShape([1] * len(sequences), computed.tolist(), len(sequences))
    run = _run_ahead(state, state.timer(shape, steps))
    if len(run.spans) < 2:
        return False
    _jump(state, shape, run, held[: len(run.spans) + 1])
    return True


@dataclass(frozen=True, slots=True)
class _Run:
    """Steps taken ahead of the simulation."""

    estimate: StepEstimate
    timeline: Timeline
    spans: list[Span]
    taken_in: list[float]
    """When the engine was done with each result: of these steps, or of the one under way and all but the last."""


def _run_ahead(state: State, estimate: StepEstimate) -> _Run:
    """The steps that are planned before the next request is seen."""
    timeline, arrival = state.timeline.copy(), state.clients.next_arrival
    spans: list[Span] = []
    taken_in = []
    ends = [(flight.end, flight.host) for flight in state.under_way]
    for gpu_seconds in estimate.gpu_seconds.tolist():
        if arrival is not None and arrival <= timeline.clock:
            break
        spans.append(timeline.launch(estimate.host, gpu_seconds))
        ends.append((spans[-1].end, estimate.host))
        taken_in.append(timeline.take_in(*ends.pop(0)))
    steps = len(spans)
    first = StepEstimate(estimate.gpu_seconds[:steps], estimate.kernel_seconds[:steps], estimate.host)
    return _Run(first, timeline, spans, taken_in)


def _is_steady(state: State, sequences: list[Sequence]) -> bool:
    """Whether the last planned step held exactly the running sequences, one token each, and nobody waits."""
    plan = state.last_plan
    return (
        bool(sequences)
        and plan is not None
        and not state.scheduler.waiting
        and len(state.under_way) == state.steps_under_way - 1
        and plan.sequences == sequences
        and len(plan.sampled) == len(sequences)
        and max(plan.new_tokens) == 1
        and not any(state.scheduler.cache.shape.windows)
        and state.record.all_produced_last(sequences)
    )


def _steps_left(sequence: Sequence) -> int:
    """Steps that can be planned and completed before this sequence's last token."""
    return min(
        sequence.request.num_output - sequence.num_promised, sequence.request.num_output - sequence.num_produced - 1
    )


def _blocks_held(state: State, computed: npt.NDArray[Any], steps: int) -> npt.NDArray[Any]:
    """Blocks that the sequences hold now and after each further step."""
    shape = state.scheduler.cache.shape
    tokens = computed + np.arange(steps + 1)[:, None]
    return np.asarray(len(shape.windows) * np.sum(-(-tokens // shape.block_size), axis=1))


def _jump(state: State, shape: StepShape, run: _Run, held: npt.NDArray[Any]) -> None:
    """Take the steps: tokens appear, blocks are filled, the clock moves on."""
    scheduler, record = state.scheduler, state.record
    steps, sequences = len(run.spans), scheduler.running
    usage = 1.0 - (scheduler.cache.num_free - (held[1:] - held[0])) / scheduler.cache.num_blocks
    seconds = [span.seconds for span in run.spans]
    record.steps(shape, run.estimate, seconds, running=len(sequences), waiting=0, kv=usage.tolist())
    record.steady_tokens(sequences, run.taken_in)
    for sequence in sequences:
        scheduler.advance(sequence, steps)
    plan = Plan(list(sequences), [1] * len(sequences), [sequence.num_computed - 1 for sequence in sequences])
    plan.sampled = list(sequences)
    state.timeline = run.timeline
    state.last_plan = plan
    if state.steps_under_way > 1:
        state.under_way.clear()
        state.under_way.append(Flight(plan, run.spans[-1].end, run.estimate.host))
