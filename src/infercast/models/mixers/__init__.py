"""Kinds of token mixers, one file each."""

from infercast.models.mixers.latent import KimiLatentAttention, LatentAttention
from infercast.models.mixers.mixer import Cache, GroupedAttention, Mixer, NoMixer, SequenceBatch, SideBySide
from infercast.models.mixers.recurrent import (
    GatedConvolution,
    GatedDeltaNet,
    KimiDeltaAttention,
    Mamba2,
    RecurrentMixer,
)
from infercast.models.mixers.sparse import (
    BlockSparseAttention,
    CompressedAttention,
    Compressor,
    Indexer,
    SparseLatentAttention,
)

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
    "SequenceBatch",
    "SideBySide",
    "SparseLatentAttention",
]
