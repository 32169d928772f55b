from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from infercast.serve.cache.blocks import BlockAllocation, KvShape
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import FcfsPolicy, Plan, Sequence
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepShape
from infercast.serve.workload.request import Request, Segment


def scheduler_of(
    *requests: Request,
    budget: int = 100,
    max_num_seqs: int = 8,
    threshold: int = 0,
    chunked: bool = True,
    num_blocks: int = 100,
    caching: bool = True,
    steps_under_way: int = 1,
) -> Scheduler:
    """Blocks of four tokens, and these requests in the queue."""
    limits = FcfsPolicy(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=threshold,
        chunked_prefill=chunked,
    )
    scheduler = Scheduler(limits, KvCache(num_blocks, KvShape(4), caching=caching), steps_under_way)
    for index, request in enumerate(requests):
        scheduler.add(index, request)
    return scheduler


def ask(num_input: int, num_output: int, *prefix: tuple[int, int]) -> Request:
    return Request(0.0, num_input, num_output, tuple(Segment(content, num_tokens) for content, num_tokens in prefix))


@dataclass
class Step:
    """A step that was handed to the GPU, and all who are in it, in order."""

    plan: Plan
    sequences: list[Sequence]
    new_tokens: list[int]
    computed: list[int]

    @property
    def tokens(self) -> dict[int, int]:
        """New tokens of each sequence."""
        return {sequence.index: new for sequence, new in zip(self.sequences, self.new_tokens, strict=True)}


def planned(scheduler: Scheduler) -> Step:
    plan = scheduler.plan()
    assert plan is not None
    together = [*scheduler.cohort.members] if plan.decodes else []
    shape = plan.shape
    step = Step(plan, together + plan.sequences, [*shape.new_tokens], [*shape.computed])
    scheduler.start(plan)
    return step


def tokens(step: Step) -> dict[int, int]:
    return step.tokens


def run(scheduler: Scheduler, steps: int) -> list[dict[int, int]]:
    """Steps one after the other."""
    plans = []
    for _ in range(steps):
        step = planned(scheduler)
        plans.append(step.tokens)
        scheduler.complete(step.plan)
    return plans


def indices(sequences: Iterable[Sequence]) -> list[int]:
    return [sequence.index for sequence in sequences]


def test_a_prompt_and_its_answer() -> None:
    # Three tokens: one from the prompt, two more from single tokens; nothing is computed on the last.
    scheduler = scheduler_of(ask(10, 3))
    assert run(scheduler, 3) == [{0: 10}, {0: 1}, {0: 1}]
    assert scheduler.plan() is None
    assert not scheduler.running
    assert not scheduler.waiting


def test_the_shape_of_a_step() -> None:
    scheduler = scheduler_of(ask(10, 3), ask(30, 2), budget=21)
    run(scheduler, 1)  # 10 tokens of the first and 11 of the second
    plan = scheduler.plan()
    assert plan is not None
    shape = plan.shape
    assert isinstance(shape, StepShape)
    assert (shape.new_tokens, shape.computed, shape.num_sampled) == ([1, 19], [10, 11], 2)
    assert (plan.decodes, plan.decode_context, indices(plan.sequences)) == (1, 10, [1])


def test_an_output_of_one_token_is_done_after_its_prompt() -> None:
    scheduler = scheduler_of(ask(5, 1), steps_under_way=2)
    plan = planned(scheduler)
    assert scheduler.plan() is None  # its only token is under way
    assert indices(scheduler.complete(plan.plan)) == [0]
    assert scheduler.cache.num_free == 100


def test_a_long_prompt_is_cut_to_the_budget() -> None:
    scheduler = scheduler_of(ask(25, 2), budget=10)
    assert run(scheduler, 4) == [{0: 10}, {0: 10}, {0: 5}, {0: 1}]


def test_only_the_last_part_of_a_prompt_samples_a_token() -> None:
    scheduler = scheduler_of(ask(25, 2), budget=10, steps_under_way=2)
    assert [indices(planned(scheduler).plan.sampled) for _ in range(3)] == [[], [], [0]]


def test_what_is_left_of_the_budget_goes_to_the_next_prompt() -> None:
    scheduler = scheduler_of(ask(7, 2), ask(12, 2), budget=10)
    assert run(scheduler, 3) == [{0: 7, 1: 3}, {0: 1, 1: 9}, {1: 1}]


def test_running_sequences_come_before_those_who_wait() -> None:
    scheduler = scheduler_of(ask(4, 5), ask(20, 1), budget=8)
    run(scheduler, 1)  # 4 and 4
    scheduler.add(2, ask(3, 1))
    # One token and 7 more of the second prompt; the newcomer gets nothing before the budget has something left.
    assert run(scheduler, 3) == [{0: 1, 1: 7}, {0: 1, 1: 7}, {0: 1, 1: 2, 2: 3}]


def test_no_prompt_gets_more_than_the_threshold_a_step() -> None:
    scheduler = scheduler_of(ask(25, 2), ask(5, 2), budget=30, threshold=8)
    assert run(scheduler, 4) == [{0: 8, 1: 5}, {0: 8, 1: 1}, {0: 8}, {0: 1}]


def test_no_more_sequences_than_allowed() -> None:
    scheduler = scheduler_of(ask(3, 2), ask(3, 1), ask(3, 1), max_num_seqs=2)
    assert run(scheduler, 2) == [{0: 3, 1: 3}, {0: 1, 2: 3}]


def test_a_place_is_free_once_its_last_token_is_there() -> None:
    # With a second step planned ahead, the finished sequence still counts: its last token is under way.
    scheduler = scheduler_of(ask(3, 1), ask(3, 1), max_num_seqs=1, steps_under_way=2)
    plan = planned(scheduler)
    assert scheduler.plan() is None
    scheduler.complete(plan.plan)
    assert tokens(planned(scheduler)) == {1: 3}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_all_of_it() -> None:
    scheduler = scheduler_of(ask(7, 2), ask(8, 1), ask(1, 1), budget=9, chunked=False)
    # The third would fit beside the first, but nobody overtakes.
    assert run(scheduler, 3) == [{0: 7}, {0: 1, 1: 8}, {2: 1}]


def test_without_chunked_prefill_a_threshold_still_cuts_prompts() -> None:
    scheduler = scheduler_of(ask(7, 2), ask(8, 1), budget=9, threshold=2, chunked=False)
    assert run(scheduler, 2) == [{0: 2, 1: 2}, {0: 2, 1: 2}]


def test_a_step_planned_ahead_counts_on_the_tokens_under_way() -> None:
    scheduler = scheduler_of(ask(6, 3), steps_under_way=2)
    first, second, third = (planned(scheduler) for _ in range(3))
    assert [first.computed, second.computed, third.computed] == [[0], [6], [7]]
    assert scheduler.plan() is None
    assert [indices(scheduler.complete(plan.plan)) for plan in (first, second, third)] == [[], [], [0]]


def test_the_last_running_sequence_gives_way() -> None:
    # Prompts of 4 fill the three blocks; the first one's next token needs another.
    scheduler = scheduler_of(ask(4, 9), ask(4, 9), ask(4, 9), num_blocks=3, caching=False)
    run(scheduler, 1)
    plan = planned(scheduler)
    # The third gives its block to the first; then the second finds none and, being the last now, gives way itself.
    assert tokens(plan) == {0: 1}
    assert plan.plan.num_preempted == 2
    assert indices(scheduler.running) == [0]


def test_the_preempted_go_to_the_front_of_the_queue() -> None:
    scheduler = scheduler_of(ask(4, 9), ask(4, 9), ask(4, 9), num_blocks=3, caching=False)
    run(scheduler, 1)
    scheduler.add(3, ask(1, 1))
    planned(scheduler)
    assert indices(scheduler.waiting) == [1, 2, 3]
    assert scheduler.num_preemptions == 2


def test_nobody_is_admitted_in_a_step_with_a_preemption() -> None:
    # The second, whose only token is under way, gives up two blocks for one that the first needs. The newcomer could
    # have the other one at once, but gets it a step later.
    scheduler = scheduler_of(ask(4, 3), ask(5, 1), num_blocks=3, caching=False, steps_under_way=2)
    first = planned(scheduler)
    scheduler.add(2, ask(1, 1))
    assert tokens(planned(scheduler)) == {0: 1}
    assert scheduler.cache.num_free == 1
    scheduler.complete(first.plan)
    assert tokens(planned(scheduler)) == {0: 1, 2: 1}


def test_the_preempted_compute_everything_again() -> None:
    # The second holds two blocks with 5 tokens, gives way, and comes back with its sampled token: 6 tokens.
    scheduler = scheduler_of(ask(4, 3), ask(5, 3), num_blocks=3, caching=False)
    assert run(scheduler, 5) == [{0: 4, 1: 5}, {0: 1}, {0: 1}, {1: 6}, {1: 1}]


def test_the_preempted_find_their_own_blocks_again() -> None:
    # As above, but the first block of the second is still cached when it comes back (the first only took its other
    # one), so 2 of 6 tokens are left to compute.
    scheduler = scheduler_of(ask(4, 3), ask(5, 3), num_blocks=3)
    assert run(scheduler, 5) == [{0: 4, 1: 5}, {0: 1}, {0: 1}, {1: 2}, {1: 1}]


def test_a_preempted_sequence_keeps_the_token_that_was_under_way() -> None:
    # Both prompts are under way when the next step is planned: the first needs a block and the second gives way.
    scheduler = scheduler_of(ask(4, 2), ask(4, 3), num_blocks=2, caching=False, steps_under_way=2)
    first = planned(scheduler)
    second = planned(scheduler)
    assert tokens(second) == {0: 1}
    scheduler.complete(first.plan)
    scheduler.complete(second.plan)
    assert [sequence.num_produced for sequence in scheduler.waiting] == [1]
    assert run(scheduler, 2) == [{1: 5}, {1: 1}]


def test_a_sequence_whose_last_token_is_under_way_is_not_computed_again() -> None:
    # The second needs no more than the token that is under way when it has to give its block away.
    scheduler = scheduler_of(ask(4, 2), ask(4, 1), num_blocks=2, caching=False, steps_under_way=2)
    first = planned(scheduler)
    second = planned(scheduler)
    assert (tokens(second), second.plan.num_preempted) == ({0: 1}, 1)
    assert indices(scheduler.waiting) == [1]  # in the queue until its token is there
    assert indices(scheduler.complete(first.plan)) == [1]
    assert indices(scheduler.complete(second.plan)) == [0]
    assert scheduler.cache.num_free == 2
    assert not scheduler.running
    assert not scheduler.waiting


def test_a_prefix_is_found_while_it_is_still_being_computed() -> None:
    scheduler = scheduler_of(ask(10, 1, (1, 8)), ask(12, 1, (1, 8)))
    plan = planned(scheduler)
    assert tokens(plan) == {0: 10, 1: 4}
    assert plan.computed == [0, 8]
    assert [sequence.num_cached for sequence in plan.plan.started] == [0, 8]


def test_a_prefix_is_found_only_as_far_as_this_step_computes_it() -> None:
    # The budget of 13 pays for 10 tokens of the first; the second finds 8 of them and gets the other 3.
    scheduler = scheduler_of(ask(10, 1, (1, 8)), ask(12, 1, (1, 8)), budget=13)
    assert run(scheduler, 2) == [{0: 10, 1: 3}, {1: 1}]


def test_a_finished_requests_prefix_is_found_later() -> None:
    scheduler = scheduler_of(ask(10, 1, (1, 8)))
    run(scheduler, 1)
    scheduler.add(1, ask(9, 1, (1, 8)))
    assert run(scheduler, 1) == [{1: 1}]


def test_a_prompt_that_does_not_fit_now_holds_up_those_behind_it() -> None:
    # Two of three blocks are free; the second prompt needs three blocks in all, the third only one.
    scheduler = scheduler_of(ask(4, 1), ask(12, 1), ask(1, 1), num_blocks=3, budget=8)
    assert run(scheduler, 3) == [{0: 4}, {1: 8}, {1: 4}]


def test_six_steps_at_once_are_six_steps() -> None:
    stepped, jumped = (scheduler_of(ask(6, 9), ask(3, 12)) for _ in range(2))
    run(stepped, 7)
    run(jumped, 1)
    plan = jumped.plan()
    assert plan is not None
    assert jumped.most_steps(plan) == 8
    assert len(jumped.start(plan, 6)) == 6
    assert jumped.complete(plan) == []
    for scheduler in (stepped, jumped):
        for member in [*scheduler.cohort.members]:
            scheduler.cohort.leave(member)
    for one, other in zip(jumped.running, stepped.running, strict=True):
        for name in ("num_tokens", "num_computed", "num_promised", "num_produced", "length", "named"):
            assert getattr(one, name) == getattr(other, name)
    assert jumped.cache.num_free == stepped.cache.num_free


def test_a_cohort_knows_when_somebody_has_all_tokens() -> None:
    scheduler = scheduler_of(ask(6, 4), ask(3, 12))
    run(scheduler, 1)
    cohort = scheduler.cohort
    assert (cohort.steps_left(), cohort.contexts(), cohort.computed) == (3, [6, 3], 9)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.start(plan, 3) == [3, 4, 5]  # the first has blocks for eight tokens, the second for four
    assert indices(plan.ending) == [0]
    assert (indices(cohort.members), cohort.steps_left(), cohort.contexts()) == ([1], 8, [6])


def test_a_cohort_takes_no_more_blocks_than_there_are() -> None:
    scheduler = scheduler_of(ask(4, 20), num_blocks=2)
    run(scheduler, 1)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.cohort.steps_with_room(9) == 3  # after the one that is planned
    assert scheduler.start(plan, 10) == [2, 2, 2, 2]
    assert scheduler.cache.num_free == 0


@pytest.mark.parametrize(("max_num_seqs", "steps"), [(2, 8), (3, 1)])
def test_a_step_is_not_repeated_where_somebody_could_start(max_num_seqs: int, steps: int) -> None:
    scheduler = scheduler_of(ask(6, 9), ask(3, 12), max_num_seqs=max_num_seqs)
    run(scheduler, 1)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.most_steps(plan) == 8
    scheduler.add(2, ask(5, 5))
    assert scheduler.most_steps(plan) == steps


def test_who_decodes_alone_with_others_keeps_the_order_in_which_they_started() -> None:
    # The first is still computing its prompt when the second decodes, so nobody is counted together with others.
    scheduler = scheduler_of(ask(30, 4), ask(2, 9), budget=10, threshold=7)
    assert run(scheduler, 6) == [{0: 7, 1: 2}, {0: 7, 1: 1}, {0: 7, 1: 1}, {0: 7, 1: 1}, {0: 2, 1: 1}, {0: 1, 1: 1}]
    assert indices(scheduler.cohort.members) == [0, 1]


def conversation() -> tuple[Request, Request]:
    """A prompt of 6 tokens with an answer of 6, and the next prompt, which goes on with both."""
    first = Request(0.0, 6, 6, (Segment(1, 6),), answer=2)
    return first, Request(0.0, 15, 1, (Segment(1, 6), Segment(2, 6), Segment(3, 3)))


def found(scheduler: Scheduler, request: Request) -> int:
    """Tokens of a prompt that a newcomer would find."""
    cache = scheduler.cache
    return cache.longest_prefix(
        BlockAllocation(99, cache.path(request), request.num_input, cache.num_groups), request.num_input
    )


def first_running(scheduler: Scheduler) -> Sequence:
    return next(iter(scheduler.running))


def test_the_next_prompt_of_a_conversation_finds_the_answer() -> None:
    # 11 of the 12 tokens were computed, nothing is computed on the last: two full blocks.
    first, second = conversation()
    scheduler = scheduler_of(first)
    run(scheduler, 6)
    scheduler.add(1, second)
    assert tokens(planned(scheduler)) == {1: 7}


def test_another_answer_is_not_found() -> None:
    first, second = conversation()
    scheduler = scheduler_of(Request(0.0, 6, 6, first.prefix, answer=9))
    run(scheduler, 6)
    scheduler.add(1, second)
    assert tokens(planned(scheduler)) == {1: 11}  # the first block lies in the prompt


def test_a_block_of_an_answer_is_found_when_its_last_token_is_known() -> None:
    # Token 7, the last one of the second block, is sampled by the second step and computed by the third.
    first, second = conversation()
    scheduler = scheduler_of(first, steps_under_way=2)
    plans = [planned(scheduler), planned(scheduler)]
    scheduler.complete(plans[0].plan)
    plans.append(planned(scheduler))
    assert scheduler.cohort.contexts() == [8]
    assert found(scheduler, second) == 4
    scheduler.complete(plans[1].plan)
    planned(scheduler)
    assert found(scheduler, second) == 8


@pytest.mark.parametrize(("spares", "alone"), [(False, 4), (True, 10)])
def test_a_threshold_may_spare_a_request_that_is_alone(spares: bool, alone: int) -> None:
    limits = FcfsPolicy(
        max_num_batched_tokens=64,
        max_num_seqs=8,
        long_prefill_token_threshold=4,
        threshold_exempts_single_request=spares,
    )
    scheduler = Scheduler(limits, KvCache(100, KvShape(4)))
    scheduler.add(0, ask(10, 5))
    assert tokens(planned(scheduler)) == {0: alone}
    for index in (1, 2):
        scheduler.add(index, ask(10, 1))
    assert tokens(planned(scheduler))[2] == 4


def test_windows_may_move_on_by_processed_tokens() -> None:
    # With a window of 5, token 8 looks at nothing before token 4; the step that computes the prompt still does.
    limits = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8, frees_on_completion=True)
    scheduler = Scheduler(limits, KvCache(100, KvShape(4, (5,))))
    scheduler.add(0, ask(8, 3))
    first = planned(scheduler)
    planned(scheduler)
    assert first_running(scheduler).first == [0]
    scheduler.complete(first.plan)
    planned(scheduler)
    assert first_running(scheduler).first == [1]


def test_a_sequence_may_skip_the_steps_in_between() -> None:
    scheduler = Scheduler(
        FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8, decode_stride=3),
        KvCache(100, KvShape(4)),
        steps_under_way=4,
    )
    scheduler.add(0, ask(4, 5))
    steps = []
    for _ in range(4):
        plan = scheduler.plan()
        steps.append(plan is not None)
        if plan is not None:
            scheduler.start(plan)
    assert steps == [True, False, False, True]
