"""Kernels for routed experts differ, and so does what a GPU has to do where experts are spread."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import MoE
from infercast.predict.array_api import Arrays
from infercast.predict.families.moe import (
    SEEN,
    STYLES,
    TRITON,
    WHOLE,
    ExpertPhysics,
    balanced_groups,
    route,
    style_of,
)
from infercast.predict.learned import make_predictor

LAYER = MoE(512.0, hidden=4096, inter=1536, experts=128, topk=8)
SPREAD = replace(LAYER, local_experts=16)
HEIGHTS = np.array([16.0, 128.0])


def rows_of(op: MoE) -> float:
    return float(route(op, np.array([op.tokens]), HEIGHTS, Arrays).rows[0])


def test_known_kernels_have_a_style() -> None:
    assert style_of("triton") == style_of("") == TRITON
    assert vars(style_of("marlin")) == vars(TRITON) | {"mma": "sync"}
    assert style_of("trtllm").tiles == style_of("cutlass").tiles == STYLES["tuned"].tiles
    assert style_of("trtllm").launches < style_of("cutlass").launches < TRITON.launches


def test_tuned_products_are_faster_on_few_tokens() -> None:
    gpu = load_gpu("b200-sxm")
    triton, tuned = (
        ExpertPhysics(replace(LAYER, kernel=name), gpu).physics(1.0).seconds for name in ("triton", "trtllm")
    )
    assert tuned < 0.8 * triton


def test_an_older_multiply_instruction_bounds_marlin() -> None:
    op = replace(LAYER, weight_dtype="int4")
    on = {
        name: ExpertPhysics(replace(op, kernel=name), load_gpu("h200-sxm")).physics(8192.0).seconds
        for name in ("", "marlin")
    }
    assert 1.2 * on[""] < on["marlin"] < on[""] / 0.62


def test_the_heaviest_gpu_has_more_than_its_share() -> None:
    law, even = replace(SPREAD, routing="power_law_1.2"), replace(SPREAD, routing="balanced")
    assert rows_of(even) == pytest.approx(512)
    assert 1.5 * 512 < rows_of(law) < 8 * 512
    assert rows_of(replace(LAYER, routing="power_law_1.2")) == pytest.approx(4096, rel=0.01)


def test_whole_tokens_are_all_their_pairs() -> None:
    assert rows_of(replace(SPREAD, routing=f"balanced{WHOLE}")) == pytest.approx(4096)
    assert rows_of(replace(SPREAD, local_experts=8, routing=f"balanced{WHOLE}")) == pytest.approx(2048)


def test_pairs_of_other_gpus_cost_triton_but_not_tuned_products() -> None:
    gpu = load_gpu("h200-sxm")
    between = [
        ExpertPhysics(replace(SPREAD, routing="balanced", kernel=name), gpu)
        .physics(np.array([8192.0]))
        .terms["between"]
        for name in ("triton", "trtllm")
    ]
    assert between[0][0] > 4 * between[1][0]


def test_a_gpu_that_is_given_its_own_tokens_clears_less() -> None:
    op, gpu = replace(LAYER, local_experts=1, routing="balanced", kernel="triton"), load_gpu("b200-sxm")
    every, own = (
        ExpertPhysics(each, gpu).physics(np.array([8192.0])) for each in (op, replace(op, routing=f"balanced{SEEN}"))
    )
    assert own.terms["between"][0] < every.terms["between"][0] / 10
    assert own.terms["tensor"] == every.terms["tensor"]


def test_untuned_tiles_on_blackwell_are_chosen_by_the_tokens_alone() -> None:
    """A few rows wait for each step of their tile, which is longer where tokens outnumber the experts."""
    physics = ExpertPhysics(replace(LAYER, local_experts=4, kernel="triton"), load_gpu("b200-sxm"))
    few, more, sum_of_both = physics.physics(4.0), physics.physics(5.0), physics.physics(np.array([4.0, 5.0]))
    assert more.seconds > 1.3 * few.seconds
    assert sum_of_both.seconds == pytest.approx([few.seconds, more.seconds])
    deeper = ExpertPhysics(replace(LAYER, hidden=8192, local_experts=4, kernel="triton"), load_gpu("b200-sxm"))
    assert deeper.physics(5.0).seconds > 1.3 * more.seconds


def test_triton_loads_weights_of_odd_rows_one_by_one() -> None:
    seconds = [
        ExpertPhysics(replace(LAYER, inter=inter, dtype="fp8_block", kernel="triton"), load_gpu("b200-sxm"))
        .physics(np.array([512.0]))
        .seconds[0]
        for inter in (160, 168)
    ]
    assert seconds[1] > 3 * seconds[0]


LAYOUT = {"hidden": 2048, "inter": 768, "experts": 128, "topk": 8}


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "gb10", "rtx-pro-6000", "h100-sxm", "b200-sxm"])
def test_the_first_tokens_read_their_experts_from_memory(gpu: str, dtype: str) -> None:
    """Tables go round a few experts, which a large cache holds; an engine has read all other layers in between."""
    tokens, device = np.array([1.0, 2.0, 3.0, 4.0]), load_gpu(gpu)
    op = MoE(tokens, **LAYOUT, dtype=dtype, weight_dtype=dtype)
    seconds = make_predictor().estimate(op, device).seconds
    assert np.all(op.weight_bytes / device.dram_bandwidth < 0.95 * seconds)
    assert np.all(seconds[1:] / seconds[:-1] < [2.05, 1.55, 1.4])


@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000", "mi300x", "h200-sxm"])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [("fp8", "fp8"), ("bf16", "int4"), ("nvfp4", "nvfp4")])
def test_fewer_tokens_do_not_take_experts_clearly_longer(gpu: str, dtype: str, weight_dtype: str) -> None:
    tokens = np.unique(np.round(np.geomspace(8, 20_000, 390)))
    op = MoE(tokens, **LAYOUT, dtype=dtype, weight_dtype=weight_dtype)
    seconds = np.asarray(make_predictor().estimate(op, load_gpu(gpu)).seconds)
    assert np.all(seconds[1:] / seconds[:-1] < 1.25)
    assert np.all(seconds > 0.8 * np.maximum.accumulate(seconds))


def test_experts_are_copied_and_packed_as_by_engines() -> None:
    loads = np.array([[8.0, 4.0, 2.0, 2.0]])
    assert balanced_groups(loads, 0, 2).tolist() == [[[8, 2], [4, 2]]]
    (first, second) = balanced_groups(loads, 2, 2)[0]
    assert first == pytest.approx([4, 8 / 3, 2])
    assert second == pytest.approx([8 / 3, 8 / 3, 2])


def test_balanced_groups_have_the_mean_of_all() -> None:
    hot = replace(SPREAD, routing="power_law_1.2")
    mean = LAYER.tokens * LAYER.topk / 8
    assert rows_of(hot) > 1.4 * mean
    assert rows_of(replace(hot, routing="power_law_1.2/eplb0")) == pytest.approx(mean, rel=0.02)
    copied = replace(hot, experts=128 + 16, local_experts=18, routing="power_law_1.2/eplb16")
    assert rows_of(copied) == pytest.approx(mean, rel=0.005)
