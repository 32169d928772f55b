"""Kernels for routed experts differ, and so does what a GPU has to do where experts are spread."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import MoE
from infercast.predict.physics.either import Arrays
from infercast.predict.physics.expert_routing import WHOLE, route
from infercast.predict.physics.expert_styles import TRITON, TUNED, style_of
from infercast.predict.physics.moe import Experts

LAYER = MoE(512.0, hidden=4096, inter=1536, experts=128, topk=8)
SPREAD = replace(LAYER, local_experts=16)
HEIGHTS = np.array([16.0, 128.0])


def rows_of(op: MoE) -> float:
    return float(route(op, np.array([op.tokens]), HEIGHTS, Arrays).rows[0])


def test_known_kernels_have_a_style() -> None:
    assert style_of("triton") == style_of("marlin") == style_of("") == TRITON
    assert style_of("trtllm").tiles == style_of("cutlass").tiles == TUNED.tiles
    assert style_of("trtllm").launches < style_of("cutlass").launches < TRITON.launches


def test_tuned_products_are_faster_on_few_tokens() -> None:
    gpu = load_gpu("b200-sxm")
    triton, tuned = (Experts(replace(LAYER, kernel=name), gpu).physics(1.0).seconds for name in ("triton", "trtllm"))
    assert tuned < 0.8 * triton


def test_an_older_multiply_instruction_bounds_marlin() -> None:
    op = replace(LAYER, weight_dtype="int4")
    on = {
        name: Experts(replace(op, kernel=name), load_gpu("h200-sxm")).physics(8192.0).seconds for name in ("", "marlin")
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
        Experts(replace(SPREAD, routing="balanced", kernel=name), gpu).physics(np.array([8192.0])).terms["between"]
        for name in ("triton", "trtllm")
    ]
    assert between[0][0] > 4 * between[1][0]
