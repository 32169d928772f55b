"""Load balancing policies: which of several equal engines gets a request."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from math import floor, inf
from operator import sub
from random import Random
from typing import Any, Protocol

import numpy.typing as npt

from infercast.errors import InputError, UnknownNameError
from infercast.lazy_classes import dataclass, field
from infercast.serve.workload.clients import Arrival
from infercast.serve.workload.request import Request, Segment

PUBLISH_SECONDS = 0.1  # Interval at which counts are published (vLLM's coordinator.py)
FULL_WEIGHT, FULL_FROM = 6.0, 0.5  # Since then: the added weight per unit of KV cache usage above this threshold
PREFIX_WEIGHT, QUEUE_WEIGHT, CACHE_WEIGHT = 3.0, 2.0, 2.0
SCRAPE_SECONDS = 0.05

# A load balancer's view of each engine's prefix cache: the prompts it was sent, most recent first. Prompts are chains
# of named segments, so the view is a tree of these with the engines that were sent each. Per engine it keeps as many
# tokens as the cache holds, and evicts the end of a prompt before its beginning.


class _Node:
    """One segment after one prefix."""

    __slots__ = ("children", "holders")

    def __init__(self) -> None:
        self.children: dict[tuple[int, int], _Node] = {}  # Following segments, by this one's length and their content
        self.holders: dict[int, int] = {}  # Engines that were sent the segment, with the tokens of it they have


class PrefixIndex:
    """Prompt prefixes, and which engines have them."""

    def __init__(
        self, num_engines: int, cache_tokens: int | Sequence[int], block_size: int, *, answers: bool = False
    ) -> None:
        """``answers``: an engine's answers can be found on it too, if they are named."""
        self._answers = answers
        self.cache_tokens = [cache_tokens] * num_engines if isinstance(cache_tokens, int) else cache_tokens
        self._block_size = block_size
        self._root = _Node()
        # Per engine: its nodes and (numbers) requests' unshared tokens, least recently used first.
        self._used: list[OrderedDict[_Node | int, int]] = [OrderedDict() for _ in range(num_engines)]
        self._num_tokens = [0] * num_engines
        self._last: tuple[Request | None, list[_Node]] = (None, [])

    def _chain(self, request: Request) -> list[_Node]:
        """The nodes of a prompt's prefix, created as needed; most lookups come in pairs."""
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
        """The node after a segment; tokens inside a segment do not depend on its length, what follows it does."""
        child = node.children.get((length, content))
        if child is None:
            child = node.children[length, content] = _Node()
        return child

    def cached_tokens(self, request: Request) -> dict[int, int]:
        """Engines that have a prompt's prefix cached, with its tokens: whole blocks, never the entire prompt."""
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
        self.evict(engine, self.cache_tokens[engine])

    def _use(self, engine: int, entry: _Node | int, num_tokens: int) -> None:
        used = self._used[engine]
        self._num_tokens[engine] += num_tokens - used.get(entry, 0)
        used[entry] = num_tokens
        used.move_to_end(entry)

    def evict(self, engine: int, kept: int = -1) -> None:
        """Evict least recently used entries until this many tokens are left at most; all by default."""
        used = self._used[engine]
        while self._num_tokens[engine] > kept and used:
            entry, num_tokens = used.popitem(last=False)
            self._num_tokens[engine] -= num_tokens
            if not isinstance(entry, int):
                del entry.holders[engine]


# The load balancers in vLLM's API servers for data-parallel engines. `vllm serve` starts one API server per engine,
# each with its own balancer. Engines report running and waiting requests to a coordinator, which publishes them to all
# servers every 100 ms. In between, a balancer counts what it has sent as waiting, once for each of the servers. So its
# view is stale, but always includes its own decisions.

End = tuple[float, int, int]  # When a request was answered, its engine and number


@dataclass(slots=True)
class Server:
    """One API server's view of the engines."""

    waiting: list[int]
    running: list[int]
    usage: list[float]
    start: int  # The engine it tries first
    own: list[int]  # Its own unanswered requests on each ...
    ended: deque[End]  # ... and those that are answered, but it may not know yet.


def vllm(engines: Engines) -> Choose:
    """The balancers of vLLM's API servers, as many as engines: the fewest requests, by counts up to 100 ms old.

    Up to vLLM 0.26 only MoE models publish counts; without them each server goes round robin, as it does with ties.
    """
    count = engines.count
    servers = [Server([0] * count, [0] * count, [0.0] * count, k, [0] * count, deque()) for k in range(count)]
    waiting = [set[int]() for _ in range(count)]  # Requests that have not begun, by engine
    published = 0

    def forget(server: Server, moment: float) -> None:
        """Its requests that are answered by then."""
        while server.ended and server.ended[0][0] <= moment:
            _, engine, number = server.ended.popleft()
            server.own[engine] -= 1
            waiting[engine].discard(number)

    def publish(moment: float, times: Sequence[Times]) -> None:
        """Replace all servers' views by each engine's running and waiting requests at that time."""
        for server in servers:
            forget(server, moment)
        for engine, numbers in enumerate(waiting):
            if numbers:
                started_at = times[engine].started_at.item
                numbers.difference_update([number for number in numbers if started_at(number) <= moment])
        usage, queued = [*map(engines.usage, range(count))], [*map(len, waiting)]
        running = [*map(sub, map(sum, zip(*(server.own for server in servers), strict=True)), queued)]
        for server in servers:
            server.waiting, server.running, server.usage = [*queued], [*running], usage

    def choose(delivery: Arrival, loads: Loads) -> int:
        nonlocal published
        for end in loads.left:
            servers[end[2] % count].ended.append(end)
        number = floor(delivery.arrival / PUBLISH_SECONDS)
        if engines.publish_counts and number > published:
            published = number
            publish(number * PUBLISH_SECONDS, loads.times)
        server = servers[delivery.number % count]
        if engines.weighs_cache:
            forget(server, delivery.arrival)
            scores = _by_cache(server, count)
        else:
            waiting_weight = 4  # Weight of a waiting request relative to a running one up to vLLM 0.26 (core_client.py)
            scores = [waiting_weight * each + more for each, more in zip(server.waiting, server.running, strict=True)]
        chosen = next_smallest(scores, server.start, engines.down)
        server.waiting[chosen] += count
        for each in engines.down:  # it comes back as if it had had its share
            server.waiting[each] = server.waiting[chosen]
        server.own[chosen] += 1
        server.start = (server.start + 1) % count
        waiting[chosen].add(delivery.number)
        return chosen

    return choose


def _by_cache(server: Server, count: int) -> Sequence[float]:
    """Requests on engines, at least as many as the server sent itself; those that wait count more where it is full."""
    views = zip(server.own, server.waiting, server.running, strict=True)
    scores = [count * own if count * own > each + more else each + more for own, each, more in views]
    if max(server.usage) <= FULL_FROM:
        return scores
    fuller = [max(usage - FULL_FROM, 0.0) for usage in server.usage]
    return [score + each * FULL_WEIGHT * more for score, each, more in zip(scores, server.waiting, fuller, strict=True)]


@dataclass(frozen=True, slots=True)
class Engines:
    """What a policy knows of the engines before they start."""

    count: int
    cache_tokens: int | Sequence[int] = 1 << 40  # KV cache capacity of one engine, in tokens, or that of each
    block_size: int = 16
    publish_counts: bool = True  # True if engines publish running and waiting counts: in vLLM 0.25 only MoE models do
    weighs_cache: bool = False  # True if vLLM's balancer uses its own in-flight requests and KV cache usage (0.27) ...
    usage: Callable[[int], float] = lambda engine: 0.0  # ... which each engine reports as a fraction.
    down: Collection[int] = ()  # Engines that get no requests for now
    on_failure: list[Callable[[int], object]] = field(default_factory=list)
    """What is called with an engine that loses all it has."""
    weights: Sequence[float] = ()  # What each serves compared with the others; none: all are equal

    def weighed(self, loads: Sequence[float]) -> Sequence[float]:
        """Loads as they weigh on engines of unequal size."""
        return [load / weight for load, weight in zip(loads, self.weights, strict=True)] if self.weights else loads


class Times(Protocol):
    """Times an engine has reported for its requests; NaN where not yet known."""

    started_at: npt.NDArray[Any]
    first_token: npt.NDArray[Any]
    last_token: npt.NDArray[Any]


class Loads:
    """Unanswered requests of each engine at a time that only moves forward."""

    def __init__(self, num_engines: int, times: Sequence[Times] = ()) -> None:
        self.counts = [0] * num_engines
        self.prompt_tokens = [0] * num_engines  # Of these requests, per engine
        self.times = times  # One per engine
        self.left: list[End] = []  # Requests that the last move dropped
        self._ends: list[tuple[float, int, int, int]] = []

    def sent(self, engine: int, request: Request) -> None:
        self.counts[engine] += 1
        self.prompt_tokens[engine] += request.num_input

    def answered(self, engine: int, time: float, number: int, request: Request) -> None:
        heapq.heappush(self._ends, (time, engine, number, request.num_input))

    def move_to(self, time: float) -> None:
        self.left = []
        while self._ends and self._ends[0][0] <= time:
            end, engine, number, num_input = heapq.heappop(self._ends)
            self.counts[engine] -= 1
            self.prompt_tokens[engine] -= num_input
            self.left.append((end, engine, number))


Choose = Callable[[Arrival, Loads], int]


def round_robin(engines: Engines) -> Choose:
    """Each in its turn; engines of unequal size in proportion, as evenly as nginx's smooth weighted round robin."""
    events, due = cycle(range(engines.count)), [0.0] * engines.count

    def by_weight() -> int:
        up = [each for each in range(engines.count) if each not in engines.down]
        for each in up:
            due[each] += engines.weights[each]
        chosen = max(up, key=due.__getitem__)
        due[chosen] -= sum([engines.weights[each] for each in up])
        return chosen

    if engines.weights:
        return lambda delivery, loads: by_weight()
    return lambda delivery, loads: next(each for each in events if each not in engines.down)


def smallest_in_turn(engines: Engines) -> Callable[[Sequence[float]], int]:
    """Picks the engine with the smallest value; ties go round robin."""
    turn = 0

    def pick(values: Sequence[float]) -> int:
        nonlocal turn
        chosen = next_smallest(values, turn, engines.down)
        turn = (chosen + 1) % engines.count
        return chosen

    return pick


def least_loaded(engines: Engines) -> Choose:
    """The engine with the fewest requests, this one included, for its size; ties go round robin."""
    pick = smallest_in_turn(engines)
    if engines.weights:
        return lambda delivery, loads: pick(engines.weighed([count + 1 for count in loads.counts]))
    return lambda delivery, loads: pick(loads.counts)


def prefix_aware(engines: Engines, *, answers: bool = False) -> Choose:
    """The engine with the least to compute and hold: pending uncached prompt tokens plus tokens in its cache.

    Cache content is inferred from what an engine was sent, as far as that fits; with ``answers`` also from what it
    answered.
    """
    index = PrefixIndex(engines.count, engines.cache_tokens, engines.block_size, answers=answers)
    # Per engine: uncached prompt tokens of requests without a first token yet.
    waiting: list[dict[int, int]] = [{} for _ in range(engines.count)]
    pick = smallest_in_turn(engines)
    engines.on_failure.extend([index.evict, lambda engine: waiting[engine].clear()])

    def choose(delivery: Arrival, loads: Loads) -> int:
        num_input = delivery.request.num_input
        cached = index.cached_tokens(delivery.request)
        costs: list[float] = []
        for engine, pending in enumerate(waiting):
            if pending:
                first_token = loads.times[engine].first_token
                for number in [number for number in pending if first_token[number] <= delivery.arrival]:
                    del pending[number]
            uncached = sum(pending.values()) + num_input - cached.get(engine, 0)
            # A token to compute weighs as much as one in the cache (NVIDIA Dynamo's default).
            costs.append(uncached + loads.prompt_tokens[engine])
        chosen = pick(engines.weighed(costs))
        waiting[chosen][delivery.number] = num_input - cached.get(chosen, 0)
        index.add(chosen, delivery.number, delivery.request)
        return chosen

    return choose


def dynamo(engines: Engines) -> Choose:
    """NVIDIA Dynamo's KV router: the same cost, but engines publish every block, so answers are found too.

    cost = overlap_score_weight x blocks of prompts to compute + blocks that decode, with a weight of 1 and no
    randomness, the defaults of --router-mode kv (docs.nvidia.com/dynamo, components/router/routing-concepts).
    """
    return prefix_aware(engines, answers=True)


# The endpoint picker of llm-d and of the Gateway API Inference Extension: weighted scores, the highest wins. Three
# scorers from 0 to 1 with the weights of the default profile: the share of the prompt an endpoint has been sent before
# (3), how short its queue is relative to the others (2), how empty its KV cache is (2). Queues and caches are known
# from metrics scraped every 50 ms; requests sent since are not in them, so a burst may follow one prefix. Sources:
# gateway-api-inference-extension pkg/epp/scheduling/framework/plugins (prefixcachescorer, queuescorer,
# kvcacheutilizationscorer), the README of llm-d-inference-scheduler's scorer/prefix, and Red Hat's page on configuring
# llm-d's scheduler for the weights.


def llm_d(engines: Engines) -> Choose:
    """llm-d's endpoint picker: prefix, queue and cache scores; ties go round robin."""
    index = PrefixIndex(engines.count, engines.cache_tokens, engines.block_size)
    pick = smallest_in_turn(engines)
    sent: list[dict[int, int]] = [{} for _ in range(engines.count)]  # Prompt tokens of unanswered requests, by engine
    engines.on_failure.extend([index.evict, lambda engine: sent[engine].clear()])
    queues, used, scraped = [0] * engines.count, [0.0] * engines.count, 0  # As of the last scrape

    def scrape(moment: float, times: Sequence[Times]) -> None:
        for engine, prompts in enumerate(sent):
            started_at, last_token = times[engine].started_at, times[engine].last_token
            for number in [number for number in prompts if last_token[number] <= moment]:
                del prompts[number]
            running = [tokens for number, tokens in prompts.items() if started_at[number] <= moment]
            queues[engine] = len(prompts) - len(running)
            used[engine] = min(1.0, sum(running) / index.cache_tokens[engine])

    def choose(delivery: Arrival, loads: Loads) -> int:
        nonlocal scraped
        if (number := floor(delivery.arrival / SCRAPE_SECONDS)) > scraped:
            scraped = number
            scrape(number * SCRAPE_SECONDS, loads.times)
        found, tokens, longest = index.cached_tokens(delivery.request), delivery.request.num_input, max(queues)
        spread = longest - min(queues)
        scores = [
            PREFIX_WEIGHT * found.get(engine, 0) / tokens
            + QUEUE_WEIGHT * ((longest - waiting) / spread if spread else 1.0)
            + CACHE_WEIGHT * (1.0 - share)
            for engine, (waiting, share) in enumerate(zip(queues, used, strict=True))
        ]
        chosen = pick([-score for score in scores])
        sent[chosen][delivery.number] = tokens
        index.add(chosen, delivery.number, delivery.request)
        return chosen

    return choose


def at_random(engines: Engines) -> Choose:
    """Any engine, whatever the others have: a Kubernetes Service, or a router's policy ``random``."""
    draw = Random(engines.count)
    every, weights = range(engines.count), engines.weights
    draws = iter(lambda: draw.choices(every, weights)[0] if weights else draw.randrange(engines.count), -1)
    return lambda delivery, loads: next(each for each in draws if each not in engines.down)


def session_affinity(engines: Engines) -> Choose:
    """A session stays on its first engine, the one with the fewest requests then."""
    of_sessions: dict[int, int] = {}
    begin = least_loaded(engines)

    def choose(delivery: Arrival, loads: Loads) -> int:
        session = delivery.request.session
        if session is None:
            return begin(delivery, loads)
        if session not in of_sessions or of_sessions[session] in engines.down:
            of_sessions[session] = begin(delivery, loads)
        return of_sessions[session]

    return choose


def next_smallest(values: Sequence[float], start: int, down: Collection[int] = ()) -> int:
    """Index of the smallest value of those not ``down``; of several, the first from ``start`` on, wrapping around."""
    if down:
        values = [inf if place in down else value for place, value in enumerate(values)]
    smallest = min(values)
    try:
        return values.index(smallest, start)
    except ValueError:
        return values.index(smallest)


POLICIES: dict[str, Callable[[Engines], Choose]] = {
    "vllm": vllm, "round_robin": round_robin, "random": at_random, "least_loaded": least_loaded,
    "prefix_aware": prefix_aware, "dynamo": dynamo, "llm_d": llm_d, "session_affinity": session_affinity,
}  # fmt: skip


def make_policy(name: str, engines: Engines) -> Choose:
    if name not in POLICIES:
        raise UnknownNameError("router", name, POLICIES)
    if engines.weights and POLICIES[name] is vllm:
        raise InputError(f"router {name} is for equal replicas; before a fleet of several kinds use least_loaded, say")
    return POLICIES[name](engines)
