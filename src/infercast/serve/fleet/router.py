"""Which engine gets a request: policies of a load balancer before several equal engines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from infercast.errors import UnknownNameError
from infercast.serve.fleet.balancer import counts_balancer
from infercast.serve.fleet.prefix_index import PrefixIndex
from infercast.serve.fleet.scorer import ScorePicker
from infercast.serve.workload.request import Request
from infercast.serve.workload.source import Delivery

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
