"""Clients that leave before they have their answers, and perhaps send their requests again."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from infercast.errors import InputError, require
from infercast.serve.workload.api_server import StepLog
from infercast.serve.workload.clients import Clients
from infercast.serve.workload.request import Patience, Request, Segment, Workload


def parse_patience(timeout: str | float | None, retries: int = 0, cancel: str | None = None) -> Patience | None:
    """From ``30s``, a number of retries and ``0.1@2s``, a share of requests and when their clients leave."""
    require(0 <= retries <= 100, "retries", "be 0 to 100", retries)
    if retries and timeout is None:
        raise InputError(f"retries {retries} need a client_timeout, after which clients send again")
    after = inf if timeout is None else parse_seconds("client_timeout", str(timeout))
    if cancel is None:
        return None if timeout is None else Patience(after, retries)
    share, at, seconds = cancel.partition("@")
    if not at or not re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*", share) or not 0 < float(share) <= 1:
        raise InputError(f"cancel {cancel!r} must be SHARE@TIME, such as 0.1@2s for one request in ten after 2 seconds")
    return Patience(after, retries, float(share), parse_seconds("cancel", seconds))


def parse_seconds(name: str, text: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ms|s|min|h|d|)\s*", text)
    units = {"ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86_400.0}
    value = 0.0 if match is None else float(match[1]) * units.get(match[2], 1.0)
    require(value > 0, name, "be a time above 0, such as 30s, 500ms or 2min", repr(text))
    return value


def with_patience(workload: Workload, patience: Patience, *, seed: int = 0) -> Workload:
    """The same requests of clients that leave; a prompt that may be sent again is the same then."""
    cancel_stream = 32_452_843  # combined with the seed: clients that leave have a random stream of their own
    leaves = np.random.default_rng((seed, cancel_stream)).random(len(workload.requests)) < patience.share
    found = []
    for number, (request, has_left) in enumerate(zip(workload.requests, leaves.tolist(), strict=True)):
        after = min(patience.after, patience.leaves_after) if has_left else patience.after
        rest = request.num_input - sum(segment.num_tokens for segment in request.prefix)
        own = Segment(-number - (1 << 120) - (seed << 40), rest)
        named = (own,) if rest and patience.retries and request.session is None else ()
        retries = 0 if has_left and patience.leaves_after <= patience.after else patience.retries
        kept = 0.0 if after == inf else after
        found.append(replace(request, patience=kept, retries=retries, prefix=(*request.prefix, *named)))
    words = [f"clients wait {patience.after:g} s"] if patience.after < inf else []
    words += [f"then send again, {patience.retries} at most"] if patience.retries else []
    words += [f"{patience.share:.0%} of requests cancelled after {patience.leaves_after:g} s"] if patience.share else []
    description = f"{workload.description}; {', '.join(words)}"
    return replace(workload, requests=tuple(found), patience=patience, description=description)


class ImpatientClients:
    """The same clients, some of which leave: their requests come again as None, once the engine has had them."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.sends_at_once = clients, False
        self.wait_for_answers = clients.wait_for_answers
        self._leaving: list[tuple[float, int, float]] = []  # When an engine hears of which request, and its client left
        self._open: dict[int, tuple[Request, float, float]] = {}  # Requests with when they were sent, and leave
        self._retries: dict[int, int] = {}  # That are left
        self._first_sent: dict[int, float] = {}
        self._now = 0.0  # Up to when the API servers have worked

    @property
    def further(self) -> Callable[[], Sequence[Request]] | None:
        """As of the clients."""
        return self._clients.further

    @further.setter
    def further(self, further: Callable[[], Sequence[Request]] | None) -> None:
        self._clients.further = further

    def listen(self, logs: Sequence[StepLog]) -> None:
        self._clients.listen(logs)

    def move_to(self, time: float) -> None:
        self._now = time
        self._clients.move_to(time)

    @property
    def next_arrival(self) -> float | None:
        leaving, arrival = self._leaving, self._clients.next_arrival
        while leaving and not (leaving[0][1] in self._open and self._open[leaving[0][1]][2] == leaving[0][2]):
            heapq.heappop(leaving)  # answered
        if leaving and (arrival is None or leaving[0][0] <= arrival):
            return leaving[0][0]
        return arrival

    def pop(self) -> tuple[int, Request | None, float]:
        """The next request, or None where its client has left, and when that was; NaN: it sends the request again."""
        arrival = self.next_arrival
        assert arrival is not None
        if self._leaving and self._leaving[0][0] == arrival:
            _, index, left = heapq.heappop(self._leaving)
            return index, None, math.nan if self._sends_again(index, arrival) else left
        index, request, sent = self._clients.pop()
        if request.patience:
            left = sent + request.patience
            self._open[index] = request, sent, left
            self._retries.setdefault(index, request.retries)
            heapq.heappush(self._leaving, (max(arrival, left), index, left))
        return index, request, self._first_sent.setdefault(index, sent) if request.retries else sent

    def _sends_again(self, index: int, time: float) -> bool:
        request, _, _ = self._open.pop(index)
        tries = self._retries[index]
        if tries:
            self._retries[index] = tries - 1
            self._clients.put_back(index, request, time)
        else:
            self._clients.answer(time, index)
        self._clients.move_to(self._now)
        return tries > 0

    def answer(self, time: float, index: int) -> None:
        """A client has its whole answer, unless it has left before; a negative number is of one that had left."""
        if index in self._open:
            if time > self._open[index][2]:
                return
            del self._open[index]
        elif index < 0 or index in self._retries:
            return
        self._clients.answer(time, index)
