"""Disaggregated serving: a prefill pool, a decode pool, and the link between them.

A request is prefilled on an engine of the first pool, its KV crosses the link, and an engine of the second pool
receives it and produces every token, including the first (as with vLLM's proxy). Each prefill engine sends one sequence
at a time, and all share the decode pool's receive bandwidth. Transfers are sent in the order they become ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.serve import step
from infercast.serve.fleet.pool import Pool, RunningPool, next_pool
from infercast.serve.loop import TELL_EVERY, Progress, Replica, StepObserver
from infercast.serve.record import Record
from infercast.serve.simulation import GoOn, check_workload, clients_of, further_from, plainly, share_nothing
from infercast.serve.workload.request import Request, Workload


@dataclass(frozen=True, slots=True)
class Link:
    """The link between the pools, in bytes per second and seconds."""

    sending: float  # Per prefill engine
    receiving: float  # Of the whole decode pool
    latency: float = 0.0


class Handover(NamedTuple):
    """Results of both pools; arrays over requests, in seconds."""

    prefill: list[Record]
    decode: list[Record]
    ready: npt.NDArray[Any]  # When a prompt was computed and its transfer could begin
    began: npt.NDArray[Any]  # When the link was free for it
    received: npt.NDArray[Any]  # When it arrived


class _Received:
    """The step timer of an engine that receives computed prompts: such a sequence costs a single token."""

    def __init__(self, timer: step.StepTimer) -> None:
        self._timer, self._groups = timer, step.groups_of(timer)
        self.decode = self._groups.decode

    @property
    def adapted(self) -> _Received | None:
        adapted = getattr(self._timer, "adapted", None)
        return adapted and _Received(adapted)

    def __call__(self, shape: step.StepShape, steps: int = 1) -> step.StepEstimate:
        return self._timer(taken_in(shape), steps)

    def compute(
        self, prefills: step.Prompts, num_first: int, count: int, computed: int, contexts: step.Contexts
    ) -> step.StepEstimate:
        """All are sampled, in one decode step."""
        if num_first < len(prefills):
            return self(step.GroupShape(count, computed, contexts, prefills, num_first))
        before = [known + new - 1 for new, known in prefills]
        return self.decode(count + len(before), computed + sum(before), lambda: contexts() + before, 1)


def taken_in(shape: step.StepShape) -> step.StepShape:
    """The cost of a step with received prompts: a single token each."""
    if shape.is_decode or not shape.prompts:
        return shape
    if isinstance(shape, step.DraftShape):
        # Prompts that arrive next to others get padding drafts, so that the batch is uniform.
        width, count = shape.width if shape.num_verifying else 1, len(shape.prompts)
        new = [*shape.new_tokens[: shape.num_verifying], *[width] * count]
        before = [*shape.computed[: shape.num_verifying], *[computed + new - 1 for new, computed in shape.prompts]]
        added = count * (width - 1)
        return replace(
            shape, new_tokens=new, computed=before, num_sampled=shape.num_sampled + added, num_verifying=len(new),
            num_drafts=shape.num_drafts + added,
        )  # fmt: skip
    before = [computed + new - 1 for new, computed in zip(shape.new_tokens, shape.computed, strict=True)]
    return step.StepShape([1] * len(before), before, shape.num_sampled)


def receiving(replica: Replica) -> Replica:
    """An engine of the decode pool: prompts arrive computed, so no step is bounded by their tokens."""
    return replace(
        replica,
        timer=_Received(replica.timer),
        policy=replica.policy.for_decode_pool(),
        prefix_caching=False,
        offload=None,  # prefix hits save work in the prefill pool only
        encoder=None,
    )


class PoolTransfers:
    """Requests with transfers that have completed, or will at a known time."""

    sends_at_once = False

    def __init__(self, requests: Sequence[Request] | Mapping[int, Request]) -> None:
        self._requests = requests
        self._received: list[tuple[float, int]] = []

    @property
    def next_arrival(self) -> float | None:
        """Of the earliest transfer."""
        return self._received[0][0] if self._received else None

    def put(self, index: int, received: float) -> None:
        heapq.heappush(self._received, (received, index))

    def move_to(self, time: float) -> None:
        """When a transfer completes is known as soon as it begins."""

    def pop(self) -> tuple[int, Request, float]:
        received, index = heapq.heappop(self._received)
        return index, self._requests[index], received


class Wire:
    """The link during the simulation: transfers begin in the order they become ready."""

    def __init__(self, link: Link, num_senders: int) -> None:
        self._link = link
        self._sender_free = [0.0] * num_senders
        self._receivers_free = 0.0
        self._waiting: list[tuple[float, int, int, float]] = []

    @property
    def next_ready(self) -> float:
        return self._waiting[0][0] if self._waiting else inf

    def put(self, sender: int, index: int, ready: float, size: float) -> None:
        """A request's prompt is computed, and its KV can be sent."""
        heapq.heappush(self._waiting, (ready, index, sender, size))

    def send(self) -> tuple[int, tuple[float, float, float]]:
        """Send the earliest ready transfer: its request, and when it was ready, began and arrived."""
        ready, index, sender, size = heapq.heappop(self._waiting)
        link = self._link
        began = max(ready, self._sender_free[sender], self._receivers_free)
        self._sender_free[sender] = began + size / link.sending
        self._receivers_free = began + size / link.receiving
        return index, (ready, began, float(began + link.latency + size / min(link.sending, link.receiving)))


def prompts_of(workload: Workload) -> Workload:
    """What the prefill pool is asked for: one token of each request."""
    prompts = (replace(each, num_output=1, declared=None, stops=False) for each in workload.requests)
    return replace(workload, requests=tuple(prompts))


def simulate_disaggregated(
    prefill: Pool, decode: Pool, link: Link, sequence_bytes: Callable[[int], float], workload: Workload,
    progress: Progress | None = None, watch: Sequence[Sequence[StepObserver]] = (),
    go_on: Callable[[Handover], Workload | None] | None = None,
) -> Handover:  # fmt: skip
    """Serve a workload; ``sequence_bytes`` returns the KV bytes of a number of tokens.

    ``progress`` is called on answers now and then; ``watch``: per pool, one step observer per replica. ``go_on`` may
    add requests when the last one is sent; without it no part of the run can be summed up.
    """
    if workload.has("patience"):
        raise InputError("clients that leave are not modelled with two pools; leave client_timeout and cancel out")
    check_workload(prefill.replicas[0], workload)
    check_workload(receiving(decode.replicas[0]), workload)
    serve = partial(_serve, prefill, decode, link, cache(sequence_bytes), workload, progress, watch)
    return plainly(serve, go_on, is_plain=share_nothing(workload))


def _serve(
    prefill: Pool, decode: Pool, link: Link, size_of: Callable[[int], float], workload: Workload,
    progress: Progress | None, watch: Sequence[Sequence[StepObserver]], is_plain: bool, go_on: GoOn | None,
) -> Handover:  # fmt: skip
    requests, answered = [*workload.requests], 0
    of_prefill, of_decode = watch or ((), ())
    clients = clients_of(prefill.replicas[0], prompts_of(workload), prefill.servers)
    transfers = PoolTransfers(requests)
    first = RunningPool(prefill, len(requests), clients, of_prefill, is_plain=is_plain)
    second = RunningPool(decode, len(requests), transfers, of_decode, turned_into=receiving, is_plain=is_plain)
    prompts_by, tokens_by = ([engine.record for engine in each.engines] for each in (first, second))
    clients.listen(prompts_by)
    wire, times = Wire(link, len(first.engines)), np.full((3, len(requests)), np.nan)

    def further(_: Sequence[Record]) -> Workload | None:
        nonlocal times
        if go_on is None or (longer := go_on(Handover(prompts_by, tokens_by, *times))) is None:
            return None
        check_workload(receiving(decode.replicas[0]), longer)
        times = np.pad(times, ((0, 0), (0, len(longer.requests) - len(requests))), constant_values=np.nan)
        requests.extend(longer.requests[len(requests) :])
        return prompts_of(longer)

    together = clients.wait_for_answers or prefill.lockstep or decode.lockstep
    if go_on is not None:
        further_from(clients, prefill.replicas[0], [*prompts_by, *tokens_by], further)
    while (pool := next_pool([first, second], wire.next_ready)) is not None or wire.next_ready < inf:
        # A transfer begins once every engine's clock has reached it, so none can be ready before.
        if pool is None or wire.next_ready <= pool.furthest_behind:
            index, moments = wire.send()
            times[:, index] = moments
            transfers.put(index, moments[2])
            continue
        engine, until = pool.next_engine(), 0.0 if together else first.next_delivery
        if pool is second and until:
            until = min(until, second.next_delivery, wire.next_ready, first.furthest_behind)
        for index, time in pool.take_turn(engine, until):
            if pool is first:
                wire.put(engine.number, index, time, size_of(requests[index].num_input))
                continue
            clients.answer(time, index)
            answered += 1
            if progress is not None and answered % TELL_EVERY == 0:
                progress(answered, time)
    first.close()
    second.close()
    return Handover(prompts_by, tokens_by, *times)
