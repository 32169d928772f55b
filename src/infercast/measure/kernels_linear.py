"""Matrix products as an engine launches them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from infercast.measure.case import Shape
from infercast.measure.engines import need_vllm
from infercast.measure.launch import SimpleLaunch
from infercast.measure.workspace import Workspace


def build_gemm(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """``y = x w^T``, weights stored by output row as in every checkpoint."""
    m, n, k, dtype = shape["m"], shape["n"], shape["k"], shape["dtype"]
    if dtype == "fp8":
        return _fp8(m, n, k, workspace)
    torch.backends.cuda.matmul.allow_tf32 = True
    x, weight = workspace.take(m, k, dtype=dtype), workspace.take(n, k, dtype=dtype)
    return SimpleLaunch("torch", lambda: linear(x, weight), (x,))


def _fp8(m: int, n: int, k: int, workspace: Workspace) -> SimpleLaunch:
    """One scale a token and one a weight matrix; vLLM's own kernel where it is installed."""
    x, weight = workspace.take(m, k, dtype="fp8"), workspace.take(n, k, dtype="fp8").t()
    by_token = torch.full((m, 1), 0.01, device=workspace.device)
    try:
        need_vllm()
        from vllm import _custom_ops  # noqa: PLC0415
    except ImportError:
        by_row = torch.full((1, n), 0.01, device=workspace.device)
        return SimpleLaunch(
            "torch",
            lambda: torch._scaled_mm(x, weight, scale_a=by_token, scale_b=by_row, out_dtype=torch.bfloat16),
            (x,),
        )
    scale = torch.full((1, 1), 0.01, device=workspace.device)
    return SimpleLaunch("vllm", lambda: _custom_ops.cutlass_scaled_mm(x, weight, by_token, scale, torch.bfloat16), (x,))


def heater(workspace: Workspace, seconds: float) -> Any:
    """A function that multiplies large matrices for about so long."""
    size = 8192
    x, weight = workspace.take(size, size), workspace.take(size, size)
    rounds = max(1, int(seconds * 650e12 / (2.0 * size**3)))

    def heat() -> None:
        for _ in range(rounds):
            linear(x, weight)

    return heat
