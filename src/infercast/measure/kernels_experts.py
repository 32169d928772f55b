"""Mixture-of-experts layers as an engine launches them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infercast.measure.case import Shape
from infercast.measure.engines import need_vllm
from infercast.measure.launch import SimpleLaunch
from infercast.measure.workspace import Workspace


def choose_experts(tokens: int, experts: int, topk: int, routing: str) -> Any:
    """Which experts each token goes to: (tokens, topk), no expert twice in a row."""
    generator = np.random.default_rng(tokens)
    if routing == "balanced":
        return (np.arange(tokens * topk).reshape(tokens, topk)) % experts
    weights: npt.NDArray[np.floating] = np.ones(experts)
    if routing.startswith("power_law_"):
        weights = (1.0 + np.arange(experts)) ** -float(routing.removeprefix("power_law_"))
        weights = generator.permutation(weights)
    # The largest of log-weights plus Gumbel noise are a draw without replacement.
    noise = generator.gumbel(size=(tokens, experts)) + np.log(weights)
    return np.argpartition(-noise, topk - 1, axis=1)[:, :topk]


def build_experts(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """From routed tokens to the sum of their experts' results."""
    need_vllm()
    from vllm.model_executor.layers.fused_moe import fused_experts  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config  # noqa: PLC0415

    tokens, hidden, inter = shape["tokens"], shape["hidden"], shape["inter"]
    experts, topk, dtype = shape["experts"], shape["topk"], shape["dtype"]
    x = workspace.take(tokens, hidden)
    up = workspace.take(experts, 2 * inter, hidden, dtype=dtype)
    down = workspace.take(experts, hidden, inter, dtype=dtype)
    chosen = choose_experts(tokens, experts, topk, shape["routing"])
    ids = torch.tensor(chosen, dtype=torch.int32, device=workspace.device)
    weights = torch.full((tokens, topk), 1.0 / topk, dtype=torch.float32, device=workspace.device)
    config = None
    if dtype == "fp8":
        scale = torch.full((experts, 1, 1), 0.01, device=workspace.device)
        config = fp8_w8a8_moe_quant_config(w1_scale=scale, w2_scale=scale, per_act_token_quant=False)
    return SimpleLaunch("vllm", lambda: fused_experts(x, up, down, weights, ids, quant_config=config), (x,))


def launch_configuration(shape: Shape) -> dict[str, Any]:
    """The tiles that vLLM picks for a layer, and whether somebody tuned them for this GPU."""
    from vllm.model_executor.layers.fused_moe import fused_moe  # noqa: PLC0415

    dtype = {"bf16": None, "fp8": "fp8_w8a8"}[shape["dtype"]]
    experts, inter, hidden = shape["experts"], shape["inter"], shape["hidden"]
    tuned = fused_moe.get_moe_configs(experts, inter, dtype) is not None
    picked = fused_moe.try_get_optimal_moe_config(
        (experts, 2 * inter, hidden), (experts, hidden, inter), shape["topk"], dtype, shape["tokens"]
    )
    return {"tuned": tuned, "block_m": picked["BLOCK_SIZE_M"], "block_n": picked["BLOCK_SIZE_N"]}
