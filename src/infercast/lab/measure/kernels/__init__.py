"""All kernels that can be measured, behind one door."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from infercast.lab.measure.kernels import gemm
from infercast.lab.measure.kernels.attention import build_attention, build_sparse
from infercast.lab.measure.kernels.elementwise import build_elementwise
from infercast.lab.measure.kernels.recurrent import build_convolution, build_gating, build_scan, build_update
from infercast.lab.measure.launch import POOL_SHARE, Workspace, time_launches, time_sustained
from infercast.lab.measure.rows import Case, Launch, Timing

BUILDERS = {
    "gemm": gemm.build_gemm, "attention_prefill": build_attention, "attention_decode": build_attention,
    "attention_mixed": build_attention, "moe": gemm.build_experts, "tuning": gemm.build_experts,
    "elementwise": build_elementwise, "scan": build_scan, "state_update": build_update,
    "convolution": build_convolution, "gating": build_gating, "sparse": build_sparse,
}  # fmt: skip


class GpuBench:
    def __init__(self, share: float = POOL_SHARE) -> None:
        torch.manual_seed(0)
        # For good and not by a context: what is compiled inside of one is compiled again outside.
        torch.set_grad_enabled(False)
        self.workspace = Workspace(share=share)

    def build(self, case: Case) -> Launch:
        return BUILDERS[case.family](case.shape, self.workspace)

    def compile(self, case: Case) -> None:
        """Launch it once, with less weight where that takes the same kernels."""
        is_layer = BUILDERS[case.family] is gemm.build_experts
        BUILDERS[case.family](gemm.small_layer(case.shape) if is_layer else case.shape, self.workspace)()

    def time(self, launches: Sequence[Launch], repeats: int) -> list[Timing]:
        return time_launches(launches, self.workspace, repeats)

    def time_sustained(self, launches: Sequence[Launch], repeats: int, heat_seconds: float) -> list[Timing]:
        return time_sustained(launches, repeats, gemm.heater(self.workspace, heat_seconds))

    def details(self, case: Case) -> dict[str, Any]:
        if case.family == "tuning":
            return gemm.trial_details(case.shape)
        return gemm.launch_configuration(case.shape) if case.family == "moe" else {}

    def close(self) -> None:
        del self.workspace
        gc.collect()  # launches that the profiler still refers to hold the pools
        torch.cuda.empty_cache()
