"""Speculative decoding: what steps yield, what they hold, and what is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.serve.fleet.lockstep import in_lockstep
from infercast.serve.fleet.pool import Pool
from infercast.serve.fleet.two_pools import Link, simulate_disaggregated, taken_in
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.simulation import simulate
from infercast.serve.speculation import DraftCounts, Draws, Speculation
from infercast.serve.step import DraftShape, StepEstimate, StepShape, constant_timer
from infercast.serve.workload.request import Request, Segment, Workload

STEP = 0.01
HALF = Speculation(3, (0.75, 0.5, 0.25), lookahead=3, drops_block=True, pads_new=True)


def workload(count: int, num_input: int = 20, num_output: int = 60, concurrency: int | None = None) -> Workload:
    return Workload(tuple(Request(0.0, num_input, num_output) for _ in range(count)), concurrency)


def engine(speculation: Speculation | None = HALF, blocks: int = 10_000, **options: object) -> Replica:
    policy = FcfsPolicy(
        max_num_batched_tokens=256, max_num_seqs=16, waits_for_tokens=options.get("steps_under_way") == 1
    )
    return Replica(
        timer=constant_timer(STEP),
        policy=policy,
        num_blocks=blocks,
        max_model_len=4096,
        speculation=speculation,
        **options,
    )  # type: ignore[arg-type]


def totals(record: Record) -> tuple[int, int]:
    return record.decoding.steps + record.prefilling.steps, record.decoding.tokens + record.prefilling.tokens


def test_without_a_right_draft_a_step_yields_one_token() -> None:
    wrong = replace(HALF, acceptance=(0.0, 0.0, 0.0))
    record, plain = simulate(engine(wrong), workload(4)), simulate(engine(None), workload(4))
    assert np.array_equal(record.last_token, plain.last_token)
    assert record.drafts.acceptance_length == 1.0
    assert totals(record)[1] == 4 * (20 + 59 * 4)


def test_where_all_drafts_are_right_a_step_yields_them_and_one_more() -> None:
    record = simulate(engine(replace(HALF, acceptance=(1.0, 1.0, 1.0))), workload(1, num_output=61))
    # The first token comes with the prompt, then 60 in steps of four; nobody knew that no step was needed after them.
    assert record.drafts == DraftCounts(45, [0, 0, 0, 15])
    assert record.last_token[0] - record.first_token[0] == pytest.approx(15 * STEP)
    assert totals(record) == (17, 20 + 16 * 4)


def test_one_step_after_the_other_none_is_wasted() -> None:
    right = replace(HALF, acceptance=(1.0, 1.0, 1.0))
    record = simulate(engine(right, steps_under_way=1), workload(1, num_output=61))
    assert totals(record) == (16, 20 + 15 * 4)


def test_a_last_token_that_is_certain_is_waited_for() -> None:
    wrong = replace(HALF, acceptance=(0.0, 0.0, 0.0))
    assert totals(simulate(engine(wrong), workload(1, num_output=5))) == (5, 20 + 4 * 4)


def test_rates_of_each_position_are_those_asked_for() -> None:
    record = simulate(engine(), workload(200, concurrency=16))
    counts = record.drafts
    assert counts.rates_by_position == pytest.approx([0.75, 0.5, 0.25], abs=0.02)
    assert counts.acceptance_length == pytest.approx(HALF.acceptance_length, abs=0.04)
    assert counts.num_accepted == sum(counts.accepted_by_position)
    assert counts.acceptance_rate == pytest.approx(0.5, abs=0.01)
    assert counts.num_draft_tokens == 3 * counts.num_drafts


def test_what_is_right_does_not_depend_on_who_else_is_served() -> None:
    draws = Draws(HALF)
    assert draws.accepted(70, 50) == Draws(HALF).accepted(70, 80)[:50]
    assert draws.accepted(70, 50) != draws.accepted(80, 50)
    assert draws.accepted(70, 50) != Draws(replace(HALF, seed=1)).accepted(70, 50)
    alone = simulate(engine(), workload(1))
    among = simulate(engine(), workload(12))
    assert among.tpot[0] == pytest.approx(alone.tpot[0])


def test_the_same_run_comes_out_the_same() -> None:
    one, other = (simulate(engine(blocks=40), workload(30, concurrency=9)) for _ in range(2))
    assert one.last_token.tobytes() == other.last_token.tobytes()
    assert one.drafts == other.drafts


@pytest.mark.parametrize("steps_under_way", [1, 2])
def test_who_gives_way_gets_all_its_tokens_after_all(steps_under_way: int) -> None:
    record = simulate(engine(blocks=12, steps_under_way=steps_under_way), workload(12))
    assert record.num_preemptions > 0
    assert (record.num_output == 60).all()


def test_tokens_of_a_step_come_together() -> None:
    record = simulate(engine(), workload(1))
    gaps, counts = record.gaps
    assert counts.sum() == record.drafts.num_drafts
    assert gaps == pytest.approx(STEP)
    assert record.tpot[0] == pytest.approx(counts.sum() * STEP / 59)


def test_lookups_without_a_match_compute_one_token() -> None:
    lookup = Speculation(4, (0.9, 0.8, 0.7, 0.6), match=0.3)
    shapes: list[StepShape] = []

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        shapes.append(shape)
        return StepEstimate([STEP], [[STEP]])

    record = simulate(replace(engine(lookup, steps_under_way=1), timer=timer), workload(8))
    drafting = [shape for shape in shapes if isinstance(shape, DraftShape) and not shape.prompts]
    assert {each for shape in drafting for each in shape.new_tokens} == {1, 5}
    assert not any(shape.is_decode for shape in drafting if min(shape.new_tokens) == 1)
    share = record.drafts.num_drafts / sum(shape.num_sequences for shape in drafting)
    assert share == pytest.approx(0.3, abs=0.06)


def test_the_last_block_of_a_cached_prefix_is_computed_again() -> None:
    prompt = Request(0.0, 70, 4, (Segment(1, 64),))
    both = Workload((prompt, replace(prompt, arrival=1.0)))
    assert simulate(engine(), both).num_cached.tolist() == [0, 48]
    assert simulate(engine(replace(HALF, drops_block=False)), both).num_cached.tolist() == [0, 64]


def test_a_start_with_one_token_is_as_wide_as_the_others() -> None:
    shapes: list[DraftShape] = []

    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        assert isinstance(shape, DraftShape)
        shapes.append(shape)
        return StepEstimate([STEP], [[STEP]])

    first = Request(0.0, 65, 40, (Segment(1, 64),))
    both = Workload((first, replace(first, arrival=5.5 * STEP)))
    speculation = replace(HALF, drops_block=False)
    record = simulate(replace(engine(speculation), timer=timer), both)
    assert record.num_cached.tolist() == [0, 64]
    assert all(shape.is_decode for shape in shapes[1:])
    shapes.clear()
    simulate(replace(engine(replace(speculation, pads_new=False)), timer=timer), both)
    assert sorted(min(shape.new_tokens) for shape in shapes)[0] == 1


def test_drafts_are_cut_at_the_longest_length_and_by_the_budget() -> None:
    right = replace(HALF, acceptance=(1.0, 1.0, 1.0))
    tight = replace(engine(right), max_model_len=81)
    record = simulate(tight, workload(1, num_output=61))
    assert record.num_output[0] == 61
    # At the end there is room for two of three drafts.
    assert record.drafts.num_draft_tokens < 45 + 3
    narrow = replace(engine(right), policy=FcfsPolicy(max_num_batched_tokens=6, max_num_seqs=16))
    record = simulate(narrow, workload(3))
    assert (record.num_output == 60).all()
    assert record.decoding.tokens <= 6 * record.decoding.steps


def test_more_sequences_may_have_fewer_drafts() -> None:
    varying = replace(HALF, by_batch=((1, 3), (3, 1), (6, 0)))
    assert [varying.drafts_for(count) for count in (1, 2, 3, 5, 6, 100)] == [3, 3, 1, 1, 0, 0]
    assert simulate(engine(varying), workload(1)).drafts.rates_by_position[2] > 0
    counts = simulate(engine(varying), workload(5)).drafts
    assert counts.by_accepted[1] > counts.by_accepted[3]


def test_a_draft_model_takes_tokens_off_the_budget() -> None:
    model = replace(HALF, drops_block=False, slots_taken=1)
    steps = [simulate(engine(each), workload(1, num_input=250)).prefilling.steps for each in (HALF, model)]
    assert steps == [1, 2]
    with pytest.raises(InputError, match="max_num_batched_tokens 16 leaves nothing"):
        simulate(replace(engine(model), policy=FcfsPolicy(max_num_batched_tokens=16, max_num_seqs=16)), workload(1))


def test_a_request_needs_room_for_its_drafts() -> None:
    simulate(engine(None, blocks=5), workload(1))
    with pytest.raises(InputError, match="needs 6 KV blocks"):
        simulate(engine(blocks=5), workload(1))


def test_drafts_in_the_pool_that_decodes() -> None:
    pools = Pool((engine(),)), Pool((engine(),))
    done = simulate_disaggregated(*pools, Link(1e9, 1e9), lambda tokens: 1e3 * tokens, workload(8))
    assert (done.decode[0].num_output == 60).all()
    assert done.decode[0].drafts.num_drafts > 0
    assert done.prefill[0].drafts.num_drafts == 0


def test_engines_in_lockstep_and_prompts_that_arrive_computed() -> None:
    _, ranks = in_lockstep([engine(), engine()], None)
    assert simulate(ranks[0], workload(3)).drafts.num_drafts > 0
    shape = DraftShape([4, 4, 100], [50, 60, 0], 9, 2, 6, 4, 3, 3)
    taken = taken_in(shape)
    assert isinstance(taken, DraftShape)
    assert (taken.new_tokens, taken.computed, taken.num_sampled) == ([4, 4, 4], [50, 60, 99], 12)
    assert taken.is_decode
    assert not taken.prompts
    alone = taken_in(DraftShape([100], [0], 1, 0, 0, 4, 1, 3))
    assert (alone.new_tokens, alone.computed, alone.num_sampled) == ([1], [99], 1)


def test_counts_of_engines_add_up() -> None:
    counts = DraftCounts(6, [1, 2])
    counts.add(DraftCounts(3, [1, 0, 4]))
    assert counts == DraftCounts(9, [2, 2, 4])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_drafts": 0}, "must be from 1 to 255"),
        ({"acceptance": (0.5,)}, "one for each position"),
        ({"acceptance": (0.5, 0.6, 0.1)}, "none above the one before"),
        ({"match": 1.5}, "share of steps with a match is 1.5"),
        ({"by_batch": ((2, 1),)}, "must begin with 1 sequence"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(HALF, **changes)  # type: ignore[arg-type]


def test_an_engine_with_steps_of_prompts_verifies_apart_from_them() -> None:
    record = simulate(
        replace(engine(), policy=PrefillFirstPolicy(max_running_requests=256, chunked_prefill_size=16)), workload(1)
    )
    assert record.drafts.num_drafts > 0
    assert record.drafts.acceptance_length > 1.0
