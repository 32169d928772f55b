"""From a model to the kernels of one step, fused as an engine launches them, for one or an array of token counts.

- `token_calls`: everything that depends on the number of tokens in the step alone (projections, feed-forward, norms);
- `attention_calls`: what depends on the lengths of the sequences in the batch;
- `head_calls`: the language-model head and sampling, which see only the rows that produce a token.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from infercast.errors import InputError
from infercast.lazy_classes import fields, replace
from infercast.models.layout import ParallelLayout, Shard
from infercast.models.mixers.mixer import Mixer, SequenceBatch
from infercast.models.spec import SORTED, AdapterSlots, Edits, ModelConfig, Stack
from infercast.ops import Call, Collective, Elementwise, Gemm, HyperConnection
from infercast.ops.op import Lengths, Size, bytes_of, embedding, gated_activation, norm, sampling, sorted_sampling

SLICES = {"qkv_proj": 3, "gate_up_proj": 2}  # Projections that are several side by side, each with adapters of its own
DRAFT_PREFIX = "draft_"  # Before the names of kernels that draft for speculative decoding (`infercast.models.draft`)


def adapter_calls(calls: list[Call], slots: AdapterSlots, tokens: Size, dtype: str) -> list[Call]:
    """The kernels that adapters add to those of a step, with all slots taken as far as there are tokens. Each
    projection gets two products, to the rank and back, of all tokens. Ranks are small, so both move data: the input
    once more, the output twice, and the adapters. That is physics from shapes, not measured.
    """
    active: Any = np.minimum(tokens, slots.count)
    value, found = bytes_of(dtype), []
    buffer_bytes = 4  # Between the two products values are kept in fp32
    for call in calls:
        if not (is_adapted(call) and isinstance(call.op, Gemm)):
            continue
        inner, kept = SLICES.get(call.name, 1) * slots.rank, SLICES.get(call.name, 1) * slots.rank * buffer_bytes
        read, written = float(cast("int", call.op.k)) * value, float(cast("int", call.op.n)) * value
        shrunk = Elementwise("lora", tokens, read, kept, shared_read=active * inner * read, kind="lora_shrink")
        grown = Elementwise(
            "lora", tokens, kept + written, written, shared_read=active * slots.rank * written, kind="lora_expand"
        )
        found += [Call("lora_shrink", shrunk, call.count), Call("lora_expand", grown, call.count)]
    return found


def adapter_bytes(calls: list[Call], slots: AdapterSlots, dtype: str) -> float:
    """What the matrices of all slots take on a GPU, from the kernels of a step without adapters."""
    values = sum(
        call.count * slots.rank * (SLICES.get(call.name, 1) * cast("int", call.op.k) + cast("int", call.op.n))
        for call in calls
        if is_adapted(call) and isinstance(call.op, Gemm)
    )
    return float(slots.count * values * bytes_of(dtype))


def is_adapted(call: Call) -> bool:
    """Whether a kernel is a projection that adapters change; routers and heads are not."""
    return isinstance(call.op, Gemm) and call.name.endswith("_proj") and call.op.batch == 1


def token_calls(config: ModelConfig, layout: ParallelLayout, tokens: Size) -> list[Call]:
    base, shard = config.weights.base, config.shard(layout)
    calls = [Call("embedding", embedding(tokens, config.hidden, base))]
    calls += _layer_inputs(config, layout, tokens) if config.layer_inputs else []
    message = tokens * config.hidden * int(bytes_of(base))
    for stack in config.stacks:
        calls += _norms(shard, stack, tokens)
        calls += in_layers(stack.mixer.token_calls(shard, tokens), stack.layers)
        calls += in_layers(stack.feed_forward.calls(shard, tokens), stack.layers)
        calls += in_layers(_gated_input(shard, stack.input_width, tokens), stack.layers) if stack.input_width else []
        if layout.tensor > 1:
            # Where copies share spread experts, what scatters their results takes the place of the second all-reduce.
            scattered = layout.experts and layout.sharing > 1 and stack.feed_forward.experts
            halves = (not stack.mixer.is_empty) + (not stack.feed_forward.is_empty and not scattered) - stack.parallel
            reduce = Collective("all_reduce", message, layout.tensor, layout.library)
            calls += [Call("all_reduce", reduce, halves * stack.layers)] if halves else []
    if layout.pipeline > 1:
        # Hidden states and residuals go to the next stage, each GPU of a stage sending its share.
        carried = max(2, *[stack.streams for stack in config.stacks])
        sent = Collective("send_recv", carried * message // layout.tensor, layout.replica_gpus)
        calls.append(Call("stage_send", sent, layout.pipeline - 1))
    streams = max(stack.streams for stack in config.stacks)
    if streams > 1:
        joined = HyperConnection(tokens, hidden=config.hidden, streams=streams, half="pre")
        calls.append(Call("hyper_head", joined))
    calls.append(Call("final_norm", norm(tokens, config.hidden, residual=True, dtype=base)))
    return edited(merge(calls), config.edits) if config.edits.names else merge(calls)


def edited(calls: list[Call], edits: Edits) -> list[Call]:
    """The same kernels without dropped ones, and with what is left to move of those that are fused."""
    calls = [call for call in calls if not any(call.name in names for names in edits.drop)]
    for first, second in (pair for names in edits.fuse for pair in pairwise(names)):
        before, after = (next((call for call in calls if call.name == name), None) for name in (first, second))
        if before is not None and after is not None:
            calls = _fused(calls, before, after)
    return calls


def _fused(calls: list[Call], before: Call, after: Call) -> list[Call]:
    """What the first writes and the second reads is moved no more; the one that works value by value has the rest."""
    is_last = isinstance(after.op, Elementwise)
    own, other = (after, before) if is_last else (before, after)
    if not isinstance(own.op, Elementwise):
        raise InputError(
            f"fuse {before.name}+{after.name}: one of two neighbours must work value by value, as norms and activations"
        )
    common = own.op.read_per_row if is_last else own.op.written_per_row
    moved = other.op.bytes_written if is_last else other.op.bytes_read
    if isinstance(other.op, Gemm) and not is_last:
        moved = other.op.m * other.op.k * bytes_of(other.op.dtype)  # without its weights
    common = min(common, float(np.ravel(np.asarray(moved) / own.op.rows)[0]))
    read, written = (max(each - common, 0.0) for each in (own.op.read_per_row, own.op.written_per_row))
    number, launch = min(own.count, other.count), 2e-6
    left = [replace(own, count=own.count - number)] if own.count > number else []
    if read or written:
        op = replace(own.op, read_per_row=read, written_per_row=written)
        left.append(replace(own, op=op, count=number, saved=launch))
    return [each for call in calls for each in (left if call is own else [call])]


def _layer_inputs(config: ModelConfig, layout: ParallelLayout, tokens: Size) -> list[Call]:
    """A token's embeddings for all layers: a row of their table, and a product of its embedding that is normed."""
    width, base = config.layer_inputs, config.weights.base
    calls = [
        Call("layer_embedding", embedding(tokens, width, base)),
        Call("layer_inputs", Gemm(tokens, layout.share(width), config.hidden, base)),
        Call("layer_input_sum", gated_activation(tokens, width, base)),
    ]
    if layout.tensor > 1:
        message = tokens * width * int(bytes_of(base))
        calls.append(Call("layer_embedding_reduce", Collective("all_reduce", message, layout.tensor, layout.library)))
        calls.append(Call("layer_inputs_gather", Collective("all_gather", message, layout.tensor)))
    return calls


def _gated_input(shard: Shard, width: int, tokens: Size) -> list[Call]:
    """A layer's own embedding is gated by the hidden state and added to it; every GPU does all of it."""
    base, hidden = shard.weights.base, shard.hidden
    return [
        Call("input_gate", Gemm(tokens, width, hidden, base)),
        Call("input_activation", gated_activation(tokens, width, base)),
        Call("input_up", Gemm(tokens, hidden, width, base)),
    ]


def lora_calls(config: ModelConfig, layout: ParallelLayout, tokens: Size) -> list[Call]:
    """What LoRA adapters add to these in a step in which a sequence has one."""
    if config.adapters is None:
        return []
    return merge(adapter_calls(token_calls(config, layout, tokens), config.adapters, tokens, config.weights.base))


def attention_calls(
    config: ModelConfig, layout: ParallelLayout, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
) -> list[Call]:
    """Attention over ``queries[i]`` new of ``keys[i]`` tokens; arrays hold batches of equal ``sequences``."""
    shard, batch = config.shard(layout), SequenceBatch(queries, keys, sequences)
    mixers = mixer_layers(config).items()
    return [call for mixer, layers in mixers for call in in_layers(mixer.sequence_calls(shard, batch), layers)]


def verify_calls(
    config: ModelConfig, layout: ParallelLayout, width: int, keys: Lengths, sequences: Lengths | int = 1
) -> list[Call]:
    """Attention of sequences that verify drafts, ``width`` new tokens each, in a batch or an array of batches."""
    shard, batch = config.shard(layout), SequenceBatch(np.ones_like(keys), keys, sequences)
    mixers = mixer_layers(config).items()
    return [call for mixer, layers in mixers for call in in_layers(mixer.verify_calls(shard, width, batch), layers)]


def in_layers(calls: list[Call], layers: int) -> list[Call]:
    return [replace(call, count=layers * call.count) for call in calls]


def mixer_layers(config: ModelConfig) -> dict[Mixer, int]:
    layers: dict[Mixer, int] = {}
    for stack in config.stacks:
        if not stack.mixer.is_empty:
            layers[stack.mixer] = layers.get(stack.mixer, 0) + stack.layers
    return layers


def head_calls(config: ModelConfig, layout: ParallelLayout, rows: Size) -> list[Call]:
    """The head and sampling over the ``rows`` that produce a token in this step; a norm where they are pooled."""
    weights = config.weights
    if config.pools:
        return [Call("pooling", norm(rows, config.hidden, residual=False, dtype=weights.base))]
    vocabulary = layout.share(config.vocabulary)
    head = Gemm(rows, vocabulary, config.hidden, dtype=weights.base, weight_dtype=weights.head, family="lm_head")
    calls = [Call("lm_head", head)]
    if layout.tensor > 1:
        message = rows * int(config.vocabulary * bytes_of(weights.base))
        calls.append(Call("logits_gather", Collective("all_gather", message, layout.tensor)))
    calls.append(Call("sampling", sampling(rows, config.vocabulary)))
    if config.sampling == SORTED:
        calls.append(Call("sort_logits", sorted_sampling(rows, config.vocabulary)))
    return calls


def step_calls(
    config: ModelConfig, layout: ParallelLayout, queries: Lengths, keys: Lengths, *, sampled: int
) -> list[Call]:
    """Every kernel of one step over one batch, in the order of the three groups."""
    return [
        *token_calls(config, layout, int(np.sum(queries))),
        *attention_calls(config, layout, queries, keys),
        *head_calls(config, layout, sampled),
    ]


def merge(calls: list[Call]) -> list[Call]:
    """Join what stacks have in common: the same kernel on the same shape (arrays aside), launched more often."""
    merged: dict[tuple[object, ...], Call] = {}
    for call in calls:
        values = [getattr(call.op, each.name) for each in fields(call.op)]  # type: ignore[arg-type]
        key = (call.name, call.beside is not False, *[value for value in values if not isinstance(value, np.ndarray)])
        seen = merged.get(key)
        merged[key] = call if seen is None else replace(call, count=seen.count + call.count)
    return list(merged.values())


def _norms(shard: Shard, stack: Stack, tokens: Size) -> list[Call]:
    """The norms over the hidden size; each swallows the residual addition before it and the quantising after it."""
    weights = shard.weights
    if stack.streams > 1:
        # Before a half, what the last one wrote goes into all streams, and their mix is normed for this one.
        halves_of = partial(HyperConnection, tokens, hidden=shard.hidden, streams=stack.streams)
        return [Call(f"hyper_{half}", halves_of(half=half), 2 * stack.layers) for half in ("post", "pre")]
    halves = ((stack.mixer, stack.mixer.part), (stack.feed_forward, "feed_forward"))
    formats = [
        getattr(weights, f"activation_{part}") if half.takes_quantised and not weights.quantised_apart else weights.base
        for half, part in halves
        if not half.is_empty
    ]
    # Norms beyond these follow mixer and feed-forward: what they write is added, not multiplied.
    formats = [*formats, *(weights.base,) * (stack.norms - len(formats))][: stack.norms]
    calls = []
    common = {"residual": True, "fused": shard.layout.fused_norms and shard.layout.tensor > 1}
    for written in dict.fromkeys(formats):
        op = norm(tokens, shard.hidden, dtype=weights.base, out_dtype=written, streams=stack.residuals, **common)
        name = "norm" if written == weights.base else "norm_quantise"
        calls.append(Call(name, op, formats.count(written) * stack.layers))
    return calls
