"""When replicas are down: at moments that are named, or at random by their mean time between failures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.lazy_classes import dataclass


@dataclass(frozen=True, slots=True)
class Outages:
    """A replica that fails ends after the step under way, and comes back with an empty cache."""

    seconds: float  # How long each lasts, unless that is said with it
    named: tuple[tuple[int, float, float], ...] = ()  # Replicas by number, when each fails, and for how long
    mtbf: float | None = None  # Mean seconds from a replica's start to its failure; None: only those that are named
    seed: int = 0
    since: float = 0.0  # What counts as time 0, such as the beginning of a part of a day

    def of(self, replica: int) -> Iterator[tuple[float, float]]:
        """When one replica fails and when it is back, in order; without end if by chance."""
        for begin, end in self._named(replica) if self.mtbf is None else self._drawn(replica, self.mtbf):
            if end > self.since:
                yield max(begin - self.since, 0.0), end - self.since

    def down(self, replica: int, times: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Whether a replica is down at each of these times, in order."""
        found = np.zeros(times.size, dtype=bool)
        for begin, end in self.of(replica):
            if begin >= times[-1]:
                break
            found |= (times >= begin) & (times < end)
        return found

    def _named(self, replica: int) -> Iterator[tuple[float, float]]:
        for number, begin, seconds in sorted(self.named):
            if number == replica:
                yield begin, begin + seconds

    def _drawn(self, replica: int, mtbf: float) -> Iterator[tuple[float, float]]:
        failure_stream = 86_028_121  # combined with the seed: failures have a random stream of their own
        random, end = np.random.default_rng((self.seed, failure_stream, replica)), 0.0
        for _ in count():
            begin = end + float(random.exponential(mtbf))
            end = begin + self.seconds
            yield begin, end
