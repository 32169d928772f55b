"""Multi-head, grouped-query and multi-query attention, over all tokens, a sliding window or chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.models.layout import Shard
from infercast.models.mixers.mixer import Cache, Mixer, SequenceBatch
from infercast.ops import Attention, Call, Collective
from infercast.ops.op import Size, bytes_of, head_norm, kv_write, output_gate, rope, strided_copy

SQUARES_BYTES = 2 * 4  # The mean squares of a token's queries and keys, in fp32


@dataclass(frozen=True, slots=True)
class GroupedAttention(Mixer):
    """Multi-head, grouped-query or multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rotary_dim: int
    window: int = 0  # A query sees the last ``window`` tokens; 0: all of them
    qk_norm: bool = False  # Norms over each query and key head (Qwen3, Gemma 3)
    norm_across: bool = False
    """Those norms are over all heads together (MiniMax-M2), so GPUs that split the heads must add up squares."""
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False  # A learned sink logit for each head (gpt-oss)
    shared_key_value: bool = False
    """Values are the keys: one projection serves both (Gemma 4 global layers); the cache still holds both."""
    chunked: bool = False
    """``window`` is a chunk (Llama 4): a query sees its own chunk from its first token on, not the last tokens."""
    gate_width: int = 0
    """Gates that a head's output is multiplied with: as many as values, projected with the queries (Qwen3-Next and
    Qwen3.5), or one, by a product of its own (Step-3.5); 0: none."""

    by_hand: bool = False
    """The engine has no compiler that fuses: hand-written kernels norm, rotate and store, and attention takes queries
    that lie together, so they are copied out of the joined product (SGLang)."""
    stores_rotated: bool = False  # One kernel by hand rotates and stores
    decode_saved: float = 0.0
    """Seconds that attention of decoding sequences takes less than in measured tables, as the engine launches it ..."""
    prompts_slower: float = 1.0  # ... and how many times as long that of prompts takes

    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    takes_quantised = True

    label_text = "{0.heads}/{0.kv_heads} x {0.head_dim}"

    @property
    def description(self) -> str:
        window = f", window {self.window:,}" if self.window else ""
        return f"{self.heads}/{self.kv_heads} heads of {self.head_dim}{window}"

    @property
    def _pair_dim(self) -> int:
        """A key and a value; also a query and what comes out for it."""
        return self.head_dim + self.value_dim

    def matrices(self, hidden: int) -> int:
        values = 0 if self.shared_key_value else self.kv_heads * self.value_dim
        queries = self.heads * (self._pair_dim + self.gate_width)
        return hidden * (queries + self.kv_heads * self.head_dim + values)

    def vectors(self, hidden: int) -> int:
        """Norms of the heads, biases and sinks."""
        return (
            (2 * self.head_dim if self.qk_norm else 0)
            + (self.heads * self.head_dim + self.kv_heads * self._pair_dim if self.qkv_bias else 0)
            + (hidden if self.output_bias else 0)
            + (self.heads if self.sinks else 0)
        )

    def held_bytes(self, shard: Shard) -> float:
        """Heads are split; with more GPUs than key-value heads, several hold the same one."""
        layout, weights = shard.layout, shard.weights
        # An engine keeps keys that serve as values twice, as if values had a projection of their own.
        heads = self.heads / layout.tensor
        columns = heads * (self._pair_dim + self.gate_width) + layout.share_kv_heads(self.kv_heads) * self._pair_dim
        return shard.hidden * columns * weights.stored_bytes(weights.attention)

    def divides(self, tensor: int) -> bool:
        """Query heads must; key-value heads may also be copied."""
        return self.heads % tensor == 0 and (self.kv_heads % tensor == 0 or tensor % self.kv_heads == 0)

    @property
    def split_widths(self) -> dict[str, int]:
        """The output alone: the joined product before it may be cut inside a block."""
        return {"attention output": self.heads * self.value_dim}

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """One product for queries, keys and values together, what is done to each head, and the output."""
        weights, layout = shard.weights, shard.layout
        heads, kv_heads = layout.share(self.heads), layout.share_kv_heads(self.kv_heads)
        key_width, value_width = kv_heads * self.head_dim, kv_heads * self.value_dim
        projected = heads * self.head_dim + key_width + (0 if self.shared_key_value else value_width)
        projected += heads * self.gate_width if self.gate_width > 1 else 0
        # The norm before quantises what it writes: the engine's compiler fuses it into it.
        calls = shard.linear("qkv_proj", tokens, projected, shard.hidden, "attention", quantised=True)
        if self.qk_norm:
            op = head_norm(tokens, heads + kv_heads, self.head_dim, weights.base, by_hand=self.by_hand)
            calls.append(Call("qk_norm", op))
            if self.norm_across and layout.tensor > 1:
                squares = Collective("all_reduce", tokens * SQUARES_BYTES, layout.tensor, layout.library)
                calls.append(Call("qk_norm_reduce", squares))
        calls += self._placed(shard, tokens)
        calls += self._gate_calls(shard, heads, tokens)
        calls += shard.linear("o_proj", tokens, shard.hidden, heads * self.value_dim, "attention")
        return calls

    def _placed(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries and keys are rotated, keys and values go into the cache."""
        base, layout = shard.weights.base, shard.layout
        heads, kv_heads = layout.share(self.heads), layout.share_kv_heads(self.kv_heads)
        stored = kv_write(tokens, kv_heads * self._pair_dim, base, shard.cache_dtype, by_hand=self.by_hand)
        calls = [Call("kv_write", stored)]
        if self.rotary_dim:
            normed = self.qk_norm and not self.by_hand
            op = rope(tokens, heads + kv_heads, self.rotary_dim, base, normed=normed, by_hand=self.by_hand)
            if self.stores_rotated:
                # Keys are at hand; values are read, and both are written.
                read = op.read_per_row + kv_heads * self.value_dim * bytes_of(base)
                op = replace(op, read_per_row=read, written_per_row=op.written_per_row + stored.written_per_row)
                calls = []
            calls.insert(0, Call("rope", op))
        if self.by_hand:
            calls.append(Call("query_copy", strided_copy(tokens, heads * self.head_dim * bytes_of(base))))
        return calls

    def _gate_calls(self, shard: Shard, heads: int, tokens: Size) -> list[Call]:
        """The gate of the output, and the product that gives it where there is one for each head."""
        if not self.gate_width:
            return []
        formats, base = "attention", shard.weights.base
        calls = shard.linear("gate_proj", tokens, heads, shard.hidden, formats) if self.gate_width == 1 else []
        gated = output_gate(tokens, heads * self.value_dim, heads * self.gate_width, base)
        return [*calls, Call("output_gate", gated)]

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        op = Attention(
            batch.queries,
            batch.keys,
            heads=shard.layout.share(self.heads),
            kv_heads=shard.layout.share_kv_heads(self.kv_heads),
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            sequences=batch.sequences,
            window=self.window,
            dtype=shard.weights.base,
            kv_dtype=shard.cache_dtype,
        )
        name = "attention_window" if self.window else "attention"
        if batch.is_prompt:
            return [Call(name, op, slower=self.prompts_slower)]
        return [Call(name, op, saved=self.decode_saved)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """Keys and values are read once: the new tokens of a sequence count as that many more heads of one token."""
        return replace(self, heads=self.heads * width).sequence_calls(shard, batch)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        width = shard.layout.share_kv_heads(self.kv_heads) * self._pair_dim
        return (Cache(width * bytes_of(shard.cache_dtype), window=self.window, chunked=self.chunked),)
