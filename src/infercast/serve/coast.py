"""Clock jumping: while sequences decode in step, many steps are computed at once.

Between two events (an arrival, a finished sequence, a KV cache that runs full) the same sequences compute one token
each, step after step. Such a stretch is priced as a whole and the clock jumps to its end; prompts that come in are
planned beside the convoy. Every number comes out as if the steps had been planned one by one: the same additions are
made in the same order. Where sequences do not go in step (blocks run out, one token budget for too many), the convoy
is dissolved and the scheduler plans for each of them, until they do again.
"""

from __future__ import annotations

from infercast.serve.convoy import Convoy
from infercast.serve.scheduler.scheduler import Plan, Sequence
from infercast.serve.state import Flight, State
from infercast.serve.step import GroupShape, StepEstimate, StepShape

Planned = tuple[Plan, StepShape, StepEstimate, list[Sequence], list[Sequence]]
"""A step to start: what it computes and costs, and whom its end concerns, as in `Flight`."""

MOST_STEPS = 512
"""Steps priced at once where nothing tells when the next request comes."""


def plan_step(state: State) -> Planned | None:
    """Plan a step for each sequence by itself."""
    plan = state.scheduler.schedule()
    if plan is None:
        return None
    shape = plan.shape
    return plan, shape, state.timer(shape), plan.sampled, []


def gather(state: State) -> bool:
    """Let the running sequences decode in step, if they are ready for it."""
    scheduler, last_end, under_way = state.scheduler, state.record.last_end, state.under_way
    sampled = {sequence for flight in under_way for sequence in flight.first}
    if len(under_way) > 1 or not sampled.issubset(scheduler.running):
        return False
    decoding: list[Sequence] = []
    prompts: list[Sequence] = []
    for sequence in scheduler.running:
        if sequence.num_tokens > sequence.num_computed:
            is_steady = sequence in sampled if under_way else sequence.last_token == last_end
            (decoding if is_steady else prompts).append(sequence)
        elif sequence not in sampled:
            return False
    if len(prompts) > 1 or (prompts and scheduler.running[-1] is not prompts[0]):
        return False
    if under_way:
        done = [each for each in under_way[0].first if each.num_produced + 1 == each.request.num_output]
        under_way[0] = under_way[0]._replace(done=done)
    convoy = Convoy(scheduler.cache, state.steps_under_way, settles=scheduler.settles)
    state.convoy, state.prompts, state.is_blocked = convoy, prompts, False
    scheduler.stop_counting()
    state.convoy.join(decoding)
    return True


def coast(state: State) -> bool:
    """Jump over steps of nothing but decoding; False if the next step is not one."""
    convoy, record, under_way = state.convoy, state.record, state.under_way
    assert convoy is not None
    count, num_before = len(convoy.members), len(under_way)
    if not count or not state.is_alone():
        return False
    shape = GroupShape(count, convoy.computed, convoy.contexts)
    if state.first_uses is not None and not state.first_uses.knows(shape):
        return False
    arrival, places = state.clients.next_arrival, state.steps_under_way
    estimate = state.timer(shape, _most_steps(state, convoy.steps_left(), arrival))
    seconds, ends, clocks, taken_in = state.timeline.run_ahead(
        estimate.host, estimate.gpu_seconds, under_way, places, arrival
    )
    # Who ends with the step under way gives its blocks back when the first of the steps ahead has taken its own.
    ending = num_before == places - 1 > 0 and bool(under_way[0].done)
    held = convoy.grow(1 if ending else len(seconds))
    if not held:
        return False
    if ending:
        convoy.name_answers(convoy.steps + 1)
        state.take_in(under_way.popleft(), taken_in[0])
        held += convoy.grow(len(seconds) - 1, 1)
    if missing := len(seconds) - len(held):
        seconds, ends, clocks = seconds[:-missing], ends[:-missing], clocks[:-missing]
        taken_in = taken_in[: max(0, len(taken_in) - missing)]
    record.decoding.add(shape, estimate, seconds, len(state.scheduler.waiting), held)
    if state.watch is not None:
        state.watch.stretch(shape, estimate, ends, held)
    state.timeline.jump(clocks[-1], ends[-1])
    state.step_seconds = seconds[-1]
    if num_before and not ending and taken_in:
        state.take_in(under_way.popleft(), taken_in[0])
    done = convoy.advance(len(held))
    last = Flight(ends[-1], estimate.host.process, count, (), done)
    if places > 1:
        record.steady_tokens(count, taken_in[num_before:])
        under_way.append(last)
    else:  # the last one has been taken in too
        record.steady_tokens(count, taken_in[:-1])
        state.take_in(last, taken_in[-1])
    if done:
        state.is_blocked = False
    return True


def _most_steps(state: State, steps_left: int, arrival: float | None) -> int:
    """Steps until somebody has all tokens, or so; until the next request comes, by the length of the last step."""
    steps = steps_left if steps_left < MOST_STEPS else MOST_STEPS
    if arrival is not None:
        free = arrival - state.timeline.clock
        coming = 2 + int(1.1 * free / (state.step_seconds or 1e-6)) if free > 0.0 else 2
        steps = coming if coming < steps else steps
    for flight in state.under_way:
        if flight.done:
            turns = state.steps_under_way - len(state.under_way)
            # Somebody may have waited for that end; otherwise it changes nothing that is planned.
            if turns > 1 or state.scheduler.waiting or state.clients.wait_for_answers:
                return min(steps, turns)
    return steps


def plan_beside(state: State) -> Planned | None:
    """Plan one step of the convoy and of a prompt beside it; None if there is nothing to compute."""
    convoy, scheduler = state.convoy, state.scheduler
    assert convoy is not None
    plan, count = Plan(), len(convoy.members)
    if not _have_room(state):
        return _plan_apart(state)
    convoy.name_answers(convoy.steps + 1)
    budget = scheduler.limits.max_num_batched_tokens - count
    for prompt in state.prompts:
        new_tokens = scheduler.chunk(prompt.num_tokens - prompt.num_computed, budget)
        if new_tokens:
            if convoy.is_windowed:
                scheduler.cache.slide(prompt.holding, prompt.num_computed - prompt.num_under_way)
            prompt.num_under_way = 0
            if prompt.num_computed + new_tokens > prompt.holding.capacity:
                scheduler.cache.grow(prompt.holding, prompt.num_computed, new_tokens)
            scheduler.put(plan, prompt, new_tokens)
            budget -= new_tokens
        else:
            prompt.num_under_way = 0
    if scheduler.waiting:
        scheduler.schedule_waiting(plan, budget)
    if not count and not plan.sequences:
        return None
    first = plan.sampled
    beside = [*zip(plan.new_tokens, plan.computed, strict=True)]
    shape = GroupShape(count, convoy.computed, convoy.contexts, beside, len(first))
    estimate = state.timer(shape)
    done = convoy.advance(1)
    changes = plan.sequences or done or convoy.is_windowed or convoy.names_answers
    state.is_blocked = bool(scheduler.waiting) and not changes
    convoy.join([each for each in first if each.num_promised < each.request.num_output])
    done += [each for each in first if each.num_promised == each.request.num_output]
    if plan.sequences:
        state.prompts = [each for each in plan.sequences if each not in first]
    return plan, shape, estimate, first, done


def _have_room(state: State) -> bool:
    """Take the blocks that the members need in the next step, if there are tokens and blocks for all."""
    convoy, scheduler, cache = state.convoy, state.scheduler, state.scheduler.cache
    assert convoy is not None
    budget = scheduler.limits.max_num_batched_tokens - len(convoy.members)
    if budget < 0 or len(state.prompts) > 1:
        return False
    for prompt in state.prompts:
        reached = prompt.num_computed + scheduler.chunk(prompt.num_tokens - prompt.num_computed, budget)
        missing = sum(cache.shape.blocks_for(reached) - table.length for table in prompt.holding.tables)
        if convoy.blocks_needed(1)[0] + missing > cache.num_free or scheduler.running[-1] is not prompt:
            return False
    return not convoy.members or bool(convoy.grow(1))


def _plan_apart(state: State) -> Planned | None:
    """Dissolve the convoy and plan for each sequence."""
    assert state.convoy is not None
    under_way, scheduler = state.under_way, state.scheduler
    first, done = (under_way[0].first, under_way[0].done) if under_way else ((), ())
    sampled = {*state.convoy.dissolve(len(under_way), first, done, state.record.last_end)}
    if under_way:
        in_order = [sequence for sequence in scheduler.running if sequence in sampled]
        under_way[0] = under_way[0]._replace(first=in_order, done=())
        scheduler.go_on_counting([*in_order, *state.prompts])
    state.convoy, state.prompts = None, []
    return plan_step(state)
