"""A link that copies travel one after the other, such as PCIe in one direction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a copy takes the link, and what handing it over takes the thread that does."""

    rate: float
    """Bytes a second."""
    latency: float = 0.0
    """Seconds of a copy of next to nothing."""
    submit_seconds: float = 0.0
    """What handing over takes, before which the copy does not begin ..."""
    submit_piece_seconds: float = 0.0
    """... and what each of its pieces adds."""

    def seconds(self, num_bytes: float) -> float:
        """Of one copy that has the link for itself."""
        return self.latency + num_bytes / self.rate

    def handing_over(self, num_pieces: int) -> float:
        """What a copy of so many pieces takes the thread."""
        return self.submit_seconds + num_pieces * self.submit_piece_seconds


class Link:
    """Copies in the order in which they were handed over, and sums over them."""

    def __init__(self, speed: LinkSpeed) -> None:
        self.speed = speed
        self.free_at = 0.0
        """When the last copy ends."""
        self.num_copies = 0
        self.num_bytes = 0
        self.seconds = 0.0
        """What the copies took, from the moment when nothing was before them any more."""

    def copy(self, now: float, num_bytes: int, num_pieces: int = 1, after: float = 0.0) -> tuple[float, float]:
        """A copy that is handed over now and waits for what happens ``after``; returns when the thread is free again,
        and when the copy ends.
        """
        begun = max(now, after, self.free_at)
        handed_over = now + self.speed.handing_over(num_pieces)
        self.free_at = max(handed_over, begun) + self.speed.seconds(num_bytes)
        self.num_copies += 1
        self.num_bytes += num_bytes
        self.seconds += self.free_at - begun
        return handed_over, self.free_at
