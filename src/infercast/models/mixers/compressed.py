"""DeepSeek-V4: attention over the last tokens and over compressed ones before them.

A layer compresses four tokens to an entry and lets an indexer choose entries (CSA), compresses 128 and looks at all
entries (HCA), or sees its window alone. Facts of vLLM 0.25 (``models/deepseek_v4``): queries, keys and values have one
width; one vector a token serves all heads as key and value, in FlashMLA's fp8 format whatever cache is asked for. The
output goes through a product for each group of heads before the last one. Prompts read a bf16 copy of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.models.mixers.batches import Form, split_forms
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.compressor import Compressor
from infercast.models.mixers.indexer import Indexer
from infercast.models.mixers.mixer import Mixer
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import Elementwise, copy, norm
from infercast.ops.op import Size
from infercast.ops.sparse import SparseAttention

WINDOW_BLOCK = 64
"""Tokens in a block of the window's cache."""


@dataclass(frozen=True, slots=True)
class CompressedAttention(Mixer):
    """Attention of every head to one vector a token: the last ``window`` ones, and compressed ones."""

    heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window: int
    entry_bytes: float
    """What a vector takes in the cache."""
    compressor: Compressor | None = None
    """None: the window alone."""
    indexer: Indexer | None = None
    """None: all compressed tokens are looked at."""
    head_multiple: int = 1
    """Kernels compute heads in multiples of so many, as the engine chooses them for a GPU."""

    modules = ("attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b")
    is_composed = True

    @property
    def kind(self) -> str:
        """The letters that DeepSeek gives it; the window alone has none."""
        return "CSA" if self.indexer else "HCA" if self.compressor else "window"

    @property
    def label(self) -> str:
        """Its kind, heads and their width."""
        return f"{self.kind} {self.heads} x {self.head_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        chosen = f", {self.indexer.topk:,} chosen" if self.indexer else ""
        every = f", one entry for {self.compressor.tokens} tokens{chosen}" if self.compressor else ""
        return f"{self.heads} heads of {self.head_dim}, window {self.window}{every}"

    def matrices(self, hidden: int) -> int:
        """Projections of queries, of the vector, of each group's output, and of all; the indexer's queries."""
        index = self.indexer.matrices if self.indexer else 0
        return self._whole_matrices(hidden) + self._split_matrices(hidden) + index

    def _whole_matrices(self, hidden: int) -> int:
        return hidden * (self.q_lora_rank + self.head_dim)

    def _split_matrices(self, hidden: int) -> int:
        width = self.heads * self.head_dim
        return (self.q_lora_rank + self.o_lora_rank) * width + self.o_groups * self.o_lora_rank * hidden

    def vectors(self, hidden: int) -> int:
        """Norms, sinks, and what compresses."""
        beside = self.compressor.vectors(hidden) if self.compressor else 0
        beside += self.indexer.vectors(hidden) if self.indexer else 0
        return self.q_lora_rank + self.head_dim + self.heads + beside

    def held_bytes(self, shard: Shard) -> float:
        """Heads and groups are split; the rest is on every GPU."""
        weights, hidden = shard.weights, shard.hidden
        values = self._whole_matrices(hidden) + self._split_matrices(hidden) / shard.layout.tensor
        index = self.indexer.held_bytes(shard) if self.indexer else 0.0
        return values * weights.stored_bytes(weights.attention) + index

    def divides(self, tensor: int) -> bool:
        """Heads and groups must."""
        return self.heads % tensor == 0 and self.o_groups % tensor == 0

    @property
    def split_widths(self) -> dict[str, int]:
        """Queries and what goes into the last product."""
        return {"queries": self.heads * self.head_dim, "attention output": self.o_groups * self.o_lora_rank}

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Queries and the vector, what compresses, and the way out through groups of heads."""
        weights, formats = shard.weights, shard.weights.of_attention
        width = shard.layout.share(self.heads) * self.head_dim
        value = bytes_of(weights.base)
        padded = self._padded_heads(shard) * self.head_dim
        # One kernel norms and rotates queries, pads their heads, and writes the vector to the window's cache.
        insert = Elementwise(
            "rope",
            tokens,
            value * (width + self.head_dim),
            value * padded + self.entry_bytes,
            7.0 * width,
            kind="normed_rope",
        )
        joined = self.q_lora_rank + self.head_dim
        queries = [
            *shard.linear("q_b_proj", tokens, width, self.q_lora_rank, formats, layers),
            Call("q_norm_rope_write", insert, layers),
        ]
        # An indexer takes longer than queries do, so that they are what runs beside it.
        queries = [replace(call, beside=True) for call in queries] if self.indexer else queries
        calls = [
            *shard.linear("qkv_a_proj", tokens, joined, shard.hidden, formats, layers),
            Call("qkv_a_norm", norm(tokens, joined, residual=False, dtype=weights.base), layers),
            *queries,
        ]
        if self.compressor:
            calls += self.compressor.token_calls(shard, tokens, layers, "")
        if self.indexer:
            calls += self.indexer.token_calls(shard, tokens, layers)
            places = copy(tokens, 8.0 * self.indexer.topk, 4.0 * (self.indexer.topk + self.window))
            calls.append(Call("index_places", places, layers))
        return [*calls, *self._output_calls(shard, tokens, layers)]

    def _output_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Rotated back and quantised in one kernel, a product for each group of heads, and one for all."""
        weights, layout = shard.weights, shard.layout
        weight, activation = weights.of_attention
        groups, width = layout.share(self.o_groups), layout.share(self.heads) * self.head_dim
        back = Elementwise(
            "rope", tokens, bytes_of(weights.base) * width, bytes_of(activation) * width, 3.0 * width, kind="rope"
        )
        each = Gemm(tokens, self.o_lora_rank, width // groups, activation, weight, weights.base, batch=groups)
        joined = groups * self.o_lora_rank
        return [
            Call("o_rope", back, layers),
            Call("o_a_proj", each, layers),
            *shard.linear("o_b_proj", tokens, shard.hidden, joined, weights.of_attention, layers),
        ]

    def _padded_heads(self, shard: Shard) -> int:
        return -(-shard.layout.share(self.heads) // self.head_multiple) * self.head_multiple

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """The indexer's kernels, the bf16 copy for prompts, and attention."""
        calls = self.indexer.sequence_calls(shard, layers, queries, keys, sequences) if self.indexer else []
        for form in split_forms(queries, keys, sequences):
            name = f"attention_{self.kind.lower()}"
            calls.append(Call(form.name(name), self._attend(shard, form), layers))
            if form.is_prompt:
                recent = form.num_recent(self.window)
                entries = form.num_entries(self.compressor.tokens) if self.compressor else 0
                widened = copy(recent + entries, self.entry_bytes, bytes_of(shard.weights.base) * self.head_dim)
                calls.append(Call("latent_gather", widened, layers))
        return calls

    def _attend(self, shard: Shard, form: Form) -> SparseAttention:
        """One kernel over the window and, where the layer has any, compressed tokens."""
        base = shard.weights.base
        # The window alone is the choice of its tokens.
        selected, window, tokens = self.window, 0, 1
        if self.compressor:
            selected, window, tokens = self.indexer.topk if self.indexer else 0, self.window, self.compressor.tokens
        return SparseAttention(
            *form.batch,
            heads=self._padded_heads(shard),
            head_dim=self.head_dim,
            value_dim=self.head_dim,
            selected=selected,
            window=window,
            compress=tokens,
            bytes_per_key=bytes_of(base) * self.head_dim if form.is_prompt else self.entry_bytes,
            kind="csa" if self.indexer else "hca",
            dtype=base,
            kv_dtype=base if form.is_prompt else "fp8",
        )

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The window, compressed tokens with the states they are made of, and the indexer's: all on every GPU."""
        recent = Cache(self.entry_bytes, window=self.window, block=WINDOW_BLOCK)
        compressed = self.compressor.caches() if self.compressor else ()
        return (recent, *compressed, *(self.indexer.caches() if self.indexer else ()))
