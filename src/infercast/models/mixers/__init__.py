"""Kinds of token mixers, one file each."""

from infercast.models.mixers.block_sparse import BlockSparseAttention
from infercast.models.mixers.cache import Cache
from infercast.models.mixers.compressed import CompressedAttention
from infercast.models.mixers.compressor import Compressor
from infercast.models.mixers.delta_net import GatedDeltaNet, KimiDeltaAttention
from infercast.models.mixers.grouped import GroupedAttention
from infercast.models.mixers.indexer import Indexer
from infercast.models.mixers.kimi_latent import KimiLatentAttention
from infercast.models.mixers.latent import LatentAttention
from infercast.models.mixers.mamba2 import Mamba2
from infercast.models.mixers.mixer import Mixer
from infercast.models.mixers.none import NoMixer
from infercast.models.mixers.recurrent import RecurrentMixer
from infercast.models.mixers.short_convolution import GatedConvolution
from infercast.models.mixers.side_by_side import SideBySide
from infercast.models.mixers.sparse_latent import SparseLatentAttention

__all__ = [
    "BlockSparseAttention",
    "Cache",
    "CompressedAttention",
    "Compressor",
    "GatedConvolution",
    "GatedDeltaNet",
    "GroupedAttention",
    "Indexer",
    "KimiDeltaAttention",
    "KimiLatentAttention",
    "LatentAttention",
    "Mamba2",
    "Mixer",
    "NoMixer",
    "RecurrentMixer",
    "SideBySide",
    "SparseLatentAttention",
]
