"""Kinds of token mixers, one file each."""

from infercast.models.mixers.block_sparse import BlockSparseAttention
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.grouped import GroupedAttention
from infercast.models.mixers.indexer import Indexer
from infercast.models.mixers.latent import LatentAttention
from infercast.models.mixers.mixer import Mixer
from infercast.models.mixers.none import NoMixer
from infercast.models.mixers.sparse_latent import SparseLatentAttention

__all__ = [
    "BlockSparseAttention",
    "Cache",
    "GroupedAttention",
    "Indexer",
    "LatentAttention",
    "Mixer",
    "NoMixer",
    "SparseLatentAttention",
]
