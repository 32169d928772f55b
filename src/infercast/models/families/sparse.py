"""Families of sparse attention: DeepSeek-V3.2 and GLM-5, whose indexer chooses the tokens that a query looks at."""

from __future__ import annotations

from collections.abc import Sequence

from infercast.errors import FileFormatError
from infercast.models.families.experts import after_dense_layers
from infercast.models.families.fields import Fields
from infercast.models.families.layers import Layer
from infercast.models.families.special import latent_sizes
from infercast.models.mixers import Indexer, SparseLatentAttention


def read_indexed(fields: Fields) -> list[Layer]:
    """DeepSeek-V3.2 and GLM-5: latent attention with an indexer, which layers of GLM-5.2 share."""
    sizes, topk = latent_sizes(fields), fields.positive("index_topk")
    indexer = Indexer(
        heads=fields.positive("index_n_heads"),
        head_dim=fields.positive("index_head_dim"),
        rope_dim=sizes["rope_dim"],
        query_rank=fields.positive("q_lora_rank"),
        topk=topk,
    )
    full = SparseLatentAttention(**sizes, topk=topk, indexer=indexer)
    shared = SparseLatentAttention(**sizes, topk=topk)
    pairs = zip(_has_indexer(fields), after_dense_layers(fields), strict=True)
    return [Layer(full if own else shared, network) for own, network in pairs]


def indexed_head(fields: Fields, layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layer of a head that predicts further tokens: it has an indexer, whatever the last layer of the model has."""
    return (layers[-1]._replace(mixer=layers[0].mixer),)


def _has_indexer(fields: Fields) -> list[bool]:
    """Whether each layer has an indexer of its own, as vLLM 0.25 reads it (``models/deepseek_v2.py``).

    A pattern of letters (S: shared) counts first, then every how many layers there is one from an offset on. Files that
    have neither may name the kind of each layer.
    """
    layers = range(fields.layers)
    pattern = fields.word("index_topk_pattern")
    if pattern:
        # Layers beyond the pattern have an indexer of their own.
        own = [index >= len(pattern) or pattern[index] != "S" for index in layers]
    elif fields.raw("index_topk_freq") is None and fields.raw("indexer_types") is not None:
        own = [name != "shared" for name in fields.a_layer("indexer_types", fields.words("indexer_types"))]
    else:
        every, offset = fields.positive("index_topk_freq", default=1), fields.count("index_skip_topk_offset", default=2)
        own = [max(index - offset + 1, 0) % every == 0 for index in layers]
    if not own[0]:
        raise FileFormatError(fields.where, "the first layer has no indexer, and none before it to share")
    return own
