"""No feed-forward: a layer that is a token mixer alone, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.feed_forward.feed_forward import UNPADDED, FeedForward, Multiples
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.op import Size


@dataclass(frozen=True, slots=True)
class NoFeedForward(FeedForward):
    """The missing half of a layer of Nemotron-H, or of one that pruning left without feed-forward (DeciLM)."""

    inter = experts = shared_inter = 0
    is_empty = True

    @property
    def description(self) -> str:
        """That there is none."""
        return "no feed-forward"

    @property
    def modules(self) -> dict[str, list[tuple[str, ...]]]:
        """None."""
        return {}

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """None."""
        return ()

    def matrices(self, hidden: int) -> int:
        """None."""
        return 0

    def vectors(self, hidden: int) -> int:
        """None."""
        return 0

    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        """None."""
        return 0.0

    def live_values(self, shard: Shard) -> float:
        """None."""
        return 0.0

    def calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """None."""
        return []
