"""Clock jumping: while a batch only decodes, many steps are computed at once.

Between two events (an arrival, a finished sequence, a KV cache that runs full) the same sequences compute one token
each, step after step. Such a stretch is priced as arrays and the clock jumps to its end. Every number comes out as
if the steps had been taken one by one: the same additions are made in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.step import StepEstimate, StepShape
from infercast.serve.scheduler import Plan, Sequence
from infercast.serve.state import State

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
    estimate = state.timer(shape, steps)
    ends = _run_on(state.gpu_free, estimate.seconds)
    steps = min(steps, _steps_before_arrival(state, ends))
    if steps < 2:
        return False
    _jump(state, shape, _first(estimate, steps), ends[: steps + 1], held[: steps + 1])
    return True


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


def _run_on(start: float, seconds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``start``, and the end of each step after it; sums run in order, as a loop's would."""
    return np.cumsum(np.concatenate(([start], seconds)))


def _steps_before_arrival(state: State, ends: npt.NDArray[Any]) -> int:
    """Steps that are planned before the next request is seen. The first is planned now, where nobody has arrived."""
    arrival = state.clients.next_arrival
    if arrival is None:
        return int(ends.size) - 1
    # With one step under way the next plan is made when that one ends (ends[0]), otherwise when its own end comes.
    later_plans = ends[:-2] if state.steps_under_way > 1 else ends[1:-1]
    return 1 + int(np.searchsorted(later_plans, arrival, side="left"))


def _first(estimate: StepEstimate, steps: int) -> StepEstimate:
    """The first few steps of a series."""
    return StepEstimate(
        estimate.seconds[:steps], estimate.gpu_seconds[:steps], estimate.host_seconds, estimate.kernel_seconds[:steps]
    )


def _jump(
    state: State, shape: StepShape, estimate: StepEstimate, ends: npt.NDArray[Any], held: npt.NDArray[Any]
) -> None:
    """Take the steps: tokens appear, blocks are filled, the clock moves on."""
    scheduler, record = state.scheduler, state.record
    steps, sequences = estimate.seconds.size, scheduler.running
    usage = 1.0 - (scheduler.cache.num_free - (held[1:] - held[0])) / scheduler.cache.num_blocks
    record.steps(shape, estimate, running=len(sequences), waiting=0, kv=usage)
    finished = ends[:-1] if state.steps_under_way > 1 else ends[1:]
    record.steady_tokens(sequences, finished)
    for sequence in sequences:
        scheduler.advance(sequence, steps)
    plan = Plan(list(sequences), [1] * len(sequences), [sequence.num_computed - 1 for sequence in sequences])
    plan.sampled = list(sequences)
    state.clock, state.gpu_free = float(finished[-1]), float(ends[-1])
    state.last_plan = plan
    if state.steps_under_way > 1:
        state.under_way.clear()
        state.under_way.append((plan, state.gpu_free))
