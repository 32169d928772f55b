"""States of recurrent layers: what a sequence holds, what others find, and where steps of prompts end."""

from __future__ import annotations

import numpy as np
import pytest

from infercast.serve.cache.blocks import STATE_WINDOW, BlockAllocation, Ends, KvShape, Reach, StateRules
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import FcfsPolicy, Prompt, opened_blocks, whole_blocks
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.request import Request, Segment

ALIGNED = KvShape(4, (STATE_WINDOW, 0), states=(0,), aligned=True)
EVERY = KvShape(4, (STATE_WINDOW, 0), states=(0,))


def scheduler_of(shape: KvShape, tokens: int = 32, **rules: bool) -> Scheduler:
    cache = KvCache(100, shape, sparse_windows=rules.get("frees_on_completion", False))
    return Scheduler(FcfsPolicy(max_num_batched_tokens=tokens, max_num_seqs=8, **rules), cache, 1)  # type: ignore[arg-type]


def step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    """Plan and compute a step: who computes how many tokens after how many; the cohort's first."""
    plan = scheduler.plan()
    if plan is None:
        return []
    together = zip(scheduler.cohort.members, plan.contexts(), strict=True) if plan.decodes else ()
    rows = [(sequence.index, 1, computed) for sequence, computed in together]
    prefills = zip(plan.sequences, plan.new_tokens, plan.computed, strict=True)
    rows += [(sequence.index, new, computed) for sequence, new, computed in prefills]
    scheduler.start(plan)
    scheduler.complete(plan)
    return rows


@pytest.mark.parametrize(
    ("computed", "new", "known", "parts_at", "expected"),
    [
        (0, 11, 30, 0, 8),  # whole blocks of 4
        (0, 3, 30, 0, 0),  # none fits: it waits
        (0, 30, 30, 0, 28),  # the last whole block, and the rest in a step of its own
        (28, 2, 30, 0, 2),
        (0, 28, 28, 0, 28),  # which there is none of
        (8, 20, 30, 16, 8),  # where another prompt parts from it
        (30, 1, 31, 0, 1),  # decoding
    ],
)
def test_steps_of_whole_blocks(computed: int, new: int, known: int, parts_at: int, expected: int) -> None:
    assert whole_blocks(Prompt(computed, min(known, 30), known, parts_at), new, Ends(4)) == expected


@pytest.mark.parametrize(
    ("computed", "new", "size", "expected"),
    [
        (0, 11, 4, 8),
        (0, 28, 4, 24),  # the last block of a prompt comes after the one before it
        (0, 11, 16, 11),  # a block that no step has room for
        (11, 11, 16, 5),  # ends where the block ends
    ],
)
def test_blocks_too_large_for_a_step_are_computed_in_several(computed: int, new: int, size: int, expected: int) -> None:
    assert opened_blocks(Prompt(computed, 28, 28), new, Ends(size), most=11) == expected


@pytest.mark.parametrize(
    ("computed", "new", "drops", "expected"),
    [
        (0, 30, False, 30),  # the state after 28 tokens is left from within
        (0, 29, False, 28),  # but not by a step that does not end the prompt
        (26, 4, False, 2),  # nor by one that begins within a block
        (28, 2, False, 2),
        (0, 30, True, 30),  # the state after 24
        (20, 10, True, 10),
        (24, 6, True, 6),
    ],
)
def test_a_step_that_leaves_a_state_within_is_not_cut(computed: int, new: int, drops: bool, expected: int) -> None:
    assert opened_blocks(Prompt(computed, 30, 30), new, Ends(4, drops, exports=True), most=64) == expected
    cut = opened_blocks(Prompt(computed, 30, 30), new, Ends(4, drops), most=64)
    assert computed + cut in {24 if drops and computed < 24 else 28 if computed < 28 else 30, 30}


def test_the_state_before_a_prompt_s_end_takes_a_block_more_and_is_found() -> None:
    shape = ALIGNED._replace(rules=StateRules(exports=True))
    scheduler = scheduler_of(shape, frees_on_completion=True, allow_partial_block=True)
    scheduler.add(0, Request(0.0, 14, 1, (Segment(7, 14),)))
    assert step(scheduler) == [(0, 14, 0)]
    assert scheduler.cache.num_held == 0  # it is done
    scheduler.add(1, Request(0.0, 14, 2, (Segment(7, 14),)))
    assert step(scheduler) == [(1, 2, 12)]
    # Four blocks of tokens, the state it began with and its own.
    assert scheduler.cache.num_held == 4 + 2


@pytest.mark.parametrize(("prompt_end", "admitted"), [(16, False), (20, True)])
def test_of_a_prompt_beyond_the_longest_length_no_state_before_an_end_must_fit(prompt_end: int, admitted: bool) -> None:
    cache = KvCache(5, ALIGNED._replace(rules=StateRules(exports=True)), sparse_windows=True)
    # Four blocks of tokens and a state; where the prompt ends in them, the state before that, too.
    assert cache.admit(BlockAllocation(0, [], 20, 2), 0, 8, 16, 8, reach=Reach(0, 8, prompt_end)) is admitted


def test_a_prompt_that_arrives_computed_is_not_cut() -> None:
    policy = FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8).for_decode_pool()
    assert policy.align(Prompt(0, 30, 30), 30, Ends(4), starts=True) == 30
    assert (
        FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=8).align(Prompt(0, 30, 30), 30, Ends(4), starts=True) == 28
    )


def test_an_aligned_sequence_holds_one_state_and_the_one_its_step_began_with() -> None:
    scheduler = scheduler_of(ALIGNED)
    scheduler.add(0, Request(0.0, 14, 8))
    held = []
    for _ in range(6):
        step(scheduler)
        held.append(scheduler.cache.num_held)
    # 12 tokens: 3 blocks and a state; 14: a block and a state more; decoding: the older state goes; then a new block.
    assert held == [3 + 1, 4 + 2, 4 + 1, 4 + 1, 5 + 2, 5 + 1]


def test_every_block_has_a_state_until_the_next_step_is_planned() -> None:
    scheduler = scheduler_of(EVERY)
    scheduler.add(0, Request(0.0, 14, 8))
    step(scheduler)
    assert scheduler.cache.num_held == 4 + 4
    step(scheduler)
    assert scheduler.cache.num_held == 4 + 1


@pytest.mark.parametrize(("shape", "found"), [(ALIGNED, [0, 0, 8, 8]), (EVERY, [0, 8, 8, 8])])
def test_what_is_found_of_a_shared_prefix(shape: KvShape, found: list[int]) -> None:
    """Ten tokens in common: two blocks, whose state the aligned mode keeps once a prompt was seen to part there."""
    scheduler, hits = scheduler_of(shape), []
    for index in range(4):
        scheduler.add(index, Request(0.0, 21, 1, (Segment(7, 10),)))
        rows = []
        while scheduler.running or scheduler.waiting:
            rows += step(scheduler)
        hits.append(rows[0][2])
    assert hits == found


def test_a_state_serves_others_from_the_step_after_it_was_computed() -> None:
    scheduler = scheduler_of(EVERY)
    for index in range(2):
        scheduler.add(index, Request(0.0, 10, 4, (Segment(7, 8),)))
    assert step(scheduler) == [(0, 10, 0)]
    assert step(scheduler) == [(0, 1, 10), (1, 2, 8)]


def test_a_sequence_without_prefix_caching_has_one_block_a_group_of_states() -> None:
    shape = KvShape(4, (0,), state_blocks=3)
    assert shape.num_tables == 4
    assert shape.num_state_groups == ALIGNED._replace(windows=(2, 2, 2, 0), states=(0, 1, 2)).num_state_groups == 3
    assert ALIGNED.of_tokens == KvShape(4, (0,))
    assert KvShape(4, (), state_blocks=2).most_blocks(10**6, 8192) == 2
    tokens = [*range(1, 100), 4096]
    for shape in (
        KvShape(4),
        KvShape(4, (0, 9)),
        KvShape(4, (9, 0), chunked=True),
        KvShape(4, (0, 2), states=(1,), aligned=True),
    ):
        assert shape.most_blocks(np.array(tokens), 16).tolist() == [shape.most_blocks(each, 16) for each in tokens]
