"""The lightning indexer of DeepSeek sparse attention: small heads that choose which tokens attention looks at.

Facts of vLLM 0.25 (``models/deepseek_v2.py``, class Indexer, and ``layers/sparse_attn_indexer.py``): every GPU runs the
whole indexer, however the heads of attention are split. Its keys are cached in fp8 with a scale, apart from the latent.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.batches import split_forms
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.compressor import Compressor
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm
from infercast.ops.attention import Lengths
from infercast.ops.elementwise import Elementwise, copy, norm, rope, small_blocks
from infercast.ops.op import Size
from infercast.ops.sparse import IndexScores, TopK

SCALE_BYTES = 4
"""One fp32 scale for each key, as for each query head."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """``heads`` index heads whose scores, weighted and added up, rank the tokens before."""

    heads: int
    head_dim: int
    rope_dim: int
    query_rank: int
    """Width of the compressed query that the index queries are projected from."""
    topk: int
    compressor: Compressor | None = None
    """Index keys are of so many tokens together (DeepSeek-V4); None: each token has its own."""
    tied: bool = False
    """It was never trained: all scores are equal but for tiny differences."""

    @property
    def _tokens(self) -> int:
        """Tokens of an index key."""
        return self.compressor.tokens if self.compressor else 1

    @property
    def entry_bytes(self) -> int:
        """What the key of a token takes in the cache: fp8 values and their scale."""
        return self.head_dim + SCALE_BYTES

    @property
    def matrices(self) -> int:
        """The projection of the index queries, which is quantised as attention is."""
        return self.query_rank * self.heads * self.head_dim

    def vectors(self, hidden: int) -> int:
        """Projections of key and weights, which stay in the base format, and the norm of the key with its bias."""
        keys = self.compressor.vectors(hidden) if self.compressor else (hidden + 2) * self.head_dim
        return hidden * self.heads + keys

    def held_bytes(self, shard: Shard) -> float:
        """The whole projection on every GPU."""
        return self.matrices * shard.weights.stored_bytes(shard.weights.attention)

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Index queries, keys and weights, written as the scores need them."""
        formats, width = shard.weights.of_attention, self.heads * self.head_dim
        return [
            *shard.linear("index_q_proj", tokens, width, self.query_rank, formats, layers),
            Call("index_q_rope", self._queries(tokens), layers),
            *self._key_calls(shard, tokens, layers),
            Call("index_clear", copy(tokens, 0.0, 4.0 * self.topk), layers),
        ]

    def _key_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Keys and the weights of heads, from one product unless keys are compressed."""
        base = shard.weights.base
        if self.compressor:
            weigh = Gemm(tokens, self.heads, shard.hidden, base)
            side = Call("index_weights", weigh, layers, beside=True)
            return [side, *self.compressor.token_calls(shard, tokens, layers, "index_")]
        write = Elementwise("kv_write", tokens, 2.0 * self.head_dim + 8, self.entry_bytes)
        return [
            Call("index_k_proj", Gemm(tokens, self.head_dim + self.heads, shard.hidden, base), layers),
            Call("index_k_norm", norm(tokens, self.head_dim, residual=False, dtype=base), layers),
            Call("index_k_rope", rope(tokens, 1, self.rope_dim, base), layers),
            Call("index_write", write, layers),
        ]

    def _queries(self, tokens: Size) -> Elementwise:
        """One kernel rotates and quantises index queries and scales the weights of heads: a thread block a head."""
        return small_blocks(tokens * self.heads, 2.0 * self.head_dim + 2, self.head_dim + SCALE_BYTES)

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Scores and the choice; for prompts, whose kernels take plain arrays, keys are gathered from blocks first."""
        calls: list[Call] = []
        for form in split_forms(queries, keys, sequences):
            if form.is_prompt:
                gather = copy(form.num_entries(self._tokens), self.entry_bytes, self.entry_bytes)
                calls.append(Call("index_gather", gather, layers))
            scores = IndexScores(
                *form.batch,
                heads=self.heads,
                head_dim=self.head_dim,
                compress=self._tokens,
                entry_bytes=self.entry_bytes,
            )
            calls.append(Call(form.name("index_scores"), scores, layers))
            choice = TopK(*form.batch, topk=self.topk, compress=self._tokens, tied=self.tied)
            calls.append(Call(form.name("index_topk"), choice, layers))
        return calls

    def caches(self) -> tuple[Cache, ...]:
        """The keys, whole on every GPU, and the states that compressed ones are made of."""
        return self.compressor.caches() if self.compressor else (Cache(self.entry_bytes),)
