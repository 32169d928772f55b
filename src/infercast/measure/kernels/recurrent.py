"""Kernels of recurrent layers as vLLM launches them: scans over prompts, state updates and short convolutions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from infercast.measure.cases import Shape
from infercast.measure.device import need_vllm
from infercast.measure.kernels.elementwise import build_elementwise
from infercast.measure.launch import SimpleLaunch, Workspace
from infercast.ops.op import spread_lengths

# The engine tunes each kernel once with a single chunk, before it knows any prompt, so the same is done here. Queries,
# keys, values and gates were just written by the kernel before; states are cold.


CHUNK = 64
"""Of the delta rules."""
TUNING_MS = 5, 20
"""Warm-up and length of one trial of a configuration: a fifth of what Triton takes by default."""


def build_scan(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    need_vllm()
    layout = tuple(shape[name] for name in ("heads", "key_heads", "key_dim", "value_dim", "chunk"))
    _tune(shape["kind"], *layout)
    lengths = [int(length) for length in spread_lengths(shape["batch"], shape["q_len"], shape["sigma"])]
    return _BUILDERS[shape["kind"]](shape, lengths, workspace)


@cache
def _tune(kind: str, heads: int, key_heads: int, key_dim: int, value_dim: int, chunk: int) -> None:
    """Let Triton choose its configurations for one chunk, as the engine's warm-up does."""
    _shorten_trials(kind)
    shape = {"kind": kind, "heads": heads, "key_heads": key_heads, "key_dim": key_dim, "value_dim": value_dim}
    launch = _BUILDERS[kind]({**shape, "chunk": chunk, "state_dtype": "fp32"}, [chunk], _Fresh())
    launch()
    torch.cuda.synchronize()


class _Fresh:
    """Operands of their own, for what is run once."""

    device = "cuda"

    def take(self, *sizes: int, dtype: str = "bf16") -> Any:
        """Random numbers."""
        return torch.randn(*sizes, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype], device=self.device)


def _shorten_trials(kind: str) -> None:
    """Have Triton try each configuration for less long; nothing happens where its tuner is built otherwise."""
    with suppress(Exception):
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415
        from triton.testing import do_bench  # noqa: PLC0415

        warmup, length = TUNING_MS
        for module in _modules(kind):
            for value in vars(module).values():
                inner = value
                while inner is not None and not isinstance(inner, Autotuner):
                    inner = getattr(inner, "fn", None)
                if inner is not None:
                    inner.do_bench = partial(do_bench, warmup=warmup, rep=length)


def _modules(kind: str) -> list[Any]:
    """Where the kernels of a scan are."""
    if kind == "mamba2":
        from vllm.model_executor.layers.mamba.ops import (  # noqa: PLC0415
            ssd_bmm,
            ssd_chunk_scan,
            ssd_chunk_state,
            ssd_state_passing,
        )

        return [ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_state_passing]
    from vllm.model_executor.layers.fla.ops import (  # noqa: PLC0415
        chunk_delta_h,
        chunk_o,
        chunk_scaled_dot_kkt,
        cumsum,
        kda,
        l2norm,
        solve_tril,
        wy_fast,
    )

    return [chunk_delta_h, chunk_o, chunk_scaled_dot_kkt, cumsum, kda, l2norm, solve_tril, wy_fast]


def integers(values: Any, workspace: Any) -> Any:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=workspace.device)


def starts_of(lengths: list[int], workspace: Any) -> Any:
    """Where each sequence begins, and where the last one ends."""
    return integers([0, *np.cumsum(lengths)], workspace)


def parts_of(mixed: Any, width: int, size: int) -> tuple[Any, Any, Any]:
    """Values, keys and queries of a state space, as its convolution leaves them side by side."""
    return mixed[:, :width], mixed[:, width : width + size], mixed[:, width + size :]


def _gated_delta(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    from vllm.model_executor.layers.fla.ops import chunk_gated_delta_rule  # noqa: PLC0415
    from vllm.model_executor.layers.fla.ops.fused_gdn_prefill_post_conv import fused_post_conv_prep  # noqa: PLC0415
    from vllm.model_executor.layers.fla.ops.index import prepare_chunk_indices, prepare_chunk_offsets  # noqa: PLC0415

    heads, key_heads, key_dim, value_dim = (shape[name] for name in ("heads", "key_heads", "key_dim", "value_dim"))
    tokens, device = sum(lengths), workspace.device
    mixed = workspace.take(tokens, 2 * key_heads * key_dim + heads * value_dim)
    gates = workspace.take(tokens, heads), workspace.take(tokens, heads)
    decay, bias = torch.zeros(heads, device=device), torch.ones(heads, dtype=torch.bfloat16, device=device)
    parts = fused_post_conv_prep(
        conv_output=mixed,
        a=gates[0],
        b=gates[1],
        A_log=decay,
        dt_bias=bias,
        num_k_heads=key_heads,
        head_k_dim=key_dim,
        head_v_dim=value_dim,
        apply_l2norm=True,
        output_g_exp=False,
    )
    query, key, value, gate, beta = (part.unsqueeze(0) for part in parts)
    state = workspace.take(len(lengths), heads, value_dim, key_dim, dtype="fp32")
    starts = starts_of(lengths, workspace)
    on_host = starts.cpu()
    chunks = prepare_chunk_indices(on_host, CHUNK).to(device)
    offsets = prepare_chunk_offsets(on_host, CHUNK).to(device)
    launch = partial(
        chunk_gated_delta_rule,
        q=query,
        k=key,
        v=value,
        g=gate,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        cu_seqlens=starts,
        chunk_indices=chunks,
        chunk_offsets=offsets,
        use_qk_l2norm_in_kernel=False,
    )
    return SimpleLaunch("vllm", launch, (query, key, value, gate, beta))


def _kimi_delta(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    from vllm.model_executor.layers.fla.ops.kda import chunk_kda_with_fused_gate  # noqa: PLC0415

    heads, width = shape["heads"], shape["key_dim"]
    tokens, device = sum(lengths), workspace.device
    query, key, value, gate = (workspace.take(1, tokens, heads, width) for _ in range(4))
    beta = torch.rand(1, tokens, heads, device=device)
    state = workspace.take(len(lengths), heads, shape["value_dim"], width, dtype="fp32")
    launch = partial(
        chunk_kda_with_fused_gate,
        q=query,
        k=key,
        v=value,
        raw_g=gate,
        beta=beta,
        A_log=torch.zeros(1, 1, heads, 1, device=device),
        g_bias=torch.zeros(heads * width, device=device),
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=starts_of(lengths, workspace),
    )
    return SimpleLaunch("vllm", launch, (query, key, value, gate, beta))


def _state_space(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen  # noqa: PLC0415

    heads, groups, size, width = (shape[name] for name in ("heads", "key_heads", "key_dim", "value_dim"))
    tokens, device, chunk = sum(lengths), workspace.device, shape["chunk"]
    mixed = workspace.take(tokens, heads * width + 2 * groups * size)
    values, keys, queries = parts_of(mixed, heads * width, groups * size)
    steps, out = workspace.take(tokens, heads), workspace.take(tokens, heads, width)
    ones = torch.ones(heads, dtype=torch.bfloat16, device=device)
    cuts = [[min(chunk, length - start) for start in range(0, length, chunk)] for length in lengths]
    owners = [number for number, parts in enumerate(cuts) for _ in parts]
    launch = partial(
        mamba_chunk_scan_combined_varlen,
        values.view(tokens, heads, width),
        steps,
        -torch.ones(heads, device=device),
        keys.view(tokens, groups, size),
        queries.view(tokens, groups, size),
        chunk_size=chunk,
        D=ones,
        z=None,
        dt_bias=ones,
        seq_idx=integers(owners, workspace),
        cu_seqlens=starts_of(lengths, workspace),
        cu_chunk_seqlens=starts_of([part for parts in cuts for part in parts], workspace),
        last_chunk_indices=integers(np.cumsum([len(parts) for parts in cuts]) - 1, workspace),
        initial_states=None,
        return_intermediate_states=False,
        dt_softplus=True,
        dt_limit=(0.0, float("inf")),
        out=out,
        state_dtype=torch.float32,
    )
    return SimpleLaunch("vllm", launch, (mixed, steps))


_BUILDERS: dict[str, Callable[[Shape, list[int], Any], SimpleLaunch]] = {
    "gdn": _gated_delta,
    "kda": _kimi_delta,
    "mamba2": _state_space,
}


# What a recurrent layer runs beside its scan, as vLLM 0.25 launches it: updates of states, and short convolutions.
#
# States lie in blocks that an engine hands out, of which number 0 means none; they are cold, and what the kernel before
# has written is not.


LINES = 513
"""Blocks of convolutions: the kernels are compiled for their number, which an engine fixes once."""
BLACKWELL = 10
SCAN_INPUTS = "scan_inputs"


def build_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    need_vllm()
    return _UPDATES[shape["kind"]](shape, workspace)


def _blocks(rows: int, workspace: Workspace) -> Any:
    return integers(range(1, rows + 1), workspace)


def _gated_delta_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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


def _kimi_delta_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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


def _state_space_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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
    "gdn": _gated_delta_update,
    "kda": _kimi_delta_update,
    "mamba2": _state_space_update,
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
