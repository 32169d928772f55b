"""How many requests a second a deployment finishes when it is kept full.

All requests are there from the start and the queue never runs dry. An engine that begins with a full batch of new
sequences would see all of them end together, again and again for a while; so the first ones are in the middle of their
answers already, at as many different places as there are seats. Requests follow each other in the order of the workload
and are counted over whole rounds of it, so that the mix of lengths counted is that of the workload. Of random requests
it is the mix of what they are drawn from, whatever the seed and however few of them there are: a thousand requests with
lengths as people write them differ by a few per cent in what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from math import ceil

import numpy as np

from infercast.forecast.intervals.redraw import redraw
from infercast.serve import Record, Replica, Request, Workload, simulate
from infercast.serve.fleet.served import Served

LEAST_COUNTED = 300
MOST_ROUND = 1000
"""Of a longer workload only so many requests are served, which are as long as all of them on average."""
DRAWN, SEED = 10_000, 20
"""Random requests are drawn again for it: so many, by a seed of their own."""
CHOICES = 100
"""So many random choices are looked at."""
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly however many there are."""


def full_rate(replica: Replica, workload: Workload) -> float:
    """Requests a second that an engine finishes while others are waiting."""
    return kept_full(replica, workload, lambda requests: simulate(replica, requests))


def kept_full(
    replica: Replica, workload: Workload, serve: Callable[[Workload], Record | Served], engines: int = 1
) -> float:
    """The same of ``engines`` equal ones together, as ``serve`` runs them."""
    one_round = typical(workload, replica).requests
    seats = engines * num_seats(replica, one_round)
    rounds = ceil(max(LEAST_COUNTED, seats / 2) / len(one_round))
    before, counted = 2 * seats, rounds * len(one_round)
    fresh = (replace(request, arrival=0.0) for request in cycle(one_round))
    requests = [*_half_answered(one_round, seats), *islice(fresh, before - seats + counted)]
    with np.errstate(over="ignore"):  # on a GPU described as slow beyond measure, sums of times have no number
        starts = np.sort(serve(Workload(tuple(requests))).first_token)
    return counted / float(starts[before + counted - 1] - starts[before - 1])


def typical(workload: Workload, replica: Replica) -> Workload:
    """Few enough requests whose prompts, answers and blocks held over time have the same means as those of all."""
    whole = redraw(workload, replica, seed=SEED, count=DRAWN) or workload
    requests = whole.requests
    if len(requests) <= MOST_ROUND:
        return replace(whole, drawn=None)
    inputs, outputs = (np.array([getattr(each, name) for each in requests]) for name in ("num_input", "num_output"))
    traits = np.stack([inputs, outputs, (inputs + outputs / 2) * outputs]).astype(float)
    traits /= traits.mean(axis=1, keepdims=True)
    random = np.random.default_rng(SEED)
    choices = [np.sort(random.choice(len(requests), MOST_ROUND, replace=False)) for _ in range(CHOICES)]
    best = min(choices, key=lambda chosen: float(np.abs(traits[:, chosen].mean(axis=1) - 1.0).max()))
    return replace(whole, requests=tuple(requests[index] for index in best.tolist()), drawn=None)


def num_seats(replica: Replica, requests: tuple[Request, ...]) -> int:
    """How many sequences an engine holds at once: as many as it may plan, or as its KV cache has room for."""
    outputs = np.array([request.num_output for request in requests], dtype=float)
    budget = replica.policy.max_num_batched_tokens
    blocks = [replica.kv_shape.most_blocks(each.num_input + each.num_output // 2, budget) for each in requests]
    # Long answers stay longer, so more of those that are there at one time have them.
    room = replica.num_blocks / (outputs @ np.array(blocks) / outputs.sum())
    return max(1, min(replica.policy.max_num_seqs, int(room)))


def _half_answered(requests: tuple[Request, ...], count: int) -> Iterator[Request]:
    """Requests as they would be found at some moment: the longer the likelier, at any point of their answers."""
    answered = np.cumsum([request.num_output for request in requests])
    found = np.searchsorted(answered, (np.arange(count) + 0.5) / count * answered[-1])
    for place, index in enumerate(found.tolist()):
        request = requests[index]
        done = int(place * GOLDEN % 1.0 * request.num_output)
        left = replace(request, arrival=0.0, num_input=request.num_input + done, num_output=request.num_output - done)
        yield left if request.declared is None else replace(left, declared=request.declared - done)
