"""Layouts as SGLang is told of them, and back."""

from dataclasses import replace

import pytest

from infercast.engines.sglang.engine import sizes_for, spread
from infercast.engines.sglang.settings import SglangSettings
from infercast.forecast.plan.candidate import Candidate
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model

LAYOUTS = (
    ParallelLayout(), ParallelLayout(4), ParallelLayout(4, experts=True), ParallelLayout(2, 2), ParallelLayout(1, 1, 8),
    ParallelLayout(2, 1, 4, experts=True), ParallelLayout(2, 1, 2, apart=True),
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_there_and_back(layout: ParallelLayout) -> None:
    told = sizes_for(layout)
    sizes = [told.pop(f"{name}_parallel_size", 1) for name in ("tensor", "pipeline", "data")]
    model, gpu = read_model("qwen3-30b-a3b"), load_gpu("h100-sxm")
    assert spread(SglangSettings(**told), model, ParallelLayout(*sizes), gpu) == replace(
        layout, extra_last=layout.pipeline > 1
    )


def test_flags_of_groups() -> None:
    candidate = Candidate("sglang@0.5.16", "h200-sxm", ParallelLayout(1, 1, 8, experts=True))
    assert candidate.options() == {
        "tensor-parallel-size": 8, "data-parallel-size": 8, "enable-dp-attention": True, "ep-size": 8,
    }  # fmt: skip
    assert str(candidate) == "1 x TP1+DP8+EP on h200-sxm by sglang@0.5.16 (as published)"


def test_norms_ride_on_all_reduces_of_some_models() -> None:
    gpu = load_gpu("h100-sxm")
    fused = ParallelLayout(2, fused_norms=True)
    off = SglangSettings(enforce_disable_flashinfer_allreduce_fusion=True)
    on = SglangSettings(enable_flashinfer_allreduce_fusion=True)
    model = read_model("qwen3-30b-a3b")
    assert spread(SglangSettings(), model, fused, gpu).fused_norms
    assert not spread(off, model, fused, gpu).fused_norms
    assert spread(on, read_model("llama-3.1-8b"), ParallelLayout(2), gpu).fused_norms
