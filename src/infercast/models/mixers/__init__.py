"""Kinds of token mixers, one file each."""

from infercast.models.mixers.cache import Cache
from infercast.models.mixers.grouped import GroupedAttention
from infercast.models.mixers.latent import LatentAttention
from infercast.models.mixers.mixer import Mixer
from infercast.models.mixers.none import NoMixer

__all__ = ["Cache", "GroupedAttention", "LatentAttention", "Mixer", "NoMixer"]
