"""Sparse attention: token indexers (DeepSeek-V3.2), compressed keys (DeepSeek-V4), blocks (MiniMax-M3).

Facts of vLLM 0.25. Every GPU runs the whole indexer (``layers/sparse_attn_indexer.py``), its keys cached in fp8
with a scale, and the whole compressor (``models/deepseek_v4/compressor.py``), in the base format; what tokens bring
waits in fp32 until an entry is complete. Prompts of latents run as decoding does, also short ones
(``v1/attention/backends/mla/*_sparse.py``). DeepSeek-V4 compresses four tokens to an entry and lets an indexer choose
(CSA), or 128 and looks at all (HCA), or sees its window alone; one vector a token serves all heads as key and value, in
FlashMLA's fp8 format, and prompts read a bf16 copy (``models/deepseek_v4``). MiniMax-M3 has an index head for each
key-value head and one index key a token, which every GPU keeps in bf16; a block scores as its best token, and those
always taken count among the chosen (``models/minimax_m3``).
"""

from __future__ import annotations

from infercast.lazy_classes import dataclass, replace
from infercast.models.layout import Shard
from infercast.models.mixers.mixer import Cache, GroupedAttention, LatentAttention, Mixer, SequenceBatch
from infercast.ops import Call, Gemm
from infercast.ops.mixers import IndexScores, SparseAttention, TopK
from infercast.ops.op import PACKED_LATENT, Elementwise, Size, bytes_of, copy, norm, rope, small_blocks

SCALE_BYTES = 4  # One fp32 scale for each key, as for each query head
PLACES = 128  # Places in a sequence that one thread block translates to places in the cache
LEAST_HEADS_GATHERED = 32  # From this many heads on a GPU, prompts read a packed cache through a bf16 copy of it


@dataclass(frozen=True, slots=True)
class Compressor:
    """Entries of ``head_dim`` for every ``tokens`` tokens."""

    tokens: int
    head_dim: int
    entry_bytes: float  # What an entry takes in the cache

    @property
    def spans(self) -> int:
        """Entries that a token is part of."""
        overlapping = 4  # Entries of this many tokens also hold the ones before
        return 2 if self.tokens == overlapping else 1

    @property
    def _width(self) -> int:
        """What a token brings: a part and its weight for each entry."""
        return 2 * self.spans * self.head_dim

    def vectors(self, hidden: int) -> int:
        """The projection, a position's weights, and the norm of an entry; none of it is quantised."""
        return hidden * self._width + self.tokens * self.spans * self.head_dim + self.head_dim

    def token_calls(self, shard: Shard, tokens: Size, prefix: str) -> list[Call]:
        """States of tokens, and entries made of them, in parallel with queries and keys."""
        project = Gemm(tokens, self._width, shard.hidden, shard.weights.base, out_dtype="fp32")
        state, entry = 4.0 * self._width, self.entry_bytes / self.tokens
        return [
            Call(f"{prefix}compress_proj", project, beside=True),
            Call(f"{prefix}compress_save", copy(tokens, state, state), beside=True),
            Call(f"{prefix}compress", copy(tokens, state, entry), beside=True),
        ]

    def caches(self) -> tuple[Cache, ...]:
        """Entries, and the states of the tokens that the next entry is made of."""
        block = {4: 4, 128: 8}.get(self.tokens, 0)  # Tokens in a block of waiting states
        states = Cache(4.0 * self._width, window=self.spans * self.tokens, block=block)
        return Cache(self.entry_bytes / self.tokens, compress=self.tokens), states


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseAttention(GroupedAttention):
    """Grouped attention over ``blocks`` blocks of ``block`` tokens for each query and key-value head."""

    index_heads: int
    index_dim: int
    blocks: int
    block: int
    takes_quantised = False
    is_composed = True
    label_text = "MSA {0.heads}/{0.kv_heads} x {0.head_dim}"

    @property
    def description(self) -> str:
        chosen = f"{self.blocks} blocks of {self.block}"
        return f"{self.heads}/{self.kv_heads} heads of {self.head_dim}, {self.index_heads} index heads choose {chosen}"

    def matrices(self, hidden: int) -> int:
        return GroupedAttention.matrices(self, hidden) + hidden * (self.index_heads + 1) * self.index_dim

    def vectors(self, hidden: int) -> int:
        return GroupedAttention.vectors(self, hidden) + 2 * self.index_dim

    def held_bytes(self, shard: Shard) -> float:
        """Index heads are split as key-value heads are; the index key is on every GPU."""
        index = shard.hidden * self._index_width(shard)
        return GroupedAttention.held_bytes(self, shard) + index * shard.weights.stored_bytes(shard.weights.attention)

    def _index_width(self, shard: Shard) -> int:
        """Index queries of one GPU, and the key."""
        return (shard.layout.share_kv_heads(self.index_heads) + 1) * self.index_dim

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """One product for all five, one kernel that norms, rotates and writes to both caches, and the output."""
        weights, layout = shard.weights, shard.layout
        value = bytes_of(weights.base)
        queries = layout.share(self.heads) * self.head_dim
        cached = layout.share_kv_heads(self.kv_heads) * self._pair_dim
        projected = queries + cached + self._index_width(shard)
        written = value * (queries + self._index_width(shard)) + bytes_of(shard.cache_dtype) * cached
        norms = Elementwise("rope", tokens, value * projected, written, 7.0 * projected, kind="normed_rope")
        return [
            *shard.linear("qkv_proj", tokens, projected, shard.hidden, "attention"),
            Call("qk_norm_rope_write", norms),
            *shard.linear("o_proj", tokens, shard.hidden, layout.share(self.heads) * self.value_dim, "attention"),
        ]

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """Scores of blocks, the choice for each index head, and attention over what was chosen."""
        base, layout = shard.weights.base, shard.layout
        index_heads, kv_heads = layout.share_kv_heads(self.index_heads), layout.share_kv_heads(self.kv_heads)
        calls: list[Call] = []
        for form in batch.forms():
            scores = IndexScores(
                *form, heads=index_heads, head_dim=self.index_dim, entry_bytes=self._key_bytes(shard), dtype=base
            )
            # Every index head chooses for itself.
            rows = form._replace(sequences=form.sequences * index_heads)
            attention = SparseAttention(
                *form, heads=layout.share(self.heads), head_dim=self.head_dim, value_dim=self.value_dim,
                kv_heads=kv_heads, selected=self.blocks * self.block, block=self.block,
                bytes_per_key=kv_heads * self._pair_dim * bytes_of(shard.cache_dtype), kind="msa", dtype=base,
                kv_dtype=shard.cache_dtype,
            )  # fmt: skip
            calls += [
                Call(form.name("index_scores"), scores),
                Call(form.name("index_topk"), TopK(*rows, topk=self.blocks, compress=self.block)),
                Call(form.name("attention_blocks"), attention),
            ]
        return calls

    def _key_bytes(self, shard: Shard) -> float:
        return self.index_dim * bytes_of(shard.weights.base)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        return (*GroupedAttention.caches(self, shard), Cache(self._key_bytes(shard)))


@dataclass(frozen=True, slots=True)
class Indexer:
    """``heads`` index heads; their weighted sum of scores ranks the tokens before."""

    heads: int
    head_dim: int
    rope_dim: int
    query_rank: int  # Width of the compressed query that the index queries are projected from
    topk: int
    compressor: Compressor | None = None  # Index keys are of several tokens together (DeepSeek-V4); None: of one each
    tied: bool = False  # It was never trained: all scores are equal but for tiny differences

    @property
    def _tokens(self) -> int:
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

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Index queries, keys and weights, written as the scores need them."""
        # One kernel rotates and quantises index queries and scales the weights of heads: a thread block a head.
        rotated = small_blocks(tokens * self.heads, 2.0 * self.head_dim + 2, self.head_dim + SCALE_BYTES)
        return [
            *shard.linear("index_q_proj", tokens, self.heads * self.head_dim, self.query_rank, "attention"),
            Call("index_q_rope", rotated),
            *self._key_calls(shard, tokens),
            Call("index_clear", copy(tokens, 0.0, 4.0 * self.topk)),
        ]

    def _key_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Keys and the weights of heads, from one product unless keys are compressed."""
        base = shard.weights.base
        if self.compressor:
            side = Call("index_weights", Gemm(tokens, self.heads, shard.hidden, base), beside=True)
            return [side, *self.compressor.token_calls(shard, tokens, "index_")]
        return [
            Call("index_k_proj", Gemm(tokens, self.head_dim + self.heads, shard.hidden, base)),
            Call("index_k_norm", norm(tokens, self.head_dim, residual=False, dtype=base)),
            Call("index_k_rope", rope(tokens, 1, self.rope_dim, base)),
            Call("index_write", Elementwise("kv_write", tokens, 2.0 * self.head_dim + 8, self.entry_bytes)),
        ]

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """Scores and the choice; kernels of prompts take plain arrays, so keys are gathered from blocks first."""
        calls: list[Call] = []
        for form in batch.forms():
            if form.is_prompt:
                gather = copy(form.num_entries(self._tokens), self.entry_bytes, self.entry_bytes)
                calls.append(Call("index_gather", gather))
            scores = IndexScores(
                *form, heads=self.heads, head_dim=self.head_dim, compress=self._tokens, entry_bytes=self.entry_bytes
            )
            calls.append(Call(form.name("index_scores"), scores))
            choice = TopK(*form, topk=self.topk, compress=self._tokens, tied=self.tied)
            calls.append(Call(form.name("index_topk"), choice))
        return calls

    def caches(self) -> tuple[Cache, ...]:
        """The keys, whole on every GPU, and the states that compressed ones are made of."""
        return self.compressor.caches() if self.compressor else (Cache(self.entry_bytes),)


@dataclass(frozen=True, slots=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention of each query with no more than ``topk`` tokens."""

    topk: int
    indexer: Indexer | None = None  # None: the layer reuses what the indexer of a layer before it chose
    head_multiple: int = 1  # Kernels compute heads in multiples of this, as the engine chooses them for a GPU
    unpadded_heads: int = 0  # But up to this many are computed as they are, by another kernel
    joins_queries: bool = False  # The two parts of a query are copied together first
    label_text = "DSA {0.heads} x {0.latent_dim}"

    @property
    def description(self) -> str:
        chosen = f"{self.indexer.heads} index heads choose" if self.indexer else "reuses the choice of"
        return f"DSA, {self.heads} heads, latent {self.latent_dim}, {chosen} {self.topk:,} tokens"

    def whole_matrices(self, hidden: int) -> int:
        return LatentAttention.whole_matrices(self, hidden) + (self.indexer.matrices if self.indexer else 0)

    def vectors(self, hidden: int) -> int:
        return LatentAttention.vectors(self, hidden) + (self.indexer.vectors(hidden) if self.indexer else 0)

    def entry_bytes(self, shard: Shard) -> float:
        return self.latent_dim * bytes_of(shard.cache_dtype)

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Those of latent attention, the indexer's, and the folding of the expansion into every query."""
        base, heads = shard.weights.base, shard.layout.share(self.heads)
        # The compiler norms both latents in one kernel.
        norms = ("q_a_norm", "kv_a_norm")
        calls = [call for call in LatentAttention.token_calls(self, shard, tokens) if call.name not in norms]
        both = norm(tokens, self.q_lora_rank + self.kv_lora_rank, residual=False, dtype=base)
        calls.append(Call("latent_norm", both))
        if self.indexer:
            calls += self.indexer.token_calls(shard, tokens)
        absorb = Gemm(tokens, self.kv_lora_rank, self.nope_dim, dtype=base, batch=heads)
        expand = Gemm(tokens, self.value_dim, self.kv_lora_rank, dtype=base, batch=heads)
        # Places in a sequence become places in the cache.
        places = small_blocks(tokens * (self.topk // PLACES), 8.0 * PLACES, 4.0 * PLACES)
        calls += [Call("q_absorb", absorb), Call("index_places", places)]
        # How many places each query has, counted from zero; FlashAttention also asks where each query starts.
        calls.append(Call("index_counts", copy(tokens, 0.0, 4.0), 1 if self.joins_queries else 2))
        if self.joins_queries:
            width = bytes_of(base) * heads * self.latent_dim
            calls.append(Call("q_join", copy(tokens, width, width)))
        return [*calls, Call("v_expand", expand)]

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        calls = self.indexer.sequence_calls(shard, batch) if self.indexer else []
        heads = shard.layout.share(self.heads)
        if shard.cache_dtype != PACKED_LATENT or heads < LEAST_HEADS_GATHERED:
            return [*calls, self._attend(shard, "attention_sparse", batch, heads)]
        for form in batch.forms():
            calls.append(self._attend(shard, form.name("attention_sparse"), form, heads, form.is_prompt))
            if form.is_prompt:
                widen = copy(form.num_entries(), self.entry_bytes(shard), 2.0 * self.latent_dim)
                calls.append(Call("latent_gather", widen))
        return calls

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """Every draft chooses its own tokens, so nothing is read once for all of them."""
        return Mixer.verify_calls(self, shard, width, batch)

    def _attend(self, shard: Shard, name: str, batch: SequenceBatch, heads: int, is_widened: bool = False) -> Call:
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
        return Call(name, op)

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The latent, and where the layer has an indexer its keys: both whole on every GPU."""
        latent = Cache(self.entry_bytes(shard))
        return (latent, *self.indexer.caches()) if self.indexer else (latent,)


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
    entry_bytes: float  # What a vector takes in the cache
    compressor: Compressor | None = None  # None: the window alone
    indexer: Indexer | None = None  # None: all compressed tokens are looked at
    head_multiple: int = 1  # Kernels compute heads in multiples of this, as the engine chooses them for a GPU
    modules = ("attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b")
    divided = ("heads", "o_groups")
    is_composed = True

    @property
    def kind(self) -> str:
        """The letters that DeepSeek gives it; the window alone has none."""
        return "CSA" if self.indexer else "HCA" if self.compressor else "window"

    label_text = "{0.kind} {0.heads} x {0.head_dim}"

    @property
    def description(self) -> str:
        chosen = f", {self.indexer.topk:,} chosen" if self.indexer else ""
        every = f", one entry for {self.compressor.tokens} tokens{chosen}" if self.compressor else ""
        return f"{self.heads} heads of {self.head_dim}, window {self.window}{every}"

    def whole_matrices(self, hidden: int) -> int:
        """Projections of queries and of the vector; the indexer's queries."""
        return hidden * (self.q_lora_rank + self.head_dim) + (self.indexer.matrices if self.indexer else 0)

    def split_matrices(self, hidden: int) -> int:
        """Queries, and outputs of each group and of all."""
        width = self.heads * self.head_dim
        return (self.q_lora_rank + self.o_lora_rank) * width + self.o_groups * self.o_lora_rank * hidden

    def vectors(self, hidden: int) -> int:
        beside = self.compressor.vectors(hidden) if self.compressor else 0
        beside += self.indexer.vectors(hidden) if self.indexer else 0
        return self.q_lora_rank + self.head_dim + self.heads + beside

    @property
    def split_widths(self) -> dict[str, int]:
        """Queries and what goes into the last product."""
        return {"queries": self.heads * self.head_dim, "attention output": self.o_groups * self.o_lora_rank}

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries and the vector, what compresses, and the way out through groups of heads."""
        weights, formats = shard.weights, "attention"
        width = shard.layout.share(self.heads) * self.head_dim
        value = bytes_of(weights.base)
        padded = self._padded_heads(shard) * self.head_dim
        # One kernel norms and rotates queries, pads their heads, and writes the vector to the window's cache.
        read, written = value * (width + self.head_dim), value * padded + self.entry_bytes
        insert = Elementwise("rope", tokens, read, written, 7.0 * width, kind="normed_rope")
        joined = self.q_lora_rank + self.head_dim
        queries = shard.linear("q_b_proj", tokens, width, self.q_lora_rank, formats)
        queries.append(Call("q_norm_rope_write", insert))
        # An indexer takes longer than queries do, so queries run in parallel with it.
        queries = [replace(call, beside=True) for call in queries] if self.indexer else queries
        calls = [
            *shard.linear("qkv_a_proj", tokens, joined, shard.hidden, formats),
            Call("qkv_a_norm", norm(tokens, joined, residual=False, dtype=weights.base)),
            *queries,
        ]
        if self.compressor:
            calls += self.compressor.token_calls(shard, tokens, "")
        if self.indexer:
            calls += self.indexer.token_calls(shard, tokens)
            places = copy(tokens, 8.0 * self.indexer.topk, 4.0 * (self.indexer.topk + self.window))
            calls.append(Call("index_places", places))
        return [*calls, *self._output_calls(shard, tokens)]

    def _output_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Rotated back and quantised in one kernel, a product for each group of heads, and one for all."""
        weights, layout = shard.weights, shard.layout
        weight, activation = weights.of("attention")
        groups, width = layout.share(self.o_groups), layout.share(self.heads) * self.head_dim
        back = Elementwise(
            "rope", tokens, bytes_of(weights.base) * width, bytes_of(activation) * width, 3.0 * width, kind="rope"
        )
        each = Gemm(tokens, self.o_lora_rank, width // groups, activation, weight, weights.base, batch=groups)
        last = shard.linear("o_b_proj", tokens, shard.hidden, groups * self.o_lora_rank, "attention")
        return [Call("o_rope", back), Call("o_a_proj", each), *last]

    def _padded_heads(self, shard: Shard) -> int:
        return -(-shard.layout.share(self.heads) // self.head_multiple) * self.head_multiple

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """The indexer's kernels, the bf16 copy for prompts, and attention."""
        calls = self.indexer.sequence_calls(shard, batch) if self.indexer else []
        for form in batch.forms():
            calls.append(Call(form.name(f"attention_{self.kind.lower()}"), self._attend(shard, form)))
            if form.is_prompt:
                recent = form.num_recent(self.window)
                entries = form.num_entries(self.compressor.tokens) if self.compressor else 0
                widened = copy(recent + entries, self.entry_bytes, bytes_of(shard.weights.base) * self.head_dim)
                calls.append(Call("latent_gather", widened))
        return calls

    def _attend(self, shard: Shard, form: SequenceBatch) -> SparseAttention:
        """One kernel over the window and, where the layer has any, compressed tokens."""
        base = shard.weights.base
        # The window alone is the choice of its tokens.
        selected, window, tokens = self.window, 0, 1
        if self.compressor:
            selected, window, tokens = self.indexer.topk if self.indexer else 0, self.window, self.compressor.tokens
        return SparseAttention(
            *form, heads=self._padded_heads(shard), head_dim=self.head_dim, value_dim=self.head_dim, selected=selected,
            window=window, compress=tokens,
            bytes_per_key=bytes_of(base) * self.head_dim if form.is_prompt else self.entry_bytes,
            kind="csa" if self.indexer else "hca", dtype=base, kv_dtype=base if form.is_prompt else "fp8",
        )  # fmt: skip

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The window, compressed tokens with the states they are made of, and the indexer's: all on every GPU."""
        window_block = 64  # Tokens in a block of the window's cache
        recent = Cache(self.entry_bytes, window=self.window, block=window_block)
        compressed = self.compressor.caches() if self.compressor else ()
        return (recent, *compressed, *(self.indexer.caches() if self.indexer else ()))
