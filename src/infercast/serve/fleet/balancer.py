"""The load balancer inside one vLLM API server before several data-parallel engines.

Engines tell a coordinator how many requests run and wait on each, and the coordinator passes that on every 100 ms. In
between, the balancer counts what it has sent as waiting. So its picture is old, but never without its own decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor
from typing import TYPE_CHECKING

from infercast.serve.workload.source import Delivery

if TYPE_CHECKING:
    from infercast.serve.fleet.router import Times

PUBLISH_SECONDS = 0.1
"""Between two publications of counts (vLLM's coordinator.py) ..."""
WAITING_WEIGHT = 4
"""... and what a waiting request counts against a running one (core_client.py)."""


def counts_balancer(num_engines: int) -> Callable[[Delivery, Sequence[Times]], int]:
    """The engine with the smallest 4 x waiting + running; ties go round."""
    scores = [0] * num_engines
    sent: list[list[int]] = [[] for _ in range(num_engines)]
    published, start = 0, 0

    def publish(moment: float, times: Sequence[Times]) -> None:
        """What every engine had running and waiting at that moment replaces the picture."""
        for engine, numbers in enumerate(sent):
            scores[engine] = 0
            if not numbers:
                continue
            started_at, last_token = times[engine].started_at, times[engine].last_token
            # Engines that have not answered yet leave "not a number", which is not in the past.
            sent[engine] = remaining = [number for number in numbers if not last_token[number] <= moment]
            scores[engine] = sum([1 if started_at[number] <= moment else WAITING_WEIGHT for number in remaining])

    def choose(delivery: Delivery, times: Sequence[Times]) -> int:
        nonlocal published, start
        if (number := floor(delivery.arrival / PUBLISH_SECONDS)) > published:
            published = number
            publish(number * PUBLISH_SECONDS, times)
        smallest = min(scores)
        chosen = scores.index(smallest, start) if smallest in scores[start:] else scores.index(smallest)
        start = (start + 1) % num_engines
        scores[chosen] += WAITING_WEIGHT
        sent[chosen].append(delivery.number)
        return chosen

    return choose
