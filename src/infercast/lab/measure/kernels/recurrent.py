"""Kernels of recurrent layers as vLLM launches them: scans over prompts, state updates and short convolutions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from infercast.lab.measure.device import vllm
from infercast.lab.measure.kernels.elementwise import build_elementwise
from infercast.lab.measure.launch import SimpleLaunch, Workspace, integers, starts_of
from infercast.lab.measure.rows import Shape
from infercast.ops.op import spread_lengths

# The engine tunes each kernel once with a single chunk, before it knows any prompt, so the same is done here. Queries,
# keys, values and gates were just written by the kernel before; states are cold.

CHUNK = 64
FLA, MAMBA = "model_executor.layers.fla.ops", "model_executor.layers.mamba.ops"
DELTA = ("chunk_delta_h", "chunk_o", "chunk_scaled_dot_kkt", "cumsum", "kda", "l2norm", "solve_tril", "wy_fast")
MODULES = {
    "mamba2": [f"{MAMBA}.ssd_{name}" for name in ("bmm", "chunk_scan", "chunk_state", "state_passing")],
    "delta": [f"{FLA}.{name}" for name in DELTA],
}
HEADS = ("heads", "key_heads", "key_dim", "value_dim")


def build_scan(shape: Shape, workspace: Workspace) -> SimpleLaunch:
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
        return torch.randn(*sizes, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype], device=self.device)


def _shorten_trials(kind: str) -> None:
    """Have Triton try each configuration for less long; nothing happens where its tuner is built otherwise."""
    with suppress(Exception):
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415
        from triton.testing import do_bench  # noqa: PLC0415

        tuning_ms = 5, 20  # warm-up and length of one trial of a configuration: a fifth of what Triton takes by default
        warmup, length = tuning_ms
        for module in MODULES.get(kind, MODULES["delta"]):
            for value in vars(vllm(module)).values():
                inner = value
                while inner is not None and not isinstance(inner, Autotuner):
                    inner = getattr(inner, "fn", None)
                if inner is not None:
                    inner.do_bench = partial(do_bench, warmup=warmup, rep=length)


def parts_of(mixed: Any, width: int, size: int) -> tuple[Any, Any, Any]:
    """Values, keys and queries of a state space, as its convolution leaves them side by side."""
    return mixed[:, :width], mixed[:, width : width + size], mixed[:, width + size :]


class _Gated:
    """Operands of a gated delta rule as its convolution leaves them, and the kernel that splits them into heads."""

    def __init__(self, workspace: Any, rows: int, heads: int, key_heads: int, key_dim: int, value_dim: int) -> None:
        self.mixed = workspace.take(rows, 2 * key_heads * key_dim + heads * value_dim)
        self.gates = {"a": workspace.take(rows, heads), "b": workspace.take(rows, heads)}
        device = workspace.device
        self.decay = {
            "A_log": torch.zeros(heads, device=device),
            "dt_bias": torch.ones(heads, dtype=torch.bfloat16, device=device),
        }
        self.split = partial(
            vllm(f"{FLA}.fused_gdn_prefill_post_conv").fused_post_conv_prep, conv_output=self.mixed, **self.gates,
            **self.decay, num_k_heads=key_heads, head_k_dim=key_dim, head_v_dim=value_dim, apply_l2norm=True,
            output_g_exp=False,
        )  # fmt: skip

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.mixed, *self.gates.values()


def _gated_delta(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    heads, _, key_dim, value_dim = sizes = [shape[name] for name in HEADS]
    gated = _Gated(workspace, sum(lengths), *sizes)
    inputs = tuple(part.unsqueeze(0) for part in gated.split())
    starts, index = starts_of(lengths, workspace.device), vllm(f"{FLA}.index")
    on_host = starts.cpu()
    launch = partial(
        vllm(FLA).chunk_gated_delta_rule, **dict(zip(("q", "k", "v", "g", "beta"), inputs, strict=True)),
        initial_state=workspace.take(len(lengths), heads, value_dim, key_dim, dtype="fp32"), output_final_state=True,
        cu_seqlens=starts, chunk_indices=index.prepare_chunk_indices(on_host, CHUNK).to(workspace.device),
        chunk_offsets=index.prepare_chunk_offsets(on_host, CHUNK).to(workspace.device), use_qk_l2norm_in_kernel=False,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, inputs)


def _kimi_delta(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    heads, width = shape["heads"], shape["key_dim"]
    tokens, device = sum(lengths), workspace.device
    taken = (workspace.take(1, tokens, heads, width) for _ in range(4))
    inputs = (*taken, torch.rand(1, tokens, heads, device=device))
    launch = partial(
        vllm(f"{FLA}.kda").chunk_kda_with_fused_gate,
        **dict(zip(("q", "k", "v", "raw_g", "beta"), inputs, strict=True)),
        A_log=torch.zeros(1, 1, heads, 1, device=device), g_bias=torch.zeros(heads * width, device=device),
        initial_state=workspace.take(len(lengths), heads, shape["value_dim"], width, dtype="fp32"),
        output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=starts_of(lengths, device),
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, inputs)


def _state_space(shape: Shape, lengths: list[int], workspace: Any) -> SimpleLaunch:
    heads, groups, size, width = (shape[name] for name in HEADS)
    tokens, device, chunk = sum(lengths), workspace.device, shape["chunk"]
    mixed = workspace.take(tokens, heads * width + 2 * groups * size)
    values, keys, queries = parts_of(mixed, heads * width, groups * size)
    steps, out = workspace.take(tokens, heads), workspace.take(tokens, heads, width)
    ones = torch.ones(heads, dtype=torch.bfloat16, device=device)
    cuts = [[min(chunk, length - start) for start in range(0, length, chunk)] for length in lengths]
    owners = [number for number, parts in enumerate(cuts) for _ in parts]
    launch = partial(
        vllm(f"{MAMBA}.ssd_combined").mamba_chunk_scan_combined_varlen, values.view(tokens, heads, width), steps,
        -torch.ones(heads, device=device), keys.view(tokens, groups, size), queries.view(tokens, groups, size),
        chunk_size=chunk, D=ones, z=None, dt_bias=ones, seq_idx=integers(owners, device),
        cu_seqlens=starts_of(lengths, device),
        cu_chunk_seqlens=starts_of([part for parts in cuts for part in parts], device),
        last_chunk_indices=integers(np.cumsum([len(parts) for parts in cuts]) - 1, device), initial_states=None,
        return_intermediate_states=False, dt_softplus=True, dt_limit=(0.0, float("inf")), out=out,
        state_dtype=torch.float32,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, (mixed, steps))


_BUILDERS: dict[str, Callable[[Shape, list[int], Any], SimpleLaunch]] = {
    "gdn": _gated_delta, "kda": _kimi_delta, "mamba2": _state_space,
}  # fmt: skip


# What a recurrent layer runs besides its scan, as vLLM 0.25 launches it. States lie cold in blocks that an engine hands
# out, of which number 0 means none.


def build_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    return _UPDATES[shape["kind"]](shape, workspace)


def _blocks(rows: int, workspace: Workspace) -> Any:
    return integers(range(1, rows + 1), workspace.device)


def _gated_delta_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    heads, _, key_dim, value_dim = sizes = [shape[name] for name in HEADS]
    rows, gated = shape["rows"], _Gated(workspace, shape["rows"], *sizes)
    launch = partial(
        vllm(FLA).fused_recurrent_gated_delta_rule_packed_decode, mixed_qkv=gated.mixed, **gated.gates, **gated.decay,
        scale=key_dim**-0.5,
        initial_state=workspace.take(rows + 1, heads, value_dim, key_dim, dtype=shape["state_dtype"]),
        out=workspace.take(rows, 1, heads, value_dim), ssm_state_indices=_blocks(rows, workspace),
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, gated.inputs)


def _kimi_delta_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    heads, width, rows, device = shape["heads"], shape["key_dim"], shape["rows"], workspace.device
    taken = (workspace.take(1, rows, heads, width) for _ in range(3))
    gate, beta = -torch.rand(1, rows, heads, width, device=device), torch.rand(1, rows, heads, device=device)
    inputs = (*taken, gate, beta)
    launch = partial(
        vllm(f"{FLA}.kda").fused_recurrent_kda, **dict(zip(("q", "k", "v", "g", "beta"), inputs, strict=True)),
        initial_state=workspace.take(rows + 1, heads, shape["value_dim"], width, dtype=shape["state_dtype"]),
        use_qk_l2norm_in_kernel=True, cu_seqlens=starts_of([1] * rows, device),
        ssm_state_indices=_blocks(rows, workspace),
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, inputs)


def _state_space_update(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    heads, groups, size, width = (shape[name] for name in HEADS)
    rows, device = shape["rows"], workspace.device
    mixed = workspace.take(rows, heads * width + 2 * groups * size)
    values, keys, queries = parts_of(mixed, heads * width, groups * size)
    steps, out = workspace.take(rows, heads), workspace.take(rows, heads, width)
    ones = torch.ones(heads, dtype=torch.bfloat16, device=device)
    decay = -torch.ones(heads, device=device)
    blocks = _blocks(rows, workspace)
    blackwell = 10
    launch = partial(
        vllm(f"{MAMBA}.mamba_ssm").selective_state_update,
        workspace.take(rows + 1, heads, width, size, dtype=shape["state_dtype"]), values.view(-1, heads, width),
        steps[:, :, None].expand(-1, -1, width), decay[:, None, None].expand(-1, width, size),
        keys.view(-1, groups, size), queries.view(-1, groups, size), ones[:, None].expand(-1, width),
        ones[:, None].expand(-1, width), dt_softplus=True, state_batch_indices=blocks, dst_state_batch_indices=blocks,
        out=out, is_blackwell=torch.cuda.get_device_capability()[0] == blackwell,
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, (mixed, steps))


_UPDATES: dict[str, Callable[[Shape, Workspace], SimpleLaunch]] = {
    "gdn": _gated_delta_update, "kda": _kimi_delta_update, "mamba2": _state_space_update,
}  # fmt: skip


def build_gating(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    """What lies between convolution, scan and output: heads split and gates worked out, or the gated norm."""
    if shape["op"] != "scan_inputs":
        return build_elementwise(shape, workspace)
    width = shape["width"]
    gated = _Gated(workspace, shape["rows"], shape["heads"], shape["key_heads"], width, width)
    return SimpleLaunch("vllm", gated.split, gated.inputs)


def build_convolution(shape: Shape, workspace: Workspace) -> SimpleLaunch:
    convolution, sequences = vllm(f"{MAMBA}.causal_conv1d"), shape["batch"]
    channels, taps = shape["channels"], shape["taps"]
    weight = workspace.take(channels, taps)
    lines = 513  # blocks of convolutions: the kernels are compiled for their number, which an engine fixes once
    # Stored token by token, and seen by the kernel channel by channel.
    state = workspace.take(max(lines, sequences + 1), taps - 1, channels).transpose(-1, -2)
    blocks = _blocks(sequences, workspace)
    if shape["update"]:
        x = workspace.take(sequences, channels)
        launch = partial(convolution.causal_conv1d_update, x, state, weight, None, "silu", conv_state_indices=blocks)
        return SimpleLaunch("vllm", partial(launch, validate_data=False), (x,))
    lengths = [int(length) for length in spread_lengths(sequences, shape["q_len"], shape["sigma"])]
    starts, device = starts_of(lengths, workspace.device), torch.device(workspace.device)
    names = ("nums_dict", "batch_ptr", "token_chunk_offset_ptr")
    found = vllm("v1.attention.backends.utils").compute_causal_conv1d_metadata(starts.cpu(), device=device)
    x = workspace.take(sum(lengths), channels)
    launch = partial(
        convolution.causal_conv1d_fn, x.transpose(0, 1), weight, None, activation="silu", conv_states=state,
        has_initial_state=torch.zeros(len(lengths), dtype=torch.bool, device=device), cache_indices=blocks,
        query_start_loc=starts, metadata=SimpleNamespace(**dict(zip(names, found, strict=True))),
    )  # fmt: skip
    return SimpleLaunch("vllm", launch, (x,))
