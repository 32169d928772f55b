"""Steps of prompts or of decoding, each rule in a case that can be worked out by hand."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from infercast.errors import InputError
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import Plan, PrefillFirstPolicy, PrefillRules, Priorities
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.simulation import simulate
from infercast.serve.step import constant_timer
from infercast.serve.workload.request import Request, Segment, Workload

Step = tuple[dict[int, int], list[int]]
"""New tokens of each prompt, and who decodes."""


class Engine:
    """A scheduler whose steps are taken one by one, and whose results come one step late or at once."""

    def __init__(
        self,
        *requests: Request,
        late: bool = True,
        num_pages: int = 1000,
        page: int = 1,
        caching: bool = True,
        **policy: Any,
    ) -> None:
        policy = {
            "max_running_requests": 8,
            "chunked_prefill_size": 100,
            "first_ratio": 0.0,
            "least_ratio": 0.0,
            **policy,
        }
        cache = RadixCache(num_pages, KvShape(page), caching=caching)
        self.scheduler = PrefillScheduler(PrefillFirstPolicy(**policy), cache, 2 if late else 1)
        self.under_way: deque[Plan] = deque()
        self.late = late
        self.done: list[int] = []
        self.plan: Plan | None = None
        for index, request in enumerate(requests):
            self.scheduler.add(index, request)

    @property
    def cache(self) -> RadixCache:
        return self.scheduler.cache

    def step(self) -> Step | None:
        """Plan a step, hand it over and take in the result that is due then."""
        self.plan = plan = self.scheduler.plan()
        result = None
        if plan is not None:
            prompts = {each.index: new for each, new in zip(plan.sequences, plan.new_tokens, strict=True)}
            result = prompts, [each.index for each in self.scheduler.cohort.in_order()] if plan.decodes else []
            self.scheduler.start(plan)
            self.under_way.append(plan)
        if self.under_way and (plan is None or len(self.under_way) > self.late):
            self.done += [each.index for each in self.scheduler.complete(self.under_way.popleft())]
        return result

    def steps(self, count: int) -> list[Step | None]:
        return [self.step() for _ in range(count)]


def ask(num_input: int, num_output: int, *prefix: tuple[int, int], declared: int | None = None) -> Request:
    return Request(0.0, num_input, num_output, tuple(Segment(*part) for part in prefix), None, declared)


def test_prompts_go_first_and_share_the_budget_of_a_step() -> None:
    engine = Engine(ask(60, 5), ask(30, 5), ask(50, 5))
    assert engine.steps(4) == [
        ({0: 60, 1: 30, 2: 10}, []),  # ten of the third, which is cut
        ({2: 40}, []),  # decoding stands still
        ({}, [0, 1, 2]),
        ({}, [0, 1, 2]),
    ]


def test_one_prompt_is_cut_and_goes_on_before_others() -> None:
    engine = Engine(ask(250, 2), ask(30, 2), ask(30, 2))
    assert engine.steps(4) == [({0: 100}, []), ({0: 100}, []), ({0: 50, 1: 30, 2: 20}, []), ({2: 10}, [])]


def test_a_step_ends_once_the_second_limit_is_reached() -> None:
    engine = Engine(ask(30, 2), ask(30, 2), ask(30, 2), max_prefill_tokens=60)
    assert engine.steps(2) == [({0: 30, 1: 30}, []), ({2: 30}, [])]


def test_without_chunks_a_prompt_is_whole_and_any_length_goes_alone() -> None:
    limits = {"chunked_prefill_size": None, "max_prefill_tokens": 100}
    engine = Engine(ask(300, 2), ask(40, 2), ask(60, 2), ask(50, 2), **limits)
    # Two that fill the limit exactly are not in one step.
    assert engine.steps(3) == [({0: 300}, []), ({1: 40}, []), ({2: 60}, [])]


def test_who_ends_by_length_is_in_no_further_step_since_0_5_22() -> None:
    engine = Engine(ask(4, 2), ask(4, 4), rules=PrefillRules(skips_ending=True))
    assert engine.steps(5) == [({0: 4, 1: 4}, []), ({}, [0, 1]), ({}, [1]), ({}, [1]), None]
    assert engine.done == [0, 1]
    # An end that the length does not tell is found out a step too late, as before.
    assert Engine(ask(4, 2, declared=3), ask(4, 4), rules=PrefillRules(skips_ending=True)).steps(3)[-1] == ({}, [0, 1])


@pytest.mark.parametrize(("threshold", "gives_way"), [(10, True), (20, False)])
def test_a_running_request_gives_way_to_one_of_a_better_priority(threshold: int, gives_way: bool) -> None:
    policy = {"max_running_requests": 1, "priorities": Priorities(threshold=threshold)}
    engine = Engine(Request(0.0, 4, 9, priority=0), **policy)
    engine.steps(3)
    engine.scheduler.add(1, Request(0.0, 5, 2, priority=20))
    assert engine.step() == (({1: 5}, []) if gives_way else ({}, [0]))
    assert engine.scheduler.num_preemptions == gives_way


def test_the_queue_is_in_the_order_of_priorities() -> None:
    requests = [Request(0.0, 60, 2, priority=priority) for priority in (1, 3, 2)]
    assert Engine(*requests, priorities=Priorities()).step() == ({1: 60, 2: 40}, [])
    assert Engine(*requests, priorities=Priorities(sign=1)).step() == ({0: 60, 2: 40}, [])


def test_who_has_ended_is_in_one_step_more_where_results_are_late() -> None:
    engine = Engine(ask(4, 2), ask(4, 4))
    assert engine.steps(3) == [({0: 4, 1: 4}, []), ({}, [0, 1]), ({}, [0, 1])]
    assert engine.plan is not None
    assert (engine.plan.decodes, engine.plan.wasted) == (2, 1)
    assert engine.done == [0]
    assert engine.steps(3) == [({}, [1]), ({}, [1]), None]
    assert engine.done == [0, 1]


def test_nothing_is_wasted_where_results_come_at_once() -> None:
    engine = Engine(ask(4, 2), ask(4, 4), late=False)
    assert engine.steps(5) == [({0: 4, 1: 4}, []), ({}, [0, 1]), ({}, [1]), ({}, [1]), None]


def test_an_answer_of_one_token_decodes_once_for_nothing() -> None:
    assert Engine(ask(4, 1)).steps(3) == [({0: 4}, []), ({}, [0]), None]
    assert Engine(ask(4, 1), late=False).steps(2) == [({0: 4}, []), None]


def test_nothing_is_wasted_if_prompts_come_in_between() -> None:
    engine = Engine(ask(4, 2))
    engine.steps(2)
    engine.scheduler.add(1, ask(4, 9))
    assert engine.steps(2) == [({1: 4}, []), ({}, [1])]


def test_no_more_run_than_may_and_places_are_free_after_the_next_decoding() -> None:
    engine = Engine(ask(4, 2), ask(4, 9), ask(4, 9), max_running_requests=2)
    assert engine.steps(4) == [({0: 4, 1: 4}, []), ({}, [0, 1]), ({}, [0, 1]), ({}, [1])]
    assert engine.step() == ({2: 4}, [])  # the place was seen to be free when the step before was planned


def test_a_start_needs_room_for_what_it_declares_and_for_a_share_of_what_others_do() -> None:
    # Of 100 tokens, 30 are held after the first step, and half of the 20 - 0 that it may still ask for are promised.
    requests = ask(30, 9, declared=20), ask(30, 9, declared=29), ask(30, 9, declared=27)
    engine = Engine(*requests[:2], num_pages=100, first_ratio=0.5)
    assert engine.steps(2) == [({0: 30}, []), ({}, [0])]
    fits = Engine(requests[0], num_pages=100, first_ratio=0.5)
    fits.step()
    fits.scheduler.add(1, requests[2])
    assert fits.step() == ({1: 30}, [])  # 30 + 27 + 1 < 100 - 30 - 10
    late = Engine(requests[0], num_pages=100, first_ratio=0.5)
    late.step()
    late.scheduler.add(1, requests[1])
    assert late.step() == ({}, [0])  # 30 + 29 + 1 is not below 60


def test_the_share_becomes_less_with_every_step_of_decoding_and_anew_when_idle() -> None:
    engine = Engine(ask(4, 5), first_ratio=0.7, least_ratio=0.65, ratio_decay=0.02)
    engine.step()
    assert engine.scheduler.ratio == 0.7
    engine.step()
    assert engine.scheduler.ratio == pytest.approx(0.68)
    engine.steps(3)
    assert engine.scheduler.ratio == 0.65
    engine.steps(4)
    assert engine.scheduler.ratio == 0.7


def test_no_prompt_is_tried_again_before_somebody_has_left() -> None:
    engine = Engine(ask(40, 3), ask(40, 30), ask(30, 9), num_pages=100, first_ratio=1.0)
    assert engine.step() == ({0: 40}, [])
    assert engine.scheduler.batch.is_full
    assert engine.steps(3) == [({}, [0]), ({}, [0]), ({}, [0])]
    assert engine.steps(2) == [None, ({1: 40}, [])]  # that it has left is seen when decoding is planned
    at_once = Engine(ask(40, 3), ask(40, 30), late=False, num_pages=100, first_ratio=1.0)
    assert at_once.steps(5) == [({0: 40}, []), ({}, [0]), ({}, [0]), None, ({1: 40}, [])]


def test_prompts_are_tried_in_every_step_where_there_is_a_pool_of_windows() -> None:
    rules = {"num_pages": 100, "first_ratio": 1.0, "least_ratio": 0.0, "ratio_decay": 0.3}
    requests = ask(40, 3, declared=9), ask(40, 12)
    # 40 + 12 + 1 tokens fit if not all that the first may ask for is promised, which is so after a step of decoding.
    assert Engine(*requests, **rules).steps(4) == [({0: 40}, []), ({}, [0]), ({}, [0]), ({}, [0])]
    always = Engine(*requests, **rules, tries_always=True)
    assert always.steps(3) == [({0: 40}, []), ({}, [0]), ({1: 40}, [])]


def test_a_long_answer_counts_up_to_a_limit() -> None:
    requests = ask(10, 9, declared=500), ask(10, 9, declared=500)
    assert Engine(*requests, num_pages=600, first_ratio=1.0).step() == ({0: 10}, [])
    assert Engine(*requests, num_pages=600, first_ratio=1.0, max_reserved_output=200).step() == ({0: 10, 1: 10}, [])


def retracted(*requests: Request, **rules: Any) -> Engine:
    """An engine that has just let somebody give way; requests come one step after the other."""
    engine = Engine(**rules)
    for index, request in enumerate(requests):
        engine.scheduler.add(index, request)
        assert engine.step() is not None
    for _ in range(100):
        assert engine.step() is not None
        if engine.scheduler.num_preemptions:
            return engine
    raise AssertionError


def test_who_has_produced_least_gives_way_and_goes_to_the_end_of_the_queue() -> None:
    requests = ask(10, 20), ask(8, 20), ask(9, 20)
    engine = retracted(*requests, num_pages=60, late=False, caching=False, retraction_headroom=3)
    # 27 of prompts, and 11 tokens of each of three: of equals, the one with the longest prompt goes.
    assert [each.index for each in engine.scheduler.waiting] == [0]
    assert engine.scheduler.ratio == (2 * 12 + 2 * 3) / (2 * 20 + 1)
    assert engine.plan is not None
    assert (engine.plan.decodes, engine.plan.num_preempted) == (2, 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_token_under_way_is_lost_with_its_sequence_and_computed_again(late: bool) -> None:
    engine = retracted(ask(10, 30), ask(8, 30), num_pages=60, late=late, caching=False)
    victim = engine.scheduler.waiting[0]
    assert victim.index == 0
    # 18 of prompts and 21 of each answer are held; each has one token more than it holds, but for the one under way.
    assert victim.num_produced == 22 - late
    engine.steps(80)
    assert sorted(engine.done) == [0, 1]
    assert engine.cache.num_held == 0


def test_of_a_retracted_sequence_no_more_than_its_prompt_is_found() -> None:
    engine = retracted(ask(10, 30), ask(8, 30), num_pages=60, late=False, retraction_headroom=21)
    assert engine.cache.num_evictable == 10
    victim = engine.scheduler.waiting[0]
    assert engine.cache.match(victim.lease, victim.num_known - 1) == 10
    engine = retracted(ask(10, 30), ask(8, 30), num_pages=60, late=False, retraction_headroom=22)
    assert engine.cache.num_evictable == 0  # 21 became blank, and the leaf went for one more


def test_decoding_goes_on_beside_prompts_where_chunks_are_mixed() -> None:
    engine = Engine(ask(60, 9), mixed_chunk=True)
    engine.steps(2)
    engine.scheduler.add(1, ask(150, 9))
    # One token of the budget is the one that decodes; prompts come before those who decode from then on.
    assert engine.steps(3) == [({1: 99}, [0]), ({1: 51}, [0]), ({}, [1, 0])]


def test_equal_prompts_of_one_step_are_both_computed_and_later_ones_find_them() -> None:
    engine = Engine(ask(20, 9, (1, 20)), ask(20, 9, (1, 20)))
    assert engine.step() == ({0: 20, 1: 20}, [])
    engine.scheduler.add(2, ask(20, 9, (1, 20)))
    assert engine.step() == ({2: 20}, [])  # the first result is not there when this is planned
    assert engine.cache.num_held == 20 + 20
    engine.scheduler.add(3, ask(20, 9, (1, 20)))
    assert engine.step() == ({3: 1}, [])  # all but the last token


def test_a_part_of_a_prompt_is_found_when_the_next_step_is_planned() -> None:
    engine = Engine(ask(150, 9, (1, 150)), ask(120, 9, (1, 120)))
    assert engine.step() == ({0: 100}, [])
    assert engine.step() == ({0: 50, 1: 20}, [])


def test_the_longest_match_goes_first_and_one_of_those_that_begin_alike() -> None:
    engine = Engine(ask(60, 1, (1, 60)), order="longest_match", late=False)
    engine.steps(2)
    for index, request in enumerate([ask(50, 1), ask(90, 1, (2, 90)), ask(90, 1, (2, 90)), ask(70, 1, (1, 60))]):
        engine.scheduler.add(1 + index, request)
    assert engine.step() == ({4: 10, 1: 50, 2: 40}, [])
    assert engine.step() == ({2: 50, 3: 50}, [])  # it finds the forty that were computed


def test_pages_round_what_is_charged_and_where_a_prompt_is_cut() -> None:
    engine = Engine(ask(30, 5), ask(40, 5), page=16, chunked_prefill_size=64, num_pages=20)
    assert engine.step() == ({0: 30, 1: 32}, [])
    assert engine.cache.num_held == 4
    assert engine.step() == ({1: 8}, [])


def test_with_known_ends_a_start_waits_for_room_at_every_end_to_come() -> None:
    rules = {"ignores_end": True, "caching": False, "num_pages": 60, "late": False}
    # The second ends after ten tokens and gives back what it holds.
    assert Engine(ask(10, 30), ask(10, 10), **rules).step() == ({0: 10, 1: 10}, [])
    assert Engine(ask(10, 30), ask(10, 30), **rules).step() == ({0: 10}, [])
    # Of one that may end before, room for all that it declares is needed beside what others were promised.
    assert Engine(ask(10, 30), ask(10, 5, declared=10), **rules).step() == ({0: 10}, [])


def test_an_answer_that_was_declared_too_long_is_cut_to_what_can_be() -> None:
    assert Engine(ask(50, 5, declared=10_000), num_pages=100).step() == ({0: 50}, [])


def test_requests_that_can_never_start_or_declare_too_little_are_refused() -> None:
    replica = Replica(
        timer=constant_timer(1.0),
        policy=PrefillFirstPolicy(max_running_requests=8),
        num_blocks=100,
        kv_shape=KvShape(1),
        max_model_len=4096,
    )
    with pytest.raises(InputError, match="request 0 needs 102 KV blocks"):
        simulate(replica, Workload((ask(90, 10),)))
    simulate(replica, Workload((ask(88, 10),)))
    with pytest.raises(InputError, match="request 0 declares 3 output tokens and produces 5"):
        simulate(replica, Workload((ask(10, 5, declared=3),)))


def test_times_of_tokens_where_prompts_hold_up_those_who_decode() -> None:
    replica = Replica(
        timer=constant_timer(1.0),
        policy=PrefillFirstPolicy(max_running_requests=8),
        num_blocks=100,
        kv_shape=KvShape(1),
        steps_under_way=1,
    )
    requests = ask(4, 4), Request(1.5, 4, 2)
    record = simulate(replica, Workload(requests))
    # Prompt, token; then the prompt of the second, and both decode.
    assert record.first_token.tolist() == [1.0, 3.0]
    assert record.last_token.tolist() == [5.0, 4.0]
    gaps, counts = record.gaps
    assert sorted(zip(gaps.tolist(), counts.tolist(), strict=True)) == [(1.0, 1), (1.0, 1), (1.0, 1), (2.0, 1)]
