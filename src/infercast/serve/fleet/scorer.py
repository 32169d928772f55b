"""The endpoint picker of llm-d and of the Gateway API Inference Extension: scores added up, the highest wins.

Three scorers from 0 to 1 with the weights of the default profile: how much of the prompt an endpoint has been sent
before (3), how short its queue is among all (2), how empty its KV cache is (2). Queues and caches are known from
metrics that are scraped every 50 ms; what was sent since is not in them, so that a burst may follow one prefix.
Sources: gateway-api-inference-extension pkg/epp/scheduling/framework/plugins (prefixcachescorer, queuescorer,
kvcacheutilizationscorer), the README of llm-d-inference-scheduler's scorer/prefix, and Red Hat's page on configuring
llm-d's scheduler for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import TYPE_CHECKING

from infercast.serve.fleet.prefix_index import PrefixIndex
from infercast.serve.workload.source import Delivery

if TYPE_CHECKING:
    from infercast.serve.fleet.router import Times

PREFIX_WEIGHT, QUEUE_WEIGHT, CACHE_WEIGHT = 3.0, 2.0, 2.0
SCRAPE_SECONDS = 0.05


class ScorePicker:
    """What the picker knows of the endpoints, and the scores that follow."""

    def __init__(self, num_engines: int, cache_tokens: int, block_size: int) -> None:
        self._index = PrefixIndex(num_engines, cache_tokens, block_size)
        self._cache_tokens = cache_tokens
        # Of each engine the prompt tokens of requests that it has not answered, as far as it was looked at.
        self._sent: list[dict[int, int]] = [{} for _ in range(num_engines)]
        self._queues, self._used = [0] * num_engines, [0.0] * num_engines
        self._scraped = 0

    def scores(self, delivery: Delivery, times: Sequence[Times]) -> list[float]:
        """Of every engine for a request."""
        if (number := floor(delivery.arrival / SCRAPE_SECONDS)) > self._scraped:
            self._scraped = number
            self._scrape(number * SCRAPE_SECONDS, times)
        found, tokens = self._index.cached_tokens(delivery.request), delivery.request.num_input
        longest = max(self._queues)
        spread = longest - min(self._queues)
        return [
            PREFIX_WEIGHT * found.get(engine, 0) / tokens
            + QUEUE_WEIGHT * ((longest - waiting) / spread if spread else 1.0)
            + CACHE_WEIGHT * (1.0 - used)
            for engine, (waiting, used) in enumerate(zip(self._queues, self._used, strict=True))
        ]

    def pick(self, engine: int, delivery: Delivery) -> None:
        """A request goes to an engine."""
        self._sent[engine][delivery.number] = delivery.request.num_input
        self._index.add(engine, delivery.number, delivery.request)

    def _scrape(self, moment: float, times: Sequence[Times]) -> None:
        for engine, prompts in enumerate(self._sent):
            started_at, last_token = times[engine].started_at, times[engine].last_token
            for number in [number for number in prompts if last_token[number] <= moment]:
                del prompts[number]
            running = [tokens for number, tokens in prompts.items() if started_at[number] <= moment]
            self._queues[engine] = len(prompts) - len(running)
            self._used[engine] = min(1.0, sum(running) / self._cache_tokens)
