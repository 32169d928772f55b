"""The load balancers of vLLM's API servers before several data-parallel engines.

`vllm serve` starts as many API servers as engines, and each has a balancer of its own. Engines tell a coordinator how
many requests run and wait on each, and the coordinator passes that on to all of them every 100 ms. In between, a
balancer counts what it has sent as waiting, once for each of the servers. So its picture is old, but never without its
own decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from infercast.serve.workload.source import Delivery

if TYPE_CHECKING:
    from infercast.serve.fleet.router import Engines, Times

PUBLISH_SECONDS = 0.1
"""Between two publications of counts (vLLM's coordinator.py)."""
WAITING_WEIGHT = 4
"""What a waiting request counts against a running one up to vLLM 0.26 (core_client.py)."""
FULL_WEIGHT, FULL_FROM = 6.0, 0.5
"""Since then: how much more it counts for each share of the KV cache that is held beyond this one."""


@dataclass(slots=True)
class Server:
    """What one API server knows of each engine."""

    waiting: list[int]
    running: list[int]
    usage: list[float]
    in_flight: list[list[int]]
    """Its own requests that are not answered, by number."""
    start: int
    """The engine that is looked at first."""


def counts_balancer(engines: Engines) -> Callable[[Delivery, Sequence[Times]], int]:
    """The engine with the fewest requests as one of the servers sees it; ties go round."""
    count = engines.count
    servers = [Server([0] * count, [0] * count, [0.0] * count, [[] for _ in range(count)], k) for k in range(count)]
    published = 0

    def publish(moment: float, times: Sequence[Times]) -> None:
        """What every engine had running and waiting at that moment replaces the picture of all servers."""
        usage = [engines.usage(engine) for engine in range(count)]
        running, waiting = [0] * count, [0] * count
        for server in servers:
            _forget(server, moment, times)
            for engine, numbers in enumerate(server.in_flight):
                started = sum([bool(times[engine].started_at[number] <= moment) for number in numbers])
                running[engine] += started
                waiting[engine] += len(numbers) - started
        for server in servers:
            server.waiting, server.running, server.usage = [*waiting], [*running], usage

    def choose(delivery: Delivery, times: Sequence[Times]) -> int:
        nonlocal published
        number = floor(delivery.arrival / PUBLISH_SECONDS)
        if engines.publish_counts and number > published:
            published = number
            publish(number * PUBLISH_SECONDS, times)
        server = servers[delivery.number % count]
        if engines.weighs_cache:
            _forget(server, delivery.arrival, times)
            scores = [_by_cache(server, engine, count) for engine in range(count)]
        else:
            scores = [WAITING_WEIGHT * each + more for each, more in zip(server.waiting, server.running, strict=True)]
        chosen = min(range(count), key=lambda engine: (scores[engine], (engine - server.start) % count))
        server.waiting[chosen] += count
        server.in_flight[chosen].append(delivery.number)
        server.start = (server.start + 1) % count
        return chosen

    return choose


def _by_cache(server: Server, engine: int, count: int) -> float:
    """Requests on an engine, at least so many as the server sent itself; those that wait count more if it is full."""
    waiting = server.waiting[engine]
    score = max(count * len(server.in_flight[engine]), waiting + server.running[engine])
    return score + waiting * FULL_WEIGHT * max(0.0, server.usage[engine] - FULL_FROM)


def _forget(server: Server, moment: float, times: Sequence[Times]) -> None:
    """Requests that were answered by then; engines that have not answered yet leave "not a number"."""
    for engine, numbers in enumerate(server.in_flight):
        if numbers:
            is_over = times[engine].last_token[numbers] <= moment
            if is_over.any():
                server.in_flight[engine] = [number for number, over in zip(numbers, is_over, strict=True) if not over]
