"""No token mixer: a layer that is a feed-forward alone, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infercast.models.mixers.cache import Cache
from infercast.models.mixers.mixer import Mixer
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.attention import Lengths
from infercast.ops.op import Size


@dataclass(frozen=True, slots=True)
class NoMixer(Mixer):
    """The missing half of a layer of Nemotron-H, or of one that pruning left without attention (DeciLM)."""

    modules = ()
    is_empty = True

    @property
    def label(self) -> str:
        """Nothing to say."""
        return "none"

    @property
    def description(self) -> str:
        """That there is none."""
        return "no attention"

    @property
    def split_widths(self) -> Mapping[str, int]:
        """Nothing to split."""
        return {}

    def matrices(self, hidden: int) -> int:
        """None."""
        return 0

    def vectors(self, hidden: int) -> int:
        """None."""
        return 0

    def held_bytes(self, shard: Shard) -> float:
        """None."""
        return 0.0

    def divides(self, tensor: int) -> bool:
        """Nothing stands in the way."""
        return True

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """None."""
        return []

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """None."""
        return []

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """Nothing is kept."""
        return ()
