"""Small kernels on their own: KV writes, quantisers, Triton's and PyTorch's attention, bare tensor core rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from infercast.measure.case import Shape
from infercast.measure.engines import need_vllm
from infercast.measure.kernels.tensor_rate import build_tensor_rate
from infercast.measure.launch import SimpleLaunch
from infercast.measure.workspace import Workspace

PAGE, GROUP = 16, 128


def build_probe(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """One kernel by what it does and whose it is."""
    return _BUILDERS[shape["op"]](shape, workspace)


def _kv_write(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """New keys and values into pages of 16 tokens, in bf16 or brought to fp8."""
    rows, heads, width, narrow = shape["rows"], shape["heads"], shape["width"], shape["dtype"] == "fp8"
    both = workspace.take(2, rows, heads, width)
    pages = workspace.take(-(-rows // PAGE) + 64, 2, PAGE, heads, width, dtype=shape["dtype"])
    slots = torch.arange(rows, device=workspace.device)
    one = torch.ones((), device=workspace.device)
    if shape["by"] == "triton":
        from infercast.measure.kernels.triton_rows import write_pages  # noqa: PLC0415 - needs Triton

        return SimpleLaunch("triton", lambda: write_pages(both, pages, slots, one), (both,))
    need_vllm()
    from vllm import _custom_ops  # noqa: PLC0415

    keys, values = (pages.view(torch.uint8) if narrow else pages).unbind(1)
    kind = "fp8" if narrow else "auto"
    return SimpleLaunch(
        "vllm",
        lambda: _custom_ops.reshape_and_cache_flash(both[0], both[1], keys, values, slots, kind, one, one),
        (both,),
    )


def _quantise(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Rows to fp8 with a scale a token or a group of 128 neighbours."""
    rows, width = shape["rows"], shape["width"]
    source = workspace.take(rows, width)
    by_token = shape["op"] == "quantise_token"
    if shape["by"] == "triton":
        from infercast.measure.kernels.triton_rows import quantise_groups, quantise_rows  # noqa: PLC0415

        target = workspace.take(rows, width, dtype="fp8")
        scales = torch.empty(rows, 1 if by_token else width // GROUP, dtype=torch.float32, device=workspace.device)
        if by_token:
            return SimpleLaunch("triton", lambda: quantise_rows(source, target, scales), (source,))
        return SimpleLaunch("triton", lambda: quantise_groups(source, target, scales, GROUP), (source,))
    need_vllm()
    from vllm import _custom_ops  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8  # noqa: PLC0415

    launch: Callable[[], Any] = lambda: _custom_ops.scaled_fp8_quant(source, use_per_token_if_dynamic=True)  # noqa: E731
    if not by_token:
        launch = lambda: per_token_group_quant_fp8(source, GROUP, column_major_scales=True, use_ue8m0=False)  # noqa: E731
    return SimpleLaunch("vllm", launch, (source,))


def _prompts(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """Causal attention over prompts of one length without a prefix."""
    query, key, value = _heads(shape, workspace, shape["length"])
    if shape["by"] == "triton":
        from infercast.measure.kernels.triton_attention import prompts  # noqa: PLC0415 - needs Triton

        out = torch.empty_like(query)
        return SimpleLaunch("triton", lambda: prompts(query, key, value, out), (query, key, value))
    return _torch_attention(shape["by"], query, key, value, causal=True)


def _decode(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """One query a sequence over keys of one length; keys are cold."""
    query, key, value = _heads(shape, workspace, 1)
    if shape["by"] == "triton":
        from infercast.measure.kernels.triton_attention import Decoder  # noqa: PLC0415 - needs Triton

        flat = query.squeeze(2)
        return SimpleLaunch("triton", Decoder(flat, key, value, torch.empty_like(flat)), (query,))
    return _torch_attention(shape["by"], query, key, value, causal=False)


def _heads(shape: Shape, workspace: Workspace, queries: int) -> tuple[Any, Any, Any]:
    batch, width = shape["rows"], shape["width"]
    query = workspace.take(batch, shape["heads"], queries, width)
    key, value = (
        workspace.take(batch, shape["kv_heads"], shape["length"], width, dtype=shape["dtype"]) for _ in range(2)
    )
    return query, key, value


def _torch_attention(by: str, query: Any, key: Any, value: Any, *, causal: bool) -> SimpleLaunch:
    """PyTorch's copy of FlashAttention 2, or cuDNN's kernel."""
    backend = getattr(torch.nn.attention.SDPBackend, {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}[by])
    attend, grouped = torch.nn.functional.scaled_dot_product_attention, query.shape[1] != key.shape[1]

    def launch() -> None:
        with torch.nn.attention.sdpa_kernel(backend):
            attend(query, key, value, is_causal=causal, enable_gqa=grouped)

    return SimpleLaunch("torch", launch, (query, key, value) if causal else (query,))


_BUILDERS: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "kv_write": _kv_write,
    "quantise_token": _quantise,
    "quantise_block": _quantise,
    "prompts": _prompts,
    "decode": _decode,
    "mma_sync": build_tensor_rate,
    "wgmma": build_tensor_rate,
}
