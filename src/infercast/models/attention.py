"""The attention half of a layer, lowered to kernels."""

from __future__ import annotations

from infercast.models.layout import ParallelLayout
from infercast.models.linear import linear
from infercast.models.spec import GroupedAttention, LatentAttention, ModelConfig, Stack
from infercast.ops import Attention, Call, Collective, Gemm
from infercast.ops.attention import Lengths
from infercast.ops.elementwise import head_norm, kv_write, norm, rope
from infercast.ops.op import Size

SQUARES_BYTES = 2 * 4
"""The mean squares of a token's queries and keys, in fp32."""


def attention_token_calls(config: ModelConfig, stack: Stack, layout: ParallelLayout, tokens: Size) -> list[Call]:
    """Projections, norms, rotary embedding and KV write: whatever needs only the number of tokens."""
    if isinstance(stack.attention, LatentAttention):
        return _latent_token_calls(config, stack.attention, layout, tokens, stack.layers)
    return _grouped_token_calls(config, stack.attention, layout, tokens, stack.layers)


def sequence_calls(
    config: ModelConfig,
    spec: GroupedAttention | LatentAttention,
    layers: int,
    layout: ParallelLayout,
    queries: Lengths,
    keys: Lengths,
    sequences: Lengths | int = 1,
) -> list[Call]:
    """The attention kernel itself, which needs the length of every sequence."""
    if isinstance(spec, LatentAttention):
        return _latent_sequence_calls(config, spec, layers, layout, queries, keys, sequences)
    op = Attention(
        queries,
        keys,
        heads=layout.share(spec.heads),
        kv_heads=layout.share_kv_heads(spec.kv_heads),
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        sequences=sequences,
        window=spec.window,
        dtype=config.weights.base,
        kv_dtype=config.cache_dtype,
    )
    return [Call("attention_window" if spec.window else "attention", op, layers)]


def _grouped_token_calls(
    config: ModelConfig, spec: GroupedAttention, layout: ParallelLayout, tokens: Size, layers: int
) -> list[Call]:
    """Grouped-query attention: one product for queries, keys and values together."""
    weights = config.weights
    heads, kv_heads = layout.share(spec.heads), layout.share_kv_heads(spec.kv_heads)
    query_width, key_width = heads * spec.head_dim, kv_heads * spec.head_dim
    value_width = kv_heads * spec.value_dim
    projected = query_width + key_width + (0 if spec.shared_key_value else value_width)
    formats = (weights.attention, weights.activation_attention)
    # The norm before quantises what it writes: the engine's compiler fuses it into it.
    calls = linear("qkv_proj", tokens, projected, config.hidden, formats, weights.base, layers, quantised=True)
    if spec.qk_norm:
        op = head_norm(tokens, heads + kv_heads, spec.head_dim, weights.base)
        calls.append(Call("qk_norm", op, layers))
        if spec.norm_across and layout.tensor > 1:
            squares = Collective("all_reduce", tokens * SQUARES_BYTES, layout.tensor)
            calls.append(Call("qk_norm_reduce", squares, layers))
    if spec.rotary_dim:
        op = rope(tokens, heads + kv_heads, spec.rotary_dim, weights.base, normed=spec.qk_norm)
        calls.append(Call("rope", op, layers))
    calls.append(Call("kv_write", kv_write(tokens, key_width + value_width, weights.base, config.cache_dtype), layers))
    calls += linear("o_proj", tokens, config.hidden, heads * spec.value_dim, formats, weights.base, layers)
    return calls


def _latent_token_calls(
    config: ModelConfig, spec: LatentAttention, layout: ParallelLayout, tokens: Size, layers: int
) -> list[Call]:
    """Latent attention: compress, norm, expand the queries; the latent itself is the same on every GPU."""
    weights = config.weights
    heads = layout.share(spec.heads)
    query_width = heads * (spec.nope_dim + spec.rope_dim)
    formats = (weights.attention, weights.activation_attention)
    compressed = spec.q_lora_rank + spec.latent_dim
    calls: list[Call] = []
    if spec.q_lora_rank:
        calls += linear("qkv_a_proj", tokens, compressed, config.hidden, formats, weights.base, layers)
        calls.append(Call("q_a_norm", norm(tokens, spec.q_lora_rank, residual=False, dtype=weights.base), layers))
        calls += linear("q_b_proj", tokens, query_width, spec.q_lora_rank, formats, weights.base, layers)
    else:
        calls += linear("q_proj", tokens, query_width, config.hidden, formats, weights.base, layers)
        calls += linear("kv_a_proj", tokens, compressed, config.hidden, formats, weights.base, layers)
    calls.append(Call("kv_a_norm", norm(tokens, spec.kv_lora_rank, residual=False, dtype=weights.base), layers))
    # The rest of each query head is copied beside what is rotated.
    rotated = rope(tokens, heads + 1, spec.rope_dim, weights.base, copied=query_width - heads * spec.rope_dim)
    calls.append(Call("rope", rotated, layers))
    calls.append(Call("kv_write", kv_write(tokens, spec.latent_dim, weights.base, config.cache_dtype), layers))
    calls += linear("o_proj", tokens, config.hidden, heads * spec.value_dim, formats, weights.base, layers)
    return calls


def _latent_sequence_calls(
    config: ModelConfig,
    spec: LatentAttention,
    layers: int,
    layout: ParallelLayout,
    queries: Lengths,
    keys: Lengths,
    sequences: Lengths | int = 1,
) -> list[Call]:
    """Latent attention in its two forms.

    Prompts expand the latent of every key into full heads and attend as multi-head attention. Single new tokens
    fold the expansion into the query instead and attend to the latent itself, as multi-query attention.
    """
    base, heads = config.weights.base, layout.share(spec.heads)
    calls: list[Call] = []
    decoding = queries == 1
    if not decoding.all():
        # An array of batches is of one form throughout; a single batch may hold both.
        mixed = bool(decoding.any())
        prompt_queries, prompt_keys = (queries[~decoding], keys[~decoding]) if mixed else (queries, keys)
        queries, keys = queries[decoding], keys[decoding]
        tokens = (prompt_keys * sequences).sum(axis=-1)
        expanded = heads * (spec.nope_dim + spec.value_dim)
        formats = (config.weights.attention, config.weights.activation_attention)
        calls += linear("kv_b_proj", tokens, expanded, spec.kv_lora_rank, formats, base, layers)
        prompt = Attention(
            prompt_queries,
            prompt_keys,
            heads=heads,
            kv_heads=heads,
            head_dim=spec.nope_dim + spec.rope_dim,
            value_dim=spec.value_dim,
            sequences=sequences,
            dtype=base,
        )
        calls.append(Call("attention_prompt", prompt, layers))
    if queries.shape[-1]:
        rows: Size = queries.shape[-1] if isinstance(sequences, int) else sequences.sum(axis=-1)
        absorb = Gemm(rows, spec.kv_lora_rank, spec.nope_dim, dtype=base, batch=heads)
        expand = Gemm(rows, spec.value_dim, spec.kv_lora_rank, dtype=base, batch=heads)
        latent = Attention(
            queries,
            keys,
            heads=heads,
            kv_heads=1,
            head_dim=spec.latent_dim,
            value_dim=spec.kv_lora_rank,
            sequences=sequences,
            latent_kv=True,
            dtype=base,
            kv_dtype=config.cache_dtype,
        )
        calls += [Call("q_absorb", absorb, layers), Call("attention_latent", latent, layers)]
        calls.append(Call("v_expand", expand, layers))
    return calls
