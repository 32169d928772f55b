"""DeepSeek sparse attention (DSA): latent attention over the tokens that an indexer has chosen for each query.

Facts of vLLM 0.25 (``layers/attention/mla_attention.py``, ``v1/attention/backends/mla/*_sparse.py``): prompts run as
decoding does. The expansion is folded into the queries, which attend to chosen entries of the latent itself; short
prompts are no exception. Layers without an indexer of their own take the choice of the layer before (GLM-5.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.batches import split_forms
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.indexer import Indexer
from infercast.models.mixers.latent import LatentAttention
from infercast.models.mixers.mixer import Mixer
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import PACKED_LATENT, bytes_of
from infercast.ops.elementwise import copy, norm, small_blocks
from infercast.ops.op import Size
from infercast.ops.sparse import SparseAttention

NORMS = ("q_a_norm", "kv_a_norm")
PLACES = 128
"""Places in a sequence that one thread block translates to places in the cache."""
LEAST_HEADS_GATHERED = 32
"""From so many heads on a GPU, prompts read a packed cache through a bf16 copy of it."""


@dataclass(frozen=True, slots=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention of each query with no more than ``topk`` tokens."""

    topk: int
    indexer: Indexer | None = None
    """None: the layer reuses what the indexer of a layer before it chose."""
    head_multiple: int = 1
    """Kernels compute heads in multiples of so many, as the engine chooses them for a GPU."""
    unpadded_heads: int = 0
    """But no more than so many are computed as they are, by another kernel."""
    joins_queries: bool = False
    """The two parts of a query are copied beside each other first."""

    @property
    def label(self) -> str:
        """Heads, the width of the latent, and how many tokens a query sees."""
        return f"DSA {self.heads} x {self.latent_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        chosen = f"{self.indexer.heads} index heads choose" if self.indexer else "reuses the choice of"
        return f"DSA, {self.heads} heads, latent {self.latent_dim}, {chosen} {self.topk:,} tokens"

    def matrices(self, hidden: int) -> int:
        """Those of latent attention, and of the indexer."""
        return LatentAttention.matrices(self, hidden) + (self.indexer.matrices if self.indexer else 0)

    def vectors(self, hidden: int) -> int:
        """The same."""
        return LatentAttention.vectors(self, hidden) + (self.indexer.vectors(hidden) if self.indexer else 0)

    def held_bytes(self, shard: Shard) -> float:
        """The indexer is whole on every GPU."""
        return LatentAttention.held_bytes(self, shard) + (self.indexer.held_bytes(shard) if self.indexer else 0.0)

    def entry_bytes(self, shard: Shard) -> float:
        """What a token takes in the cache of latents."""
        return self.latent_dim * bytes_of(shard.cache_dtype)

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Those of latent attention, the indexer's, and the folding of the expansion into every query."""
        base, heads = shard.weights.base, shard.layout.share(self.heads)
        calls = [call for call in LatentAttention.token_calls(self, shard, tokens, layers) if call.name not in NORMS]
        # The compiler norms both latents in one kernel.
        both = norm(tokens, self.q_lora_rank + self.kv_lora_rank, residual=False, dtype=base)
        calls.append(Call("latent_norm", both, layers))
        if self.indexer:
            calls += self.indexer.token_calls(shard, tokens, layers)
        absorb = Gemm(tokens, self.kv_lora_rank, self.nope_dim, dtype=base, batch=heads)
        expand = Gemm(tokens, self.value_dim, self.kv_lora_rank, dtype=base, batch=heads)
        # Places in a sequence become places in the cache.
        places = small_blocks(tokens * (self.topk // PLACES), 8.0 * PLACES, 4.0 * PLACES)
        calls += [Call("q_absorb", absorb, layers), Call("index_places", places, layers)]
        # How many places each query has, counted from zero; FlashAttention also asks where each query starts.
        calls.append(Call("index_counts", copy(tokens, 0.0, 4.0), layers if self.joins_queries else 2 * layers))
        if self.joins_queries:
            width = bytes_of(base) * heads * self.latent_dim
            calls.append(Call("q_join", copy(tokens, width, width), layers))
        return [*calls, Call("v_expand", expand, layers)]

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """The indexer's kernels, and attention over what it chose."""
        calls = self.indexer.sequence_calls(shard, layers, queries, keys, sequences) if self.indexer else []
        heads = shard.layout.share(self.heads)
        if shard.cache_dtype != PACKED_LATENT or heads < LEAST_HEADS_GATHERED:
            return [*calls, self._attend(shard, layers, "attention_sparse", (queries, keys, sequences), heads)]
        for form in split_forms(queries, keys, sequences):
            calls.append(self._attend(shard, layers, form.name("attention_sparse"), form.batch, heads, form.is_prompt))
            if form.is_prompt:
                widen = copy(form.num_entries(), self.entry_bytes(shard), 2.0 * self.latent_dim)
                calls.append(Call("latent_gather", widen, layers))
        return calls

    def verify_calls(
        self, shard: Shard, layers: int, width: int, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Every draft chooses its own tokens, so nothing is read once for all of them."""
        return Mixer.verify_calls(self, shard, layers, width, keys, sequences)

    def _attend(
        self,
        shard: Shard,
        layers: int,
        name: str,
        batch: tuple[Lengths, Lengths, Lengths | int],
        heads: int,
        is_widened: bool = False,
    ) -> Call:
        """One kernel; ``is_widened``: over a copy of the cache in the base format."""
        base = shard.weights.base
        is_padded = heads > self.unpadded_heads
        op = SparseAttention(
            *batch,
            heads=-(-heads // self.head_multiple) * self.head_multiple if is_padded else heads,
            head_dim=self.latent_dim,
            value_dim=self.kv_lora_rank,
            selected=self.topk,
            bytes_per_key=self.latent_dim * bytes_of(base) if is_widened else self.entry_bytes(shard),
            kind="mla",
            # Only a plain fp8 cache is multiplied with queries in fp8.
            dtype="fp8" if shard.cache_dtype == "fp8" else base,
            kv_dtype=base if is_widened else "fp8" if shard.cache_dtype == PACKED_LATENT else shard.cache_dtype,
        )
        return Call(name, op, layers)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The latent, and where the layer has an indexer its keys: both whole on every GPU."""
        latent = Cache(self.entry_bytes(shard))
        return (latent, *self.indexer.caches()) if self.indexer else (latent,)
