"""A link that copies travel one after the other, such as PCIe in one direction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a copy takes: ``latency`` + pieces x ``piece_seconds`` + bytes / ``rate``."""

    rate: float
    """Bytes a second."""
    latency: float = 0.0
    """Seconds of a copy of next to nothing."""
    piece_seconds: float = 0.0
    """Seconds that each piece adds, however small it is."""

    def seconds(self, num_bytes: float, num_pieces: int = 1) -> float:
        """Of one copy that has the link for itself."""
        return self.latency + num_pieces * self.piece_seconds + num_bytes / self.rate


class Link:
    """Copies in the order in which they were handed over, and sums over them."""

    def __init__(self, speed: LinkSpeed) -> None:
        self.speed = speed
        self.free_at = 0.0
        """When the last copy ends."""
        self.num_copies = 0
        self.num_bytes = 0
        self.seconds = 0.0
        """What the copies took, without waiting for the ones before."""

    def copy(self, ready: float, num_bytes: int, num_pieces: int = 1) -> float:
        """A copy that may start at ``ready`` at the earliest; returns when it ends."""
        seconds = self.speed.seconds(num_bytes, num_pieces)
        self.free_at = (ready if ready > self.free_at else self.free_at) + seconds
        self.num_copies += 1
        self.num_bytes += num_bytes
        self.seconds += seconds
        return self.free_at
