"""The loop of an engine's host thread: take in requests, plan and launch a step, take in a result.

Like vLLM's engine core, it keeps up to two steps under way when scheduling is asynchronous: the next one is planned
when the result before the one that runs has been taken in, so a request that arrives during a step joins the one
after the next.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import add

from infercast.errors import InputError
from infercast.serve.boarding import cruise
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.coast import coast, gather, plan_beside, plan_step
from infercast.serve.conditions import Conditions
from infercast.serve.first_use import FirstUses
from infercast.serve.record import Record
from infercast.serve.scheduler.limits import Limits
from infercast.serve.scheduler.scheduler import Plan, Scheduler
from infercast.serve.stages import StagedTimeline
from infercast.serve.state import EMPTY, TELL_EVERY, Progress, State, Watcher
from infercast.serve.step import StepTimer
from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Workload
from infercast.serve.workload.source import Source

TURNS_APART = 16
"""Turns that are taken with sequences as objects before the fast loop is tried (again)."""

Observer = Callable[[Scheduler, Plan], None]


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine: what its steps cost, what bounds them and how much it can remember."""

    timer: StepTimer
    limits: Limits
    num_blocks: int
    kv_shape: KvShape = field(default_factory=KvShape)
    prefix_caching: bool = True
    sparse_windows: bool = False
    """As for `KvCache`."""
    steps_under_way: int = 2
    """2: the next step is planned while one runs (asynchronous scheduling); 1: one after the other."""
    request_path_seconds: float = 0.0
    """From the client's call to the engine's queue."""
    request_token_seconds: float = 0.0
    """What each token of the prompt adds to that."""
    token_path_seconds: float = 0.0
    """From a result that the engine has taken in to the client ..."""
    token_turn_seconds: float = 0.0
    """... and what each token that a step produces adds to it."""
    wake_up_seconds: float = 0.0
    """What an engine without work needs to notice a request; whatever comes meanwhile is seen with it."""
    first_uses: FirstUses | None = None
    """What the engine has met since its start, which a run adds to; None: it has met everything."""
    max_model_len: int | None = None
    stages: tuple[float, ...] | None = None
    """A pipeline: the share of a step's GPU time that each stage takes."""
    launch_spread: float = 0.0
    """How much launching a step with prompts varies, as in `infercast.serve.conditions.LAUNCH_SPREAD`."""
    settle_seconds: float = 0.0
    """How fast the GPU's clock follows what is drawn; 0: every step finds it as the first one does."""
    stages_in_turn: bool = False
    """Whether the stages of a pipeline never work on two steps at the same time."""


def simulate(
    replica: Replica,
    workload: Workload,
    *,
    jump: bool = True,
    observe: Observer | None = None,
    progress: Progress | None = None,
    watch: Watcher | None = None,
) -> Record:
    """Serve a workload and record what every request saw.

    With ``jump``, stretches in which nothing but decoding happens are computed at once; the result is the same to
    the last bit. ``observe`` is called after each step is planned, which needs ``jump=False``; ``watch`` is told of
    the steps as they come, in stretches where the clock jumps.
    """
    check_workload(replica, workload)
    clients = Clients(workload, replica.request_path_seconds, replica.request_token_seconds)
    record = new_record(replica, len(workload.requests))
    with no_garbage():
        for _ in turns(replica, clients, record, jump=jump, observe=observe, progress=progress, watch=watch):
            pass
    return record


def new_record(replica: Replica, num_requests: int) -> Record:
    """An empty record of a run on this engine."""
    return Record(num_requests, replica.num_blocks, replica.token_path_seconds, replica.token_turn_seconds)


def turns(
    replica: Replica,
    clients: Source,
    record: Record,
    *,
    jump: bool = True,
    observe: Observer | None = None,
    progress: Progress | None = None,
    watch: Watcher | None = None,
) -> Iterator[float]:
    """The loop of one engine, turn by turn: the clock before each, and an end when no client will send again.

    Whoever drives several engines gives the next turn to the one whose clock is furthest behind.
    """
    cache = KvCache(
        replica.num_blocks,
        replica.kv_shape,
        caching=replica.prefix_caching,
        sparse_windows=replica.sparse_windows,
    )
    state = State(
        Scheduler(replica.limits, cache, replica.steps_under_way),
        clients,
        record,
        replica.timer,
        replica.steps_under_way,
        replica.first_uses,
        watch,
        Conditions(replica.settle_seconds, replica.launch_spread),
    )
    if replica.stages is not None:
        state.timeline = StagedTimeline(replica.stages, in_turn=replica.stages_in_turn)
    # With several batches under way, or prompts before everything, no stretch belongs to decoding alone.
    jump = jump and replica.steps_under_way <= 2 and replica.stages is None and not replica.limits.prompts_first
    scheduler = state.scheduler
    while True:
        yield state.timeline.clock
        arrival = _take_in(state, progress)
        if jump and (state.convoy is not None or gather(state)):
            if state.turns_apart > TURNS_APART and cruise(state, progress):
                continue
            state.turns_apart += 1
            if coast(state):
                continue
            planned = plan_beside(state)
        else:
            planned = plan_step(state)
        if planned is not None:
            state.start(*planned)
            if observe is not None:
                observe(scheduler, planned[0])
        is_started = planned is not None or _keep_pace(state, replica)
        if is_started and len(state.under_way) < replica.steps_under_way:
            continue
        if state.under_way:
            state.finish()
        elif arrival is not None:
            state.timeline.sleep_until(arrival + replica.wake_up_seconds)
        else:
            record.close(scheduler)
            return


def _keep_pace(state: State, replica: Replica) -> bool:
    """Where a pipeline has requests but can compute none, an empty step takes its place all the same."""
    if replica.stages is None or not (state.scheduler.running or state.scheduler.waiting):
        return False
    state.under_way.append(EMPTY)
    return True


def _take_in(state: State, progress: Progress | None) -> float | None:
    """Queue the requests that have arrived; returns when the next one will."""
    clients = state.clients
    while (arrival := clients.next_arrival) is not None and arrival <= state.timeline.clock:
        index, request, sent = clients.pop()
        state.scheduler.add(index, request)
        state.record.sent(index, sent)
        if progress is not None and index % TELL_EVERY == 0:
            progress(index, state.timeline.clock)
    return arrival


@contextmanager
def no_garbage() -> Iterator[None]:
    """Keep Python from looking for unreachable cycles: a run makes none, and looking takes a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_workload(replica: Replica, workload: Workload) -> None:
    """Refuse what the engine would refuse, before the first step."""
    if not workload.requests:
        raise InputError("the workload has no requests")
    longest = replica.max_model_len or replica.num_blocks * replica.kv_shape.block_size
    budget = replica.limits.max_num_batched_tokens
    held = budget * (replica.steps_under_way if replica.limits.settles else 1)
    inputs = [request.num_input for request in workload.requests]
    outputs = [request.num_output for request in workload.requests]
    most = max(map(add, inputs, outputs))
    fits = replica.kv_shape.most_blocks(most - 1, held) <= replica.num_blocks
    in_one_step = replica.limits.chunked_prefill or most - 1 <= budget
    if min(inputs) >= 1 and min(outputs) >= 1 and most <= longest and fits and in_one_step:
        return  # what holds for the longest holds for all
    for index, request in enumerate(workload.requests):
        if request.num_input < 1 or request.num_output < 1:
            raise InputError(
                f"request {index} has {request.num_input} input and {request.num_output} output tokens; "
                "both must be at least 1"
            )
        if request.num_input + request.num_output > longest:
            raise InputError(
                f"request {index} needs {request.num_input} input + {request.num_output} output tokens, "
                f"above max_model_len {longest}; shorten it or raise max_model_len"
            )
        computed = request.num_input + request.num_output - 1  # nothing is computed on the last token
        if (needed := replica.kv_shape.most_blocks(computed, held)) > replica.num_blocks:
            raise InputError(
                f"request {index} needs {needed} KV blocks for its {request.num_input} input + {request.num_output} "
                f"output tokens, above the {replica.num_blocks} there are; shorten it or give the cache more memory"
            )
        # After a preemption the tokens sampled so far are computed again together with the prompt.
        if computed > budget and not replica.limits.chunked_prefill:
            raise InputError(
                f"request {index} may compute {computed} tokens in one step, above max_num_batched_tokens {budget}; "
                "shorten it, raise max_num_batched_tokens or enable chunked prefill"
            )
