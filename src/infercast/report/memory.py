"""What fits, for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from infercast.engines.base import engine_of
from infercast.engines.memory import KvLayout
from infercast.models.spec import parameter_count
from infercast.report.terminal import facts, grid, section
from infercast.serve.cache.blocks import KvShape
from infercast.units import format_bytes, format_count, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from infercast.forecast.memory import Fit


def render_fit(fit: Fit) -> list[RenderableType]:
    model, memory = fit.model, fit.memory
    title = f"{model.name} ({model.weights.name}) on {fit.layout.gpus} x {fit.gpu.title}"
    if fit.layout.gpus != fit.layout.tensor or fit.layout.experts:
        title += f", {fit.layout}"
    rows = [(name, format_bytes(size), format_percent(size / memory.total)) for name, size in _parts(fit)]
    shape = memory.kv.shape
    answers = [
        ("parameters", format_count(parameter_count(model))),
        ("KV cache of a token", f"{_token_cost(memory.kv)} ({model.cache_dtype})"),
        ("KV blocks", f"{memory.num_blocks:,} of {tokens_each(shape)}, {format_bytes(memory.kv.block_bytes)} each"),
        ("longest sequence", f"{fit.longest_sequence:,} tokens"),
        ("most sequences", f"{fit.most_sequences:,} of {fit.context:,} tokens"),
    ]
    if shape.num_tables > 1:
        answers.insert(3, ("groups of layers", f"{shape.num_tables}: {_groups(shape)}"))
    if fit.layout.pipeline > 1:
        answers.append(("stage", f"the one of {fit.layout.pipeline} with least room; all have as many blocks"))
        answers.append(("most weights", f"{format_bytes(fit.most_weights)} per GPU, of all stages"))
    answers += [("note", note) for note in model.notes]
    name = engine_of(fit.settings).bounds[2]
    answers.append(("verdict", fit.problem or f"fits; {name} {fit.settings.max_model_len:,}"))
    return [
        section(title, grid(("memory of one GPU", "size", "of total"), rows)),
        section("What it holds", facts(answers)),
    ]


def fit_dict(fit: Fit) -> dict[str, Any]:
    memory = fit.memory
    return {
        "model": fit.model.name,
        "gpu": fit.gpu.name,
        "tensor_parallel_size": fit.layout.tensor,
        **({} if fit.layout.gpus == fit.layout.tensor and not fit.layout.experts else _layout(fit)),
        "weights": fit.model.weights.name,
        "kv_cache_dtype": fit.model.cache_dtype,
        "parameters": parameter_count(fit.model),
        "bytes": {name.replace(" ", "_"): size for name, size in _parts(fit)},
        "total_bytes": memory.total,
        "kv_bytes_per_token": memory.kv.first_token_bytes,
        "kv_bytes_per_token_beyond_windows": memory.kv.token_bytes,
        "num_gpu_blocks": memory.num_blocks,
        "block_size": memory.kv.shape.block_size,
        "block_sizes": list(memory.kv.shape.of_tokens.sizes),
        "block_bytes": memory.kv.block_bytes,
        "windows": list(memory.kv.shape.of_tokens.windows),
        "state_groups": memory.kv.shape.num_state_groups,
        "state_bytes_per_sequence": memory.kv.state_bytes,
        "longest_sequence": fit.longest_sequence,
        "most_sequences": fit.most_sequences,
        "context": fit.context,
        "max_model_len": fit.settings.max_model_len,
        "fits": not fit.problem,
        "problem": fit.problem or None,
        "notes": list(fit.model.notes),
    }


def _layout(fit: Fit) -> dict[str, Any]:
    """What tensor parallelism alone does not say."""
    return {
        "pipeline_parallel_size": fit.layout.pipeline,
        "weights_of_fullest_stage": fit.most_weights,
        "data_parallel_size": fit.layout.data,
        "enable_expert_parallel": fit.layout.experts,
    }


def tokens_each(shape: KvShape) -> str:
    sizes = sorted(set(shape.sizes))
    return "1 token" if sizes == [1] else f"{' or '.join(map(str, sizes))} tokens"


def _token_cost(kv: KvLayout) -> str:
    """Bytes of a token, and what becomes of that once windows are full."""
    windows = sorted({window for window in kv.shape.of_tokens.windows if window})
    cost = f"{format_bytes(kv.first_token_bytes)} per GPU"
    if kv.state_bytes:
        cost += f", and {format_bytes(kv.state_bytes)} of a sequence for states"
    if not windows:
        return cost
    ends = " and ".join(f"{window:,}" for window in windows)
    rest = f"{format_bytes(kv.token_bytes)} from there on" if kv.token_bytes else "nothing more from there on"
    return f"{cost} up to {ends} tokens, {rest}"


def _groups(shape: KvShape) -> str:
    tokens, words = shape.of_tokens, []
    if shape.num_state_groups:
        words.append(f"{shape.num_state_groups} x states")
    for (window, size), count in Counter(zip(tokens.windows, tokens.sizes, strict=True)).items():
        kept = "all tokens" if window == 0 else f"chunks of {window:,}" if shape.chunked else f"last {window:,}"
        times = f"{count} x " if count > 1 else ""
        words.append(f"{times}{kept}" + (f" in blocks of {size}" if shape.block_sizes else ""))
    return ", ".join(words)


def _parts(fit: Fit) -> list[tuple[str, float]]:
    memory = fit.memory
    used = memory.needed + memory.kv_bytes
    return [
        ("weights", memory.weights),
        ("activations", memory.activations),
        ("CUDA graphs", memory.graphs),
        ("libraries", memory.libraries),
        *([("recurrent states", memory.states)] if memory.states else []),
        ("KV cache", float(memory.kv_bytes)),
        ("left free", max(0.0, memory.total - used)),
    ]
