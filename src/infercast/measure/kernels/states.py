"""What a recurrent layer runs beside its scan, as vLLM 0.25 launches it: updates of states, and short convolutions.

States lie in blocks that an engine hands out, of which number 0 means none; they are cold, and what the kernel before
has written is not.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from infercast.measure.case import Shape
from infercast.measure.engines import need_vllm
from infercast.measure.kernels.elementwise import build_elementwise
from infercast.measure.kernels.recurrent import integers, parts_of, starts_of
from infercast.measure.launch import SimpleLaunch
from infercast.measure.workspace import Workspace
from infercast.ops.lengths import spread_lengths

LINES = 513
"""Blocks of convolutions: the kernels are compiled for their number, which an engine fixes once."""
BLACKWELL = 10
SCAN_INPUTS = "scan_inputs"


def build_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """One new token for each of some sequences."""
    need_vllm()
    return _UPDATES[shape["kind"]](shape, workspace)


def _blocks(rows: int, workspace: Workspace) -> Any:
    return integers(range(1, rows + 1), workspace)


def _gated_delta(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule_packed_decode  # noqa: PLC0415

    heads, key_heads, key_dim, value_dim = (shape[name] for name in ("heads", "key_heads", "key_dim", "value_dim"))
    rows, device = shape["rows"], workspace.device
    mixed = workspace.take(rows, 2 * key_heads * key_dim + heads * value_dim)
    gates = workspace.take(rows, heads), workspace.take(rows, heads)
    state = workspace.take(rows + 1, heads, value_dim, key_dim, dtype=shape["state_dtype"])
    decay, bias = torch.zeros(heads, device=device), torch.ones(heads, dtype=torch.bfloat16, device=device)
    blocks, out = _blocks(rows, workspace), workspace.take(rows, 1, heads, value_dim)

    def launch() -> None:
        fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=mixed,
            a=gates[0],
            b=gates[1],
            A_log=decay,
            dt_bias=bias,
            scale=key_dim**-0.5,
            initial_state=state,
            out=out,
            ssm_state_indices=blocks,
            use_qk_l2norm_in_kernel=True,
        )

    return SimpleLaunch("vllm", launch, (mixed, *gates))


def _kimi_delta(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    from vllm.model_executor.layers.fla.ops.kda import fused_recurrent_kda  # noqa: PLC0415

    heads, width, rows, device = shape["heads"], shape["key_dim"], shape["rows"], workspace.device
    query, key, value = (workspace.take(1, rows, heads, width) for _ in range(3))
    gate = -torch.rand(1, rows, heads, width, device=device)
    beta = torch.rand(1, rows, heads, device=device)
    state = workspace.take(rows + 1, heads, shape["value_dim"], width, dtype=shape["state_dtype"])
    starts, blocks = starts_of([1] * rows, workspace), _blocks(rows, workspace)

    def launch() -> None:
        fused_recurrent_kda(
            q=query,
            k=key,
            v=value,
            g=gate,
            beta=beta,
            initial_state=state,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=starts,
            ssm_state_indices=blocks,
        )

    return SimpleLaunch("vllm", launch, (query, key, value, gate, beta))


def _state_space(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update  # noqa: PLC0415

    heads, groups, size, width = (shape[name] for name in ("heads", "key_heads", "key_dim", "value_dim"))
    rows, device = shape["rows"], workspace.device
    mixed = workspace.take(rows, heads * width + 2 * groups * size)
    values, keys, queries = parts_of(mixed, heads * width, groups * size)
    steps, out = workspace.take(rows, heads), workspace.take(rows, heads, width)
    state = workspace.take(rows + 1, heads, width, size, dtype=shape["state_dtype"])
    ones = torch.ones(heads, dtype=torch.bfloat16, device=device)
    decay = -torch.ones(heads, device=device)
    blocks = _blocks(rows, workspace)
    is_blackwell = torch.cuda.get_device_capability()[0] == BLACKWELL

    def launch() -> None:
        selective_state_update(
            state,
            values.view(-1, heads, width),
            steps[:, :, None].expand(-1, -1, width),
            decay[:, None, None].expand(-1, width, size),
            keys.view(-1, groups, size),
            queries.view(-1, groups, size),
            ones[:, None].expand(-1, width),
            ones[:, None].expand(-1, width),
            dt_softplus=True,
            state_batch_indices=blocks,
            dst_state_batch_indices=blocks,
            out=out,
            is_blackwell=is_blackwell,
        )

    return SimpleLaunch("vllm", launch, (mixed, steps))


_UPDATES: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "gdn": _gated_delta,
    "kda": _kimi_delta,
    "mamba2": _state_space,
}


def build_gating(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """What lies between convolution, scan and output: heads split and gates worked out, or the gated norm."""
    if shape["op"] != SCAN_INPUTS:
        return build_elementwise(shape, workspace)
    need_vllm()
    from vllm.model_executor.layers.fla.ops.fused_gdn_prefill_post_conv import fused_post_conv_prep  # noqa: PLC0415

    rows, heads, key_heads, width = (shape[name] for name in ("rows", "heads", "key_heads", "width"))
    mixed = workspace.take(rows, (2 * key_heads + heads) * width)
    gates = workspace.take(rows, heads), workspace.take(rows, heads)
    decay = torch.zeros(heads, device=workspace.device)
    bias = torch.ones(heads, dtype=torch.bfloat16, device=workspace.device)

    def launch() -> None:
        fused_post_conv_prep(
            conv_output=mixed,
            a=gates[0],
            b=gates[1],
            A_log=decay,
            dt_bias=bias,
            num_k_heads=key_heads,
            head_k_dim=width,
            head_v_dim=width,
            apply_l2norm=True,
            output_g_exp=False,
        )

    return SimpleLaunch("vllm", launch, (mixed, *gates))


def build_convolution(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """A short convolution over prompts, or of one new token a sequence."""
    need_vllm()
    channels, taps = shape["channels"], shape["taps"]
    sequences = shape["batch"]
    weight = workspace.take(channels, taps)
    # Stored token by token, and seen by the kernel channel by channel.
    state = workspace.take(max(LINES, sequences + 1), taps - 1, channels).transpose(-1, -2)
    blocks = _blocks(sequences, workspace)
    build = _update_of_convolution if shape["update"] else _prompts_of_convolution
    return build(shape, workspace, weight, state, blocks)


def _update_of_convolution(shape: Shape, workspace: Workspace, weight: Any, state: Any, blocks: Any) -> SimpleLaunch:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update  # noqa: PLC0415

    x = workspace.take(shape["batch"], shape["channels"])

    def launch() -> None:
        causal_conv1d_update(x, state, weight, None, "silu", conv_state_indices=blocks, validate_data=False)

    return SimpleLaunch("vllm", launch, (x,))


def _prompts_of_convolution(shape: Shape, workspace: Workspace, weight: Any, state: Any, blocks: Any) -> SimpleLaunch:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn  # noqa: PLC0415
    from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata  # noqa: PLC0415

    lengths = [int(length) for length in spread_lengths(shape["batch"], shape["q_len"], shape["sigma"])]
    starts, device = starts_of(lengths, workspace), torch.device(workspace.device)
    names = ("nums_dict", "batch_ptr", "token_chunk_offset_ptr")
    found = compute_causal_conv1d_metadata(starts.cpu(), device=device)
    metadata = SimpleNamespace(**dict(zip(names, found, strict=True)))
    x = workspace.take(sum(lengths), shape["channels"])
    has_state = torch.zeros(len(lengths), dtype=torch.bool, device=device)

    def launch() -> None:
        causal_conv1d_fn(
            x.transpose(0, 1),
            weight,
            None,
            activation="silu",
            conv_states=state,
            has_initial_state=has_state,
            cache_indices=blocks,
            query_start_loc=starts,
            metadata=metadata,
        )

    return SimpleLaunch("vllm", launch, (x,))
