"""Which engine gets a request: policies of a load balancer before several equal engines."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Protocol

import numpy.typing as npt

from infercast.errors import UnknownNameError
from infercast.serve.workload.clients import Delivery
from infercast.serve.workload.request import Request, Segment

# What a load balancer believes each engine has in its prefix cache: the prompts that it was sent, newest first.
#
# Prompts are chains of named segments, so what is kept is a tree of them, with the engines that were sent each. Of
# every engine only as many tokens are kept as its cache holds, and the end of a prompt is given up before its
# beginning.


class _Node:
    """One segment after one history."""

    __slots__ = ("children", "holders")

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], _Node] = {}
        """What follows, by how long the segment is and by content."""
        self.holders: dict[int, int] = {}
        """The engines that were sent it, with the tokens of it that they have."""


class PrefixIndex:
    """Beginnings of prompts, and which engines have them."""

    def __init__(self, num_engines: int, cache_tokens: int, block_size: int, *, answers: bool = False) -> None:
        """``answers``: what an engine has answered can be found on it, too, where it has a name."""
        self._answers = answers
        self._cache_tokens, self._block_size = cache_tokens, block_size
        self._root = _Node()
        # Of each engine its nodes and (numbers) what requests have to themselves, least recently used first.
        self._used: list[OrderedDict[_Node | int, int]] = [OrderedDict() for _ in range(num_engines)]
        self._num_tokens = [0] * num_engines
        self._last: tuple[Request | None, list[_Node]] = (None, [])

    def _chain(self, request: Request) -> list[_Node]:
        """The nodes of a prompt's beginning, made where there are none; most are asked for twice in a row."""
        if request is self._last[0]:
            return self._last[1]
        chain, node, length = [], self._root, 0
        for segment in request.prefix:
            node = self._after(node, length, segment.content)
            chain.append(node)
            length = segment.num_tokens
        self._last = request, chain
        return chain

    def _after(self, node: _Node, length: int, content: int) -> _Node:
        """What follows a segment; the tokens inside one do not depend on how long it goes on, what follows it does."""
        child = node.children.get((length, content))
        if child is None:
            child = node.children[length, content] = _Node()
        return child

    def cached_tokens(self, request: Request) -> dict[int, int]:
        """Engines that have the beginning of a prompt, and how many tokens of it: whole blocks, never all of it."""
        found: dict[int, int] = {}
        chain = self._chain(request)
        before, complete = 0, [*chain[0].holders] if chain else []
        for segment, node in zip(request.prefix, chain, strict=True):
            holders, tokens = node.holders, segment.num_tokens
            holding = [engine for engine in complete if engine in holders]
            complete = [engine for engine in holding if holders[engine] >= tokens]
            for engine in holding:
                if holders[engine] < tokens:
                    found[engine] = before + holders[engine]
            if not complete:
                break
            before += tokens
            for engine in complete:
                found[engine] = before
        most = request.num_input - 1
        return {engine: min(tokens, most) // self._block_size * self._block_size for engine, tokens in found.items()}

    def add(self, engine: int, number: int, request: Request) -> None:
        """An engine is sent a prompt."""
        own = request.num_input - sum([segment.num_tokens for segment in request.prefix])
        if own > 0:
            self._use(engine, number, own)
        chain, prefix = self._chain(request), request.prefix
        if self._answers and request.answer is not None and not own and prefix:
            chain = [*chain, self._after(chain[-1], prefix[-1].num_tokens, request.answer)]
            prefix = (*prefix, Segment(request.answer, request.num_output))
        for node, segment in zip(reversed(chain), reversed(prefix), strict=True):
            node.holders[engine] = tokens = max(node.holders.get(engine, 0), segment.num_tokens)
            self._use(engine, node, tokens)
        self._forget(engine)

    def _use(self, engine: int, entry: _Node | int, num_tokens: int) -> None:
        used = self._used[engine]
        self._num_tokens[engine] += num_tokens - used.get(entry, 0)
        used[entry] = num_tokens
        used.move_to_end(entry)

    def _forget(self, engine: int) -> None:
        """Give up what was used longest ago, until the rest fits in the cache."""
        used = self._used[engine]
        while self._num_tokens[engine] > self._cache_tokens and used:
            entry, num_tokens = used.popitem(last=False)
            self._num_tokens[engine] -= num_tokens
            if not isinstance(entry, int):
                del entry.holders[engine]


# The load balancers of vLLM's API servers before several data-parallel engines.
#
# `vllm serve` starts as many API servers as engines, and each has a balancer of its own. Engines tell a coordinator
# how many requests run and wait on each, and the coordinator passes that on to all of them every 100 ms. In between,
# a balancer counts what it has sent as waiting, once for each of the servers. So its picture is old, but never
# without its own decisions.


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
                started_at = times[engine].started_at.item
                started = sum([started_at(number) <= moment for number in numbers])
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
            scores = _by_cache(server, count)
        else:
            scores = [WAITING_WEIGHT * each + more for each, more in zip(server.waiting, server.running, strict=True)]
        chosen = next_smallest(scores, server.start)
        server.waiting[chosen] += count
        server.in_flight[chosen].append(delivery.number)
        server.start = (server.start + 1) % count
        return chosen

    return choose


def _by_cache(server: Server, count: int) -> list[float]:
    """Requests on engines, at least so many as the server sent itself; those that wait count more where it is full."""
    scores: list[float] = []
    for waiting, running, usage, own in zip(
        server.waiting, server.running, server.usage, server.in_flight, strict=True
    ):
        score = max(count * len(own), waiting + running)
        scores.append(score + waiting * FULL_WEIGHT * (usage - FULL_FROM) if usage > FULL_FROM else score)
    return scores


def _forget(server: Server, moment: float, times: Sequence[Times]) -> None:
    """Requests that were answered by then; engines that have not answered yet leave "not a number"."""
    for engine, numbers in enumerate(server.in_flight):
        if numbers:
            last_token = times[engine].last_token.item
            server.in_flight[engine] = [number for number in numbers if not last_token(number) <= moment]


# The endpoint picker of llm-d and of the Gateway API Inference Extension: scores added up, the highest wins.
#
# Three scorers from 0 to 1 with the weights of the default profile: how much of the prompt an endpoint has been sent
# before (3), how short its queue is among all (2), how empty its KV cache is (2). Queues and caches are known from
# metrics that are scraped every 50 ms; what was sent since is not in them, so that a burst may follow one prefix.
# Sources: gateway-api-inference-extension pkg/epp/scheduling/framework/plugins (prefixcachescorer, queuescorer,
# kvcacheutilizationscorer), the README of llm-d-inference-scheduler's scorer/prefix, and Red Hat's page on configuring
# llm-d's scheduler for the weights.


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


UNCACHED_WEIGHT = 1.0
"""What a prompt token that must be computed costs, in tokens that an engine holds (NVIDIA Dynamo's default)."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What a policy knows of the engines before they start."""

    count: int
    cache_tokens: int = 1 << 40
    """Tokens that the KV cache of one engine holds."""
    block_size: int = 16
    publish_counts: bool = True
    """Whether engines tell how many requests run and wait, which those of vLLM 0.25 do for models with experts."""
    weighs_cache: bool = False
    """Whether vLLM's balancer looks at its own requests in flight and at how full caches are (0.27) ..."""
    usage: Callable[[int], float] = lambda engine: 0.0
    """... which each engine tells: the share of its KV cache that is held."""


class Times(Protocol):
    """What an engine has said of its requests; not a number where it has said nothing yet."""

    started_at: npt.NDArray[Any]
    first_token: npt.NDArray[Any]
    last_token: npt.NDArray[Any]


class Loads:
    """Requests that each engine has taken and not answered, as of a moment that only moves forward."""

    def __init__(self, num_engines: int, times: Sequence[Times] = ()) -> None:
        self.counts = [0] * num_engines
        self.prompt_tokens = [0] * num_engines
        """Of these requests, together."""
        self.times = times
        """Of each engine."""
        self._ends: list[tuple[float, int, int]] = []

    def sent(self, engine: int, request: Request) -> None:
        """A request goes to an engine."""
        self.counts[engine] += 1
        self.prompt_tokens[engine] += request.num_input

    def answered(self, engine: int, time: float, request: Request) -> None:
        """An engine will have answered one by then."""
        heapq.heappush(self._ends, (time, engine, request.num_input))

    def move_to(self, time: float) -> None:
        """Forget what has been answered by then."""
        while self._ends and self._ends[0][0] <= time:
            _, engine, num_input = heapq.heappop(self._ends)
            self.counts[engine] -= 1
            self.prompt_tokens[engine] -= num_input


Choose = Callable[[Delivery, Loads], int]


def round_robin(engines: Engines) -> Choose:
    """One after the other."""
    turn = -1

    def choose(delivery: Delivery, loads: Loads) -> int:
        nonlocal turn
        turn = (turn + 1) % engines.count
        return turn

    return choose


def least_loaded(engines: Engines) -> Choose:
    """The engine with the fewest requests; among equals the one whose turn it is."""
    turn = 0

    def choose(delivery: Delivery, loads: Loads) -> int:
        nonlocal turn
        chosen = next_smallest(loads.counts, turn)
        turn = (chosen + 1) % engines.count
        return chosen

    return choose


def vllm(engines: Engines) -> Choose:
    """The balancers of vLLM's API servers, as many as engines: the fewest requests, by counts of up to 100 ms ago.

    Up to vLLM 0.26 only models with experts publish counts; without them each server takes turns.
    """
    balance = counts_balancer(engines)

    def choose(delivery: Delivery, loads: Loads) -> int:
        return balance(delivery, loads.times)

    return choose


def prefix_aware(engines: Engines, *, answers: bool = False) -> Choose:
    """The engine with the least to compute and to hold: uncached prompt tokens that wait, and tokens in its cache.

    What an engine has cached is told by what it was sent before, as far as that fits in its cache; with ``answers`` by
    what it has answered, too.
    """
    index = PrefixIndex(engines.count, engines.cache_tokens, engines.block_size, answers=answers)
    # Of each engine: uncached prompt tokens of requests whose first token has not been seen.
    waiting: list[dict[int, int]] = [{} for _ in range(engines.count)]
    turn = 0

    def choose(delivery: Delivery, loads: Loads) -> int:
        nonlocal turn
        num_input = delivery.request.num_input
        cached = index.cached_tokens(delivery.request)
        costs = []
        for engine, pending in enumerate(waiting):
            if pending:
                first_token = loads.times[engine].first_token
                for number in [number for number in pending if first_token[number] <= delivery.arrival]:
                    del pending[number]
            uncached = sum(pending.values()) + num_input - cached.get(engine, 0)
            costs.append(UNCACHED_WEIGHT * uncached + loads.prompt_tokens[engine])
        chosen = next_smallest(costs, turn)
        turn = (chosen + 1) % engines.count
        waiting[chosen][delivery.number] = num_input - cached.get(chosen, 0)
        index.add(chosen, delivery.number, delivery.request)
        return chosen

    return choose


def dynamo(engines: Engines) -> Choose:
    """The KV router of NVIDIA Dynamo: the same cost, but engines tell of every block, so answers are found again, too.

    cost = overlap_score_weight x blocks of prompts to compute + blocks that decode, with a weight of 1 and no
    randomness, the defaults of --router-mode kv (docs.nvidia.com/dynamo, components/router/routing-concepts).
    """
    return prefix_aware(engines, answers=True)


def llm_d(engines: Engines) -> Choose:
    """The endpoint picker of llm-d: prefixes, queues and caches as scores (`ScorePicker`); ties go round."""
    picker = ScorePicker(engines.count, engines.cache_tokens, engines.block_size)
    turn = 0

    def choose(delivery: Delivery, loads: Loads) -> int:
        nonlocal turn
        chosen = next_smallest([-score for score in picker.scores(delivery, loads.times)], turn)
        turn = (chosen + 1) % engines.count
        picker.pick(chosen, delivery)
        return chosen

    return choose


def session_affinity(engines: Engines) -> Choose:
    """A session stays where it began, on the engine with the fewest requests then."""
    of_sessions: dict[int, int] = {}
    begin = least_loaded(engines)

    def choose(delivery: Delivery, loads: Loads) -> int:
        session = delivery.request.session
        if session is None:
            return begin(delivery, loads)
        if session not in of_sessions:
            of_sessions[session] = begin(delivery, loads)
        return of_sessions[session]

    return choose


def next_smallest(values: Sequence[float], start: int) -> int:
    """Where the smallest value is; of several, the first from ``start`` on, around the end."""
    smallest = min(values)
    try:
        return values.index(smallest, start)
    except ValueError:
        return values.index(smallest)


POLICIES: dict[str, Callable[[Engines], Choose]] = {
    "vllm": vllm,
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "prefix_aware": prefix_aware,
    "dynamo": dynamo,
    "llm_d": llm_d,
    "session_affinity": session_affinity,
}


def make_policy(name: str, engines: Engines) -> Choose:
    """A policy by name."""
    if name not in POLICIES:
        raise UnknownNameError("router", name, POLICIES)
    return POLICIES[name](engines)
