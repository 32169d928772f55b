"""Matrix products as an engine launches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from infercast.measure.case import Shape
from infercast.measure.engines import need_vllm
from infercast.measure.launch import MovingLaunch, Operands
from infercast.measure.workspace import Workspace


def build_gemm(shape: Shape, workspace: Workspace) -> MovingLaunch:
    """``y = x w^T``, weights stored by output row as in every checkpoint."""
    m, n, k, dtype = shape["m"], shape["n"], shape["k"], shape["dtype"]
    if dtype == "fp8":
        return _fp8(m, n, k, workspace)
    torch.backends.cuda.matmul.allow_tf32 = True

    def place() -> Operands:
        x, weight = workspace.take(m, k, dtype=dtype), workspace.take(n, k, dtype=dtype)
        return lambda: linear(x, weight), (x,)

    return MovingLaunch("torch", place)


def _fp8(m: int, n: int, k: int, workspace: Workspace) -> MovingLaunch:
    """One scale a token and one a weight matrix; vLLM's own kernel where it is installed."""
    engine, multiply = _fp8_product(m, n, workspace)

    def place() -> Operands:
        x, weight = workspace.take(m, k, dtype="fp8"), workspace.take(n, k, dtype="fp8").t()
        return lambda: multiply(x, weight), (x,)

    return MovingLaunch(engine, place)


def _fp8_product(m: int, n: int, workspace: Workspace) -> tuple[str, Callable[[Any, Any], Any]]:
    by_token = torch.full((m, 1), 0.01, device=workspace.device)
    try:
        need_vllm()
        from vllm import _custom_ops  # noqa: PLC0415
    except ImportError:
        by_row = torch.full((1, n), 0.01, device=workspace.device)
        scales = {"scale_a": by_token, "scale_b": by_row, "out_dtype": torch.bfloat16}
        return "torch", lambda x, weight: torch._scaled_mm(x, weight, **scales)
    scale = torch.full((1, 1), 0.01, device=workspace.device)
    return "vllm", lambda x, weight: _custom_ops.cutlass_scaled_mm(x, weight, by_token, scale, torch.bfloat16)


def heater(workspace: Workspace, seconds: float) -> Any:
    """A function that multiplies large matrices for about so long."""
    size = 8192
    x, weight = workspace.take(size, size), workspace.take(size, size)
    rounds = max(1, int(seconds * 650e12 / (2.0 * size**3)))

    def heat() -> None:
        for _ in range(rounds):
            linear(x, weight)

    return heat
