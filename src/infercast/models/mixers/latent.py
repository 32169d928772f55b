"""Multi-head latent attention (DeepSeek, Kimi): one compressed vector per token is cached for all heads."""

from __future__ import annotations

from infercast.lazy_classes import dataclass
from infercast.models.layout import Shard
from infercast.models.mixers.mixer import Cache, Mixer, SequenceBatch
from infercast.ops import Attention, Call, Gemm
from infercast.ops.op import Size, bytes_of, kv_write, norm, output_gate, rope


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    """Multi-head latent attention: projections down to a latent and up from it again."""

    heads: int
    kv_lora_rank: int
    q_lora_rank: int  # 0: queries are projected directly
    nope_dim: int
    rope_dim: int
    value_dim: int

    modules = ("self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj")
    divided = ("heads",)
    is_composed = True

    @property
    def latent_dim(self) -> int:
        """Values cached a token: the compressed key-value vector and the shared rotary key."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def expanded_dim(self) -> int:
        """What the latent is expanded to for each head: a key without its rotary part, and a value."""
        return self.nope_dim + self.value_dim

    label_text = "MLA {0.heads} x {0.latent_dim}"
    description_text = "MLA, {0.heads} heads, latent {0.latent_dim}"

    def matrices(self, hidden: int) -> int:
        return self._whole_matrices(hidden) + self.heads * self._matrices_a_head(hidden)

    def _whole_matrices(self, hidden: int) -> int:
        """Projections down, which every GPU holds."""
        return hidden * (self.q_lora_rank + self.latent_dim)

    def _matrices_a_head(self, hidden: int) -> int:
        """What GPUs split: queries, the expansion of the latent, the output."""
        queries = (self.q_lora_rank or hidden) * self.query_dim
        return queries + self.kv_lora_rank * self.expanded_dim + self.value_dim * hidden

    def vectors(self, hidden: int) -> int:
        return self.q_lora_rank + self.kv_lora_rank

    def held_bytes(self, shard: Shard) -> float:
        """Heads are split; the projections down to a latent are on every GPU."""
        weights, heads = shard.weights, self.heads / shard.layout.tensor
        values = self._whole_matrices(shard.hidden) + heads * self._matrices_a_head(shard.hidden)
        # Decoding multiplies with the expansion in the base format, so a quantised one has a wide copy, too.
        expansion = heads * self.kv_lora_rank * self.expanded_dim
        copied = 0.0 if weights.attention == weights.base else expansion * weights.stored_bytes(weights.base)
        return values * weights.stored_bytes(weights.attention) + copied

    @property
    def split_widths(self) -> dict[str, int]:
        return {
            "attention output": self.heads * self.value_dim,
            "queries": self.heads * self.query_dim,
            "keys and values": self.heads * self.expanded_dim,
        }

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Compress, norm, expand the queries; the latent itself is the same on every GPU."""
        weights = shard.weights
        heads = shard.layout.share(self.heads)
        query_width = heads * self.query_dim
        compressed = self.q_lora_rank + self.latent_dim
        calls: list[Call] = []
        if self.q_lora_rank:
            calls += shard.linear("qkv_a_proj", tokens, compressed, shard.hidden, "attention")
            calls.append(Call("q_a_norm", norm(tokens, self.q_lora_rank, residual=False, dtype=weights.base)))
            calls += shard.linear("q_b_proj", tokens, query_width, self.q_lora_rank, "attention")
        else:
            calls += shard.linear("q_proj", tokens, query_width, shard.hidden, "attention")
            calls += shard.linear("kv_a_proj", tokens, compressed, shard.hidden, "attention")
        calls.append(Call("kv_a_norm", norm(tokens, self.kv_lora_rank, residual=False, dtype=weights.base)))
        # The rest of each query head is copied along.
        rotated = rope(tokens, heads + 1, self.rope_dim, weights.base, copied=query_width - heads * self.rope_dim)
        calls.append(Call("rope", rotated))
        calls.append(Call("kv_write", kv_write(tokens, self.latent_dim, weights.base, shard.cache_dtype)))
        calls += shard.linear("o_proj", tokens, shard.hidden, heads * self.value_dim, "attention")
        return calls

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        kinds = ((self._prompt_calls if form.is_prompt else self._decode_calls, form) for form in batch.forms())
        return [call for calls, form in kinds for call in calls(shard, form)]

    def _prompt_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """The latent of every key is expanded into full heads, which attend as multi-head attention."""
        heads, sizes = shard.layout.share(self.heads), (self.query_dim, self.value_dim)
        op = Attention(
            batch.queries, batch.keys, heads, heads, *sizes, sequences=batch.sequences, dtype=shard.weights.base
        )
        expanded = heads * self.expanded_dim
        expansion = shard.linear("kv_b_proj", batch.num_entries(), expanded, self.kv_lora_rank, "attention")
        return [*expansion, Call("attention_prompt", op)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """The latent is read once: the new tokens of a sequence count as that many more heads of one token."""
        return self._decode_calls(shard, batch, width)

    def _decode_calls(self, shard: Shard, batch: SequenceBatch, width: int = 1) -> list[Call]:
        """The expansion is folded into the query, which attends to the latent itself as multi-query attention."""
        base, heads, rows = shard.weights.base, shard.layout.share(self.heads), batch.size * width
        latent = Attention(
            batch.queries,
            batch.keys,
            heads=heads * width,
            kv_heads=1,
            head_dim=self.latent_dim,
            value_dim=self.kv_lora_rank,
            sequences=batch.sequences,
            latent_kv=True,
            dtype=base,
            kv_dtype=shard.cache_dtype,
        )
        return [
            Call("q_absorb", Gemm(rows, self.kv_lora_rank, self.nope_dim, dtype=base, batch=heads)),
            Call("attention_latent", latent),
            Call("v_expand", Gemm(rows, self.value_dim, self.kv_lora_rank, dtype=base, batch=heads)),
        ]

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        return (Cache(self.latent_dim * bytes_of(shard.cache_dtype)),)


@dataclass(frozen=True, slots=True)
class KimiLatentAttention(LatentAttention):
    """Latent attention without rotary positions."""

    gated: bool = False  # The output is multiplied with a gate of its width, by a product of its own

    def matrices(self, hidden: int) -> int:
        return LatentAttention.matrices(self, hidden) + self._gate_matrix(hidden)

    def held_bytes(self, shard: Shard) -> float:
        weights = shard.weights
        gate = self._gate_matrix(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.attention)
        return LatentAttention.held_bytes(self, shard) + gate

    def _gate_matrix(self, hidden: int) -> int:
        return hidden * self.heads * self.value_dim if self.gated else 0

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        calls = [call for call in LatentAttention.token_calls(self, shard, tokens) if call.name != "rope"]
        if self.gated:
            width = shard.layout.share(self.heads) * self.value_dim
            calls += shard.linear("gate_proj", tokens, width, shard.hidden, "attention")
            calls.append(Call("output_gate", output_gate(tokens, width, width, shard.weights.base)))
        return calls
