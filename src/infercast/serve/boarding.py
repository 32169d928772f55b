"""Into the fast loop and out of it: sequences as objects become whole numbers, and objects again."""

from __future__ import annotations

from math import isnan

from infercast.serve.convoy import Convoy
from infercast.serve.cruise import Cruise, Step
from infercast.serve.scheduler.scheduler import Sequence
from infercast.serve.state import Flight, Progress, State
from infercast.serve.workload.clients import Clients


def cruise(state: State, progress: Progress | None) -> bool:
    """Take turns in the fast loop, if it is there for such an engine and such requests; False if not."""
    engine = _board(state, progress)
    if engine is None:
        return False
    turns = engine.steps
    engine.run()
    _leave(engine)
    state.turns_apart = 0
    return engine.steps > turns


def _board(state: State, progress: Progress | None) -> Cruise | None:
    """The engine as the fast loop sees it, or None where something is not plain."""
    scheduler, convoy, clients = state.scheduler, state.convoy, state.clients
    limits, shape = scheduler.limits, scheduler.cache.shape
    is_plain = (
        isinstance(clients, Clients)
        and clients.share_nothing
        and state.watch is None
        and state.first_uses is None
        and state.steps_under_way == 2
        and len(state.under_way) == 1
        and limits.chunked_prefill
        and not limits.long_prefill_token_threshold
        and not any(shape.windows)
        and not any(sequence.holding.left_behind for sequence in (*scheduler.running, *scheduler.waiting))
    )
    if not is_plain or convoy is None:
        return None
    assert isinstance(clients, Clients)
    (flight,) = state.under_way
    newcomers = [sequence for sequence in flight.first if sequence.last_token != state.record.last_end]
    if any(not isnan(sequence.last_token) for sequence in newcomers):
        return None  # somebody had to wait in the middle of an answer
    first, done = ([sequence.index for sequence in some] for some in (newcomers, flight.done))
    engine = Cruise(state, clients, Step(flight.end, flight.process, flight.num_sampled, first, done), progress)
    engine.steps = convoy.steps
    for member, computed in zip(convoy.members, convoy.contexts(), strict=True):
        engine.join(member.index, computed, computed - member.request.num_input + 1)
    engine.waiting.extend(sequence.index for sequence in scheduler.waiting)
    for sequence in state.prompts:
        engine.prompt = (sequence.index, sequence.num_computed)
    return engine


def _leave(engine: Cruise) -> None:
    """Write everything back to where the scheduler finds it."""
    state, step, inputs = engine.state, engine.step, engine.inputs
    scheduler = state.scheduler
    members = {index: offset + engine.steps for index, offset in engine.members.items()}
    done = {index: inputs[index] + engine.outputs[index] - 1 for index in step.done}
    prompts = dict([engine.prompt] if engine.prompt else [])
    running = {index: _sequence(engine, index, computed) for index, computed in {**members, **done, **prompts}.items()}
    scheduler.running = [running[index] for index in sorted(running)]  # who came first, runs first
    scheduler.waiting.clear()
    scheduler.waiting.extend(_sequence(engine, index, 0) for index in engine.waiting)
    state.prompts = [running[index] for index in prompts]
    state.convoy = Convoy(scheduler.cache, state.steps_under_way)
    state.convoy.join([running[index] for index in members])
    first = [running[index] for index in step.first]
    state.under_way.clear()
    state.under_way.append(Flight(step.end, step.process, step.num_sampled, first, [running[each] for each in done]))
    state.timeline.jump(engine.clock, engine.gpu_free)


def _sequence(engine: Cruise, index: int, computed: int) -> Sequence:
    """A sequence that has computed so many tokens and is not without its last one."""
    cache, num_input, num_output = engine.state.scheduler.cache, engine.inputs[index], engine.outputs[index]
    request = engine.clients.request(index)
    promised = max(0, computed - num_input + 1)
    holding = cache.new_holding(index, request)
    cache.cover(holding, cache.shape.blocks_for(computed))
    # The value of the token that was computed last is not known yet, that of a prompt's last one is.
    cache.name_full_blocks(holding, computed if computed <= num_input else computed - 1)
    num_tokens = max(num_input, computed + (promised < num_output))
    return Sequence(index, request, holding, num_tokens, num_computed=computed, num_promised=promised)
