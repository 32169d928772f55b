"""Memory-bound kernels: the same expressions that a model is made of, fused by the same compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import gelu, silu

from infercast.lab.measure.device import vllm
from infercast.lab.measure.launch import SimpleLaunch, Workspace
from infercast.lab.measure.rows import Shape

SIZE_HINT = 8192
"""Rows that the compiler sees first: it chooses block sizes for them, as an engine's does for its largest step."""
LARGEST_FP8 = 448.0
PAGE = 16
EPSILON = 1e-6
LATENT, ROTARY = 512, 64  # widths of a latent, and of the rotated part of keys and queries next to it


def _rms(x: Any, weight: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + EPSILON)).to(x.dtype) * weight


def _add_rms(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    wide = x.float() + residual.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + EPSILON)
    return normed.to(x.dtype) * weight, wide.to(x.dtype)


def _quantise(x: Any) -> tuple[Any, Any]:
    scale = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / LARGEST_FP8
    return (x.float() / scale).clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn), scale


def _gated(activation: Callable[[Any], Any], x: Any) -> Any:
    half = x.shape[-1] // 2
    return activation(x[..., :half]) * x[..., half:]


def _rotate(x: Any, positions: Any, table: Any, width: int) -> Any:
    """All heads of a row side by side, halves rotated into each other."""
    cosine, sine = table[positions].chunk(2, dim=-1)
    heads = x.view(x.shape[0], -1, width)
    first, second = heads.chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(-2), sine.unsqueeze(-2)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).view(x.shape)


def _rotate_latent(x: Any, key: Any, positions: Any, table: Any) -> tuple[Any, Any]:
    """The last numbers of each head and a key that all heads share, pairs of neighbours rotated into each other."""
    cosine, sine = table[positions].unsqueeze(-2).chunk(2, dim=-1)
    width = key.shape[-1]
    return torch.cat((x[..., :-width], _pairs(x[..., -width:], cosine, sine)), dim=-1), _pairs(key, cosine, sine)


def _pairs(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1).flatten(-2)


def _added_then_quantised(x: Any, residual: Any, weight: Any) -> tuple[Any, Any, Any]:
    normed, kept = _add_rms(x, residual, weight)
    return *_quantise(normed), kept


def _gated_rms(x: Any, gate: Any, weight: Any) -> Any:
    """Of recurrent layers: the norm of each head, times an activated gate."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + EPSILON) * weight.float()
    return (normed * silu(gate.float())).to(x.dtype)


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "norm": _rms, "head_norm": _rms, "gated_norm": _gated_rms, "add_norm": _add_rms,
    "norm_quant": lambda x, weight: _quantise(_rms(x, weight)), "add_norm_quant": _added_then_quantised,
    "quant": _quantise, "silu_mul": lambda x: _gated(silu, x),
    "gelu_mul": lambda x: _gated(partial(gelu, approximate="tanh"), x),
    "silu_mul_quant": lambda x: _quantise(_gated(silu, x)), "rope": _rotate, "latent_rope": _rotate_latent,
    "add": lambda x, y: x + y,
}  # fmt: skip


def build_elementwise(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    op, rows = shape["op"], shape["rows"]
    if op in _DIRECT:
        return _DIRECT[op](shape, workspace)
    fused = _fused(op, shape["width"], shape["heads"])
    # The first call compiles, for a large number of rows that may change.
    if fused.is_new:
        hinted, _ = _operands(op, SIZE_HINT, shape, workspace)
        for tensor in hinted:
            by_row = isinstance(tensor, torch.Tensor) and (tensor.ndim > 1 or not tensor.is_floating_point())
            if by_row and tensor.shape[0] == SIZE_HINT:
                torch._dynamo.mark_dynamic(tensor, 0)
        fused(*hinted)
    operands, written = _operands(op, rows, shape, workspace)
    return SimpleLaunch("torch", lambda: fused(*operands), written)


class _Fused:
    def __init__(self, op: str) -> None:
        torch._dynamo.config.recompile_limit = 10_000
        # Only rows may change: the compiler must not give up on fixed widths after having seen two of them.
        torch._dynamo.config.automatic_dynamic_shapes = False
        # Operands are cut from pools at multiples of 1,024 bytes. The compiler does not know that, and would load them
        # piecemeal, unlike an engine's tensors.
        torch._inductor.config.assume_aligned_inputs = True
        self._compiled = torch.compile(EXPRESSIONS[op], dynamic=None)
        self.is_new = True

    def __call__(self, *operands: Any) -> Any:
        self.is_new = False
        return self._compiled(*operands)


@cache
def _fused(op: str, width: int, heads: int) -> _Fused:
    """Compiled once for each width and number of heads, as a model's own would be."""
    return _Fused(op)


def _operands(op: str, rows: int, shape: Shape, workspace: Workspace) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What an expression takes, and which of it the kernel before has just written."""
    width, heads = shape["width"], shape["heads"]
    if op == "head_norm":
        # A slice of the fused projection's output: rows lie apart.
        x = workspace.take(rows, heads + 2, width)
        return (x[:, :heads], workspace.take(width)), (x,)
    if op == "gated_norm":
        # The gate is a slice of the projection's output, one of two halves.
        x, both = workspace.take(rows, heads, width), workspace.take(rows, 2 * heads, width)
        return (x, both[:, heads:], workspace.take(width)), (x, both)
    if op == "rope":
        x = workspace.take(rows, heads * width)
        positions = torch.randint(0, 16_384, (rows,), device=workspace.device)
        return (x, positions, workspace.take(16_384, width), width), (x,)
    if op == "latent_rope":
        x = workspace.take(rows, heads, width)
        # The key is a slice of the projection into the latent.
        key = workspace.take(rows, 1, LATENT + ROTARY)[..., LATENT:]
        positions = torch.randint(0, 16_384, (rows,), device=workspace.device)
        return (x, key, positions, workspace.take(16_384, ROTARY)), (x,)
    gated = ("silu_mul", "gelu_mul", "silu_mul_quant")  # expressions that take two numbers for one that they write
    x = workspace.take(rows, 2 * width if op in gated else width)
    others: tuple[Any, ...] = ()
    if op in ("add", "add_norm", "add_norm_quant"):
        others += (workspace.take(rows, width),)
    if op in ("norm", "norm_quant", "add_norm", "add_norm_quant"):
        others += (workspace.take(width),)
    return (x, *others), (x,)


def _embedding(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    ids = torch.randint(0, 32_000, (shape["rows"],), device=workspace.device)
    table = workspace.take(32_000, shape["width"])
    return SimpleLaunch("torch", lambda: torch.nn.functional.embedding(ids, table))


def _to_float(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    logits = workspace.take(shape["rows"], shape["width"])
    return SimpleLaunch("torch", logits.float, (logits,))


def _copy(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    source, target = workspace.take(shape["rows"], shape["width"]), workspace.take(shape["rows"], shape["width"])
    return SimpleLaunch("torch", lambda: target.copy_(source))


def build_kv_write(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """New keys and values into pages of 16 tokens, in bf16 or brought to fp8."""
    both, pages, slots, one = new_keys(shape, workspace)
    narrow = shape["dtype"] == "fp8"
    write, kind = vllm("_custom_ops").reshape_and_cache_flash, "fp8" if narrow else "auto"
    keys, values = (pages.view(torch.uint8) if narrow else pages).unbind(1)
    return SimpleLaunch("vllm", partial(write, both[0], both[1], keys, values, slots, kind, one, one), (both,))


def new_keys(shape: Shape, workspace: Workspace) -> tuple[Any, Any, Any, Any]:
    """New keys and values, the pages that they go to, the place of each, and a scale of 1."""
    rows, heads, width = shape["rows"], shape["heads"], shape["width"]
    both = workspace.take(2, rows, heads, width)
    pages = workspace.take(-(-rows // PAGE) + 64, 2, PAGE, heads, width, dtype=shape["dtype"])
    return both, pages, torch.arange(rows, device=workspace.device), torch.ones((), device=workspace.device)


def _sample(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    logits = workspace.take(shape["rows"], shape["width"], dtype="fp32")
    try:
        sample = vllm("v1.worker.gpu.sample.gumbel").gumbel_sample
    except ImportError:
        return SimpleLaunch("torch", lambda: logits.argmax(dim=-1), (logits.view(-1),))
    rows = torch.arange(shape["rows"], dtype=torch.int32, device=workspace.device)
    cold = torch.zeros(shape["rows"], device=workspace.device)
    seeds = torch.zeros(shape["rows"], dtype=torch.int64, device=workspace.device)
    launch = partial(sample, logits, rows, cold, seeds, seeds, apply_temperature=False)
    return SimpleLaunch("vllm", launch, (logits.view(-1),))


def _topk(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    rows, experts, topk = shape["rows"], shape["width"], shape["heads"]
    gating = workspace.take(rows, experts)
    weights = torch.empty(rows, topk, dtype=torch.float32, device=workspace.device)
    ids, places = (torch.empty(rows, topk, dtype=torch.int32, device=workspace.device) for _ in range(2))
    launch = partial(vllm("_custom_ops").topk_softmax, weights, ids, places, gating, True)
    return SimpleLaunch("vllm", launch, (gating,))


_DIRECT: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "copy": _copy, "embedding": _embedding, "to_float": _to_float, "kv_write": build_kv_write, "sample": _sample,
    "topk": _topk,
}  # fmt: skip
