"""Block-sparse grouped attention (MiniMax-M3): index heads choose the blocks of tokens that a group of heads looks at.

Facts of vLLM 0.25 (``models/minimax_m3``): there is an index head for each key-value head, split and copied as these
are, and one index key a token, which every GPU keeps in bf16. A block scores as its best token. The blocks at the start
and the end that are always taken count among the chosen ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.batches import split_forms
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.grouped import GroupedAttention
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import Elementwise
from infercast.ops.op import Size
from infercast.ops.sparse import IndexScores, SparseAttention, TopK


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseAttention(GroupedAttention):
    """Grouped attention over ``blocks`` blocks of ``block`` tokens for each query and key-value head."""

    index_heads: int
    index_dim: int
    blocks: int
    block: int

    takes_quantised = False
    is_composed = True

    @property
    def label(self) -> str:
        """Heads, and that they are sparse."""
        return f"MSA {self.heads}/{self.kv_heads} x {self.head_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        chosen = f"{self.blocks} blocks of {self.block}"
        return f"{self.heads}/{self.kv_heads} heads of {self.head_dim}, {self.index_heads} index heads choose {chosen}"

    def matrices(self, hidden: int) -> int:
        """Those of attention, index queries and the index key."""
        return GroupedAttention.matrices(self, hidden) + hidden * (self.index_heads + 1) * self.index_dim

    def vectors(self, hidden: int) -> int:
        """Index queries and keys have norms of their own."""
        return GroupedAttention.vectors(self, hidden) + 2 * self.index_dim

    def held_bytes(self, shard: Shard) -> float:
        """Index heads are split as key-value heads are; the index key is on every GPU."""
        index = shard.hidden * self._index_width(shard)
        return GroupedAttention.held_bytes(self, shard) + index * shard.weights.stored_bytes(shard.weights.attention)

    def _index_width(self, shard: Shard) -> int:
        """Index queries of one GPU, and the key."""
        return (shard.layout.share_kv_heads(self.index_heads) + 1) * self.index_dim

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """One product for all five, one kernel that norms, rotates and writes to both caches, and the output."""
        weights, layout = shard.weights, shard.layout
        value = bytes_of(weights.base)
        queries = layout.share(self.heads) * self.head_dim
        cached = layout.share_kv_heads(self.kv_heads) * self._pair_dim
        projected = queries + cached + self._index_width(shard)
        written = value * (queries + self._index_width(shard)) + bytes_of(shard.cache_dtype) * cached
        norms = Elementwise("rope", tokens, value * projected, written, 7.0 * projected, kind="normed_rope")
        return [
            *shard.linear("qkv_proj", tokens, projected, shard.hidden, weights.of_attention, layers),
            Call("qk_norm_rope_write", norms, layers),
            *shard.linear(
                "o_proj", tokens, shard.hidden, layout.share(self.heads) * self.value_dim, weights.of_attention, layers
            ),
        ]

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Scores of blocks, the choice for each index head, and attention over what was chosen."""
        base, layout = shard.weights.base, shard.layout
        index_heads, kv_heads = layout.share_kv_heads(self.index_heads), layout.share_kv_heads(self.kv_heads)
        calls: list[Call] = []
        for form in split_forms(queries, keys, sequences):
            scores = IndexScores(
                *form.batch, heads=index_heads, head_dim=self.index_dim, entry_bytes=self._key_bytes(shard), dtype=base
            )
            # Every index head chooses for itself.
            rows = form.queries, form.keys, form.sequences * index_heads
            attention = SparseAttention(
                *form.batch,
                heads=layout.share(self.heads),
                head_dim=self.head_dim,
                value_dim=self.value_dim,
                kv_heads=kv_heads,
                selected=self.blocks * self.block,
                block=self.block,
                bytes_per_key=kv_heads * self._pair_dim * bytes_of(shard.cache_dtype),
                kind="msa",
                dtype=base,
                kv_dtype=shard.cache_dtype,
            )
            calls += [
                Call(form.name("index_scores"), scores, layers),
                Call(form.name("index_topk"), TopK(*rows, topk=self.blocks, compress=self.block), layers),
                Call(form.name("attention_blocks"), attention, layers),
            ]
        return calls

    def _key_bytes(self, shard: Shard) -> float:
        """The index key of a token."""
        return self.index_dim * bytes_of(shard.weights.base)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """Keys and values, and the index key."""
        return (*GroupedAttention.caches(self, shard), Cache(self._key_bytes(shard)))
