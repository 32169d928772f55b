"""Matrix products and mixture-of-experts layers as an engine launches them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import linear

from infercast.lab.measure.device import vllm
from infercast.lab.measure.launch import MovingLaunch, Operands, SimpleLaunch, Workspace
from infercast.lab.measure.rows import Shape

MOE = "model_executor.layers.fused_moe"
BLOCK = 128  # rows and columns of weights that share a scale
SMALL = {"hidden": 1024, "inter": 512}


def build_gemm(shape: Shape, workspace: Workspace) -> MovingLaunch:
    """``y = x w^T``, weights stored by output row as in every checkpoint."""
    m, n, k, dtype = shape["m"], shape["n"], shape["k"], shape["dtype"]
    torch.backends.cuda.matmul.allow_tf32 = True
    engine, multiply = _fp8_product(m, n, workspace) if dtype == "fp8" else ("torch", linear)

    def place() -> Operands:
        x, weight = workspace.take(m, k, dtype=dtype), workspace.take(n, k, dtype=dtype)
        return partial(multiply, x, weight.t() if dtype == "fp8" else weight), (x,)

    return MovingLaunch(engine, place)


def _fp8_product(m: int, n: int, workspace: Workspace) -> tuple[str, Callable[[Any, Any], Any]]:
    """One scale a token and one a weight matrix; vLLM's own kernel where it is installed."""
    by_token = torch.full((m, 1), 0.01, device=workspace.device)
    try:
        multiply = vllm("_custom_ops").cutlass_scaled_mm
    except ImportError:
        by_row = torch.full((1, n), 0.01, device=workspace.device)
        scales = {"scale_a": by_token, "scale_b": by_row, "out_dtype": torch.bfloat16}
        return "torch", lambda x, weight: torch._scaled_mm(x, weight, **scales)
    scale = torch.full((1, 1), 0.01, device=workspace.device)
    return "vllm", lambda x, weight: multiply(x, weight, by_token, scale, torch.bfloat16)


def heater(workspace: Workspace, seconds: float) -> Any:
    size = 8192
    x, weight = workspace.take(size, size), workspace.take(size, size)
    rounds = max(1, int(seconds * 650e12 / (2.0 * size**3)))

    def heat() -> None:
        for _ in range(rounds):
            linear(x, weight)

    return heat


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
    """From routed tokens to the sum of their experts' results, under a ``configuration`` or vLLM's own choice."""
    fused_moe = vllm(MOE)
    tokens, hidden, inter = shape["tokens"], shape["hidden"], shape["inter"]
    experts, topk, dtype = shape["experts"], shape["topk"], shape["dtype"]
    x = workspace.take(tokens, hidden)
    stored = "fp8" if dtype == "fp8_block" else dtype
    up = workspace.take(experts, 2 * inter, hidden, dtype=stored)
    down = workspace.take(experts, hidden, inter, dtype=stored)
    chosen = choose_experts(tokens, experts, topk, shape["routing"])
    ids = torch.tensor(chosen, dtype=torch.int32, device=workspace.device)
    weights = torch.full((tokens, topk), 1.0 / topk, dtype=torch.float32, device=workspace.device)
    scales = _scales(shape, workspace)
    chosen_here = shape.get("configuration")

    def launch() -> None:
        with fused_moe.override_config(chosen_here) if chosen_here else nullcontext():
            fused_moe.fused_experts(x, up, down, weights, ids, quant_config=scales)

    return SimpleLaunch("vllm", launch, (x,))


def small_layer(shape: Shape) -> Shape:
    """A layer of less weight with the same kernels, which are compiled for all sizes that are multiples of 16."""
    sizes = {name: size for name, size in SMALL.items() if shape[name] % 16 == 0 and shape["dtype"] != "fp8_block"}
    return shape | sizes | {"configuration": shape.get("configuration") or _picked(shape)[1]}


def _scales(shape: Shape, workspace: Workspace) -> Any:
    """How a layer's weights are scaled: not at all, one number an expert, or one for each 128 x 128 of them."""
    quantised = vllm(f"{MOE}.config").fp8_w8a8_moe_quant_config
    experts, hidden, inter = shape["experts"], shape["hidden"], shape["inter"]
    if shape["dtype"] == "fp8":
        scale = torch.full((experts, 1, 1), 0.01, device=workspace.device)
        return quantised(w1_scale=scale, w2_scale=scale, per_act_token_quant=False)
    if shape["dtype"] == "fp8_block":
        sizes = ((-(-rows // BLOCK), -(-columns // BLOCK)) for rows, columns in ((2 * inter, hidden), (hidden, inter)))
        up, down = (torch.full((experts, *size), 0.01, device=workspace.device) for size in sizes)
        return quantised(w1_scale=up, w2_scale=down, block_shape=[BLOCK, BLOCK])
    return None


def launch_configuration(shape: Shape) -> dict[str, Any]:
    """The tiles that vLLM picks for a layer, and whether they are tuned for this GPU."""
    tuned, picked = _picked(shape)
    return {"tuned": tuned, "block_m": picked["BLOCK_SIZE_M"], "block_n": picked["BLOCK_SIZE_N"]}


def trial_details(shape: Shape) -> dict[str, Any]:
    if shape["configuration"]:
        return {"ran": shape["configuration"]}
    tuned, picked = _picked(shape)
    return {"tuned": tuned, "ran": {name: int(value) for name, value in picked.items()}}


def _picked(shape: Shape) -> tuple[bool, dict[str, Any]]:
    fused_moe = vllm(f"{MOE}.fused_moe")
    dtype = {"bf16": None, "fp8": "fp8_w8a8", "fp8_block": "fp8_w8a8"}[shape["dtype"]]
    blocks = [BLOCK, BLOCK] if shape["dtype"] == "fp8_block" else None
    experts, inter, hidden = shape["experts"], shape["inter"], shape["hidden"]
    tuned = fused_moe.get_moe_configs(experts, inter, dtype, *(blocks or ())) is not None
    matrices = (experts, 2 * inter, hidden), (experts, hidden, inter)
    return tuned, fused_moe.try_get_optimal_moe_config(*matrices, shape["topk"], dtype, shape["tokens"], blocks)
