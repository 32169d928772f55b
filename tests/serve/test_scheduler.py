from __future__ import annotations

import pytest
from infercast.serve.convoy import Convoy

from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.cache.shape import KvShape
from infercast.serve.scheduler.policy import FirstCome
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.scheduler.sequence import Plan
from infercast.serve.workload.request import Request, Segment


def scheduler_of(
    *requests: Request,
    budget: int = 100,
    max_num_seqs: int = 8,
    threshold: int = 0,
    chunked: bool = True,
    num_blocks: int = 100,
    caching: bool = True,
) -> Scheduler:
    """Blocks of four tokens, and these requests in the queue."""
    limits = FirstCome(budget, max_num_seqs, threshold, chunked)
    scheduler = Scheduler(limits, KvCache(num_blocks, KvShape(4), caching=caching))
    for index, request in enumerate(requests):
        scheduler.add(index, request)
    return scheduler


def ask(num_input: int, num_output: int, *prefix: tuple[int, int]) -> Request:
    return Request(0.0, num_input, num_output, tuple(Segment(content, num_tokens) for content, num_tokens in prefix))


def planned(scheduler: Scheduler) -> Plan:
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def tokens(plan: Plan) -> dict[int, int]:
    """New tokens of each sequence, in the order of the plan."""
    return {sequence.index: new for sequence, new in zip(plan.sequences, plan.new_tokens, strict=True)}


def run(scheduler: Scheduler, steps: int) -> list[dict[int, int]]:
    """Steps one after the other."""
    plans = []
    for _ in range(steps):
        plan = planned(scheduler)
        plans.append(tokens(plan))
        scheduler.complete(plan.sampled)
    return plans


def indices(sequences: object) -> list[int]:
    return [sequence.index for sequence in sequences]  # type: ignore[attr-defined]


def test_a_prompt_and_its_answer() -> None:
    # Three tokens: one from the prompt, two more from single tokens; nothing is computed on the last.
    scheduler = scheduler_of(ask(10, 3))
    assert run(scheduler, 3) == [{0: 10}, {0: 1}, {0: 1}]
    assert scheduler.schedule() is None
    assert not scheduler.running
    assert not scheduler.waiting


def test_the_shape_of_a_step() -> None:
    scheduler = scheduler_of(ask(10, 3), ask(30, 2), budget=21)
    run(scheduler, 1)  # 10 tokens of the first and 11 of the second
    shape = planned(scheduler).shape
    assert (shape.new_tokens, shape.computed, shape.num_sampled) == ([1, 19], [10, 11], 2)


def test_an_output_of_one_token_is_done_after_its_prompt() -> None:
    scheduler = scheduler_of(ask(5, 1))
    plan = planned(scheduler)
    assert scheduler.schedule() is None  # its only token is under way
    assert indices(scheduler.complete(plan.sampled)) == [0]
    assert scheduler.cache.num_free == 100


def test_a_long_prompt_is_cut_to_the_budget() -> None:
    scheduler = scheduler_of(ask(25, 2), budget=10)
    assert run(scheduler, 4) == [{0: 10}, {0: 10}, {0: 5}, {0: 1}]


def test_only_the_last_part_of_a_prompt_samples_a_token() -> None:
    scheduler = scheduler_of(ask(25, 2), budget=10)
    assert [indices(planned(scheduler).sampled) for _ in range(3)] == [[], [], [0]]


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
    scheduler = scheduler_of(ask(3, 1), ask(3, 1), max_num_seqs=1)
    plan = planned(scheduler)
    assert scheduler.schedule() is None
    scheduler.complete(plan.sampled)
    assert tokens(planned(scheduler)) == {1: 3}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_all_of_it() -> None:
    scheduler = scheduler_of(ask(7, 2), ask(8, 1), ask(1, 1), budget=9, chunked=False)
    # The third would fit beside the first, but nobody overtakes.
    assert run(scheduler, 3) == [{0: 7}, {0: 1, 1: 8}, {2: 1}]


def test_without_chunked_prefill_a_threshold_still_cuts_prompts() -> None:
    scheduler = scheduler_of(ask(7, 2), ask(8, 1), budget=9, threshold=2, chunked=False)
    assert run(scheduler, 2) == [{0: 2, 1: 2}, {0: 2, 1: 2}]


def test_a_step_planned_ahead_counts_on_the_tokens_under_way() -> None:
    scheduler = scheduler_of(ask(6, 3))
    first, second, third = (planned(scheduler) for _ in range(3))
    assert [first.computed, second.computed, third.computed] == [[0], [6], [7]]
    assert scheduler.schedule() is None
    assert [indices(scheduler.complete(plan.sampled)) for plan in (first, second, third)] == [[], [], [0]]


def test_the_last_running_sequence_gives_way() -> None:
    # Prompts of 4 fill the three blocks; the first one's next token needs another.
    scheduler = scheduler_of(ask(4, 9), ask(4, 9), ask(4, 9), num_blocks=3, caching=False)
    run(scheduler, 1)
    plan = planned(scheduler)
    # The third gives its block to the first; then the second finds none and, being the last now, gives way itself.
    assert tokens(plan) == {0: 1}
    assert plan.num_preempted == 2
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
    scheduler = scheduler_of(ask(4, 3), ask(5, 1), num_blocks=3, caching=False)
    first = planned(scheduler)
    scheduler.add(2, ask(1, 1))
    assert tokens(planned(scheduler)) == {0: 1}
    assert scheduler.cache.num_free == 1
    scheduler.complete(first.sampled)
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
    scheduler = scheduler_of(ask(4, 2), ask(4, 3), num_blocks=2, caching=False)
    first = planned(scheduler)
    second = planned(scheduler)
    assert tokens(second) == {0: 1}
    scheduler.complete(first.sampled)
    scheduler.complete(second.sampled)
    assert [sequence.num_produced for sequence in scheduler.waiting] == [1]
    assert run(scheduler, 2) == [{1: 5}, {1: 1}]


def test_a_sequence_whose_last_token_is_under_way_is_not_computed_again() -> None:
    # The second needs no more than the token that is under way when it has to give its block away.
    scheduler = scheduler_of(ask(4, 2), ask(4, 1), num_blocks=2, caching=False)
    first = planned(scheduler)
    second = planned(scheduler)
    assert (tokens(second), second.num_preempted) == ({0: 1}, 1)
    assert indices(scheduler.waiting) == [1]  # in the queue until its token is there
    assert indices(scheduler.complete(first.sampled)) == [1]
    assert indices(scheduler.complete(second.sampled)) == [0]
    assert scheduler.cache.num_free == 2
    assert not scheduler.running
    assert not scheduler.waiting


def test_a_prefix_is_found_while_it_is_still_being_computed() -> None:
    scheduler = scheduler_of(ask(10, 1, (1, 8)), ask(12, 1, (1, 8)))
    plan = planned(scheduler)
    assert tokens(plan) == {0: 10, 1: 4}
    assert plan.computed == [0, 8]
    assert [sequence.num_cached for sequence in plan.started] == [0, 8]


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


def test_five_steps_of_a_convoy_are_five_steps_of_its_members() -> None:
    stepped, jumped = (scheduler_of(ask(6, 9), ask(3, 12)) for _ in range(2))
    run(stepped, 6)
    run(jumped, 1)
    convoy = Convoy(jumped.cache, 2)
    convoy.join(jumped.running)
    assert len(convoy.grow(5)) == 5
    assert convoy.advance(5) == []
    convoy.dissolve(0, (), (), 1.0)
    for one, other in zip(jumped.running, stepped.running, strict=True):
        for name in ("num_tokens", "num_computed", "num_promised", "num_produced"):
            assert getattr(one, name) == getattr(other, name)
    assert jumped.cache.num_free == stepped.cache.num_free


def test_a_convoy_knows_when_somebody_has_all_tokens() -> None:
    scheduler = scheduler_of(ask(6, 4), ask(3, 12))
    run(scheduler, 1)
    convoy = Convoy(scheduler.cache, 2)
    convoy.join(scheduler.running)
    assert (convoy.steps_left(), convoy.contexts(), convoy.computed) == (3, [6, 3], 9)
    assert convoy.grow(3) == [3, 4, 5]  # the first has blocks for eight tokens, the second for four
    assert indices(convoy.advance(3)) == [0]
    assert (indices(convoy.members), convoy.steps_left(), convoy.contexts()) == ([1], 8, [6])


def test_a_convoy_takes_no_more_blocks_than_there_are() -> None:
    scheduler = scheduler_of(ask(4, 20), num_blocks=2)
    run(scheduler, 1)
    convoy = Convoy(scheduler.cache, 2)
    convoy.join(scheduler.running)
    assert convoy.grow(10) == [2, 2, 2, 2]
    assert scheduler.cache.num_free == 0


def conversation() -> tuple[Request, Request]:
    """A prompt of 6 tokens with an answer of 6, and the next prompt, which goes on with both."""
    first = Request(0.0, 6, 6, (Segment(1, 6),), answer=2)
    return first, Request(0.0, 15, 1, (Segment(1, 6), Segment(2, 6), Segment(3, 3)))


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
    scheduler = scheduler_of(first)
    plans = [planned(scheduler), planned(scheduler)]
    scheduler.complete(plans[0].sampled)
    plans.append(planned(scheduler))
    assert scheduler.running[0].num_computed == 8
    assert scheduler.cache.longest_prefix(scheduler.cache.new_holding(1, second), 15) == 4
    scheduler.complete(plans[1].sampled)
    planned(scheduler)
    assert scheduler.cache.longest_prefix(scheduler.cache.new_holding(1, second), 15) == 8


@pytest.mark.parametrize(("spares", "alone"), [(False, 4), (True, 10)])
def test_a_threshold_may_spare_a_request_that_is_alone(spares: bool, alone: int) -> None:
    limits = FirstCome(64, 8, long_prefill_token_threshold=4, spares_lone_prompts=spares)
    scheduler = Scheduler(limits, KvCache(100, KvShape(4)))
    scheduler.add(0, ask(10, 5))
    assert tokens(planned(scheduler)) == {0: alone}
    for index in (1, 2):
        scheduler.add(index, ask(10, 1))
    assert tokens(planned(scheduler))[2] == 4


def test_windows_may_move_on_by_processed_tokens() -> None:
    # With a window of 5, token 8 looks at nothing before token 4; the step that computes the prompt still does.
    limits = FirstCome(64, 8, settles=True)
    scheduler = Scheduler(limits, KvCache(100, KvShape(4, (5,))))
    scheduler.add(0, ask(8, 3))
    first = planned(scheduler)
    planned(scheduler)
    assert scheduler.running[0].holding.tables[0].first == 0
    scheduler.complete(first.sampled)
    planned(scheduler)
    assert scheduler.running[0].holding.tables[0].first == 1


def test_a_sequence_may_skip_the_steps_in_between() -> None:
    scheduler = Scheduler(FirstCome(64, 8, steps_between_tokens=3), KvCache(100, KvShape(4)), steps_under_way=4)
    scheduler.add(0, ask(4, 5))
    assert [plan is not None for plan in (scheduler.schedule() for _ in range(4))] == [True, False, False, True]
