"""The time of steps that verify and draft, held against a measured engine (EAGLE-3, three drafts, vLLM 0.25, H200)."""

import json
from functools import cache

import numpy as np
import pytest

import infercast as ic
from infercast.engines.timer import DraftingTimer
from infercast.engines.vllm.settings import EngineSettings
from infercast.serve.step import DraftShape, StepShape

CONFIG = {"method": "eagle3", "model": "somebody/eagle3", "num_speculative_tokens": 3}


@cache
def timer() -> DraftingTimer:
    settings = EngineSettings(
        engine="vllm@0.25",
        max_num_seqs=256,
        dummy_weights=True,
        speculative_config=json.dumps(CONFIG),
        acceptance="0.7",
    )
    made = ic.deploy("llama-3.1-8b", "h200-sxm", settings).timer()
    assert isinstance(made, DraftingTimer)
    return made


def verifying(count: int, context: int, prompts: tuple[tuple[int, int], ...] = ()) -> DraftShape:
    new = [4] * count + [each for each, _ in prompts]
    computed = [context] * count + [before for _, before in prompts]
    rows = 4 * count + len(prompts)
    return DraftShape(new, computed, rows, count, 3 * count, 4, len(new), 3)


@pytest.mark.parametrize(("count", "context", "measured"), [(1, 190, 6.40), (1, 2080, 6.53), (8, 1054, 7.00)])
def test_a_step_takes_the_gpu_as_long_as_it_was_seen_to(count: int, context: int, measured: float) -> None:
    assert timer()(verifying(count, context)).gpu_seconds[0] * 1e3 == pytest.approx(measured, rel=0.03)


def test_verifying_is_far_from_as_many_decodes() -> None:
    one = timer()(verifying(32, 1100))
    names = [name for name, _ in timer().kernels]
    varying = dict(zip(names[-len(one.varying) :], [column[0] for column in one.varying], strict=True))
    # 1.67 ms of attention and its second kernels in a profile of 33 layers, later passes with them.
    assert sum(varying.values()) * 1e3 == pytest.approx(1.75, rel=0.05)


def test_parts_add_up_and_drafts_have_names_of_their_own() -> None:
    estimate = timer()(verifying(8, 500))
    rows = [np.array([row]) for row in estimate.rows]
    varying = np.array([[column[0] for column in estimate.varying]])
    kernels = timer().step_kernels(rows, varying, np.zeros(1))[0]
    assert kernels.sum() == pytest.approx(estimate.gpu_seconds[0])
    drafts = sum(
        seconds for (name, _), seconds in zip(timer().kernels, kernels, strict=True) if name.startswith("draft_")
    )
    assert 0.15 < drafts / kernels.sum() < 0.3


def test_more_passes_cost_more_of_gpu_and_host() -> None:
    shape = verifying(8, 500)
    none, one, three = (
        timer()(DraftShape(shape.new_tokens, shape.computed, 32, 8, 24, 4, 8, drafts)) for drafts in (0, 1, 3)
    )
    seconds = [estimate.gpu_seconds[0] for estimate in (none, one, three)]
    hosts = [estimate.host.launch for estimate in (none, one, three)]
    assert seconds == sorted(seconds)
    assert hosts == sorted(hosts)


def test_prompts_beside_verifying_sequences_are_one_step() -> None:
    both = timer()(verifying(8, 500, ((1024, 0),)))
    alone = timer()(verifying(0, 0, ((1024, 0),)))
    assert alone.gpu_seconds[0] < both.gpu_seconds[0] < 1.2 * alone.gpu_seconds[0]
    assert len(both.rows) == len(alone.rows) == 3


def test_a_plain_step_is_timed_as_one_without_drafts() -> None:
    assert timer()(StepShape([1] * 4, [100] * 4, 4)).gpu_seconds[0] < timer()(verifying(4, 100)).gpu_seconds[0]
