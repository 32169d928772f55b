"""The load of a published row: when its requests come, and how many."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import workload_from_requests
from infercast.validate.published.load import RowReader
from infercast.validate.published.stated_lengths import read_lengths

CLOSED, POISSON, CONSTANT, BURST, OFFLINE, CAPPED = (
    "closed loop", "poisson", "constant", "burst", "offline", "saturated, capped batch",
)  # fmt: skip
OPEN = (POISSON, CONSTANT)
KINDS = (CLOSED, POISSON, CONSTANT, BURST, OFFLINE, CAPPED)
RATE = re.compile(r"(?:rate|poisson|constant) (\d+(?:\.\d+)?|inf)")
"""Requests a second that come whatever is answered."""
CLIENTS = re.compile(r"concurrency (\d+)")
CAP = re.compile(r"max_num_seqs (\d+)")
OUT_OF_STEP = re.compile(r"\b(aiperf|genai-perf|guidellm)\b", re.IGNORECASE)
"""Load generators whose clients do not stay in step where all requests are of one length: published medians of TTFT
are those of prompts that come alone, and only the 99th percentile is that of the first ones, which come together."""
AT_ONCE_FROM = 1000.0
"""So many requests a second are a burst."""
TURNS = 10
"""Requests of each client, where their number is not stated."""
OPEN_SECONDS, MOST_OPEN = 200.0, 12000
"""Of an open loop without an end only so much is simulated, of which the first part is left out."""
STEADY_TURNS, WIDE, WIDE_TURNS = 3, 256, 2
"""How often every place of a full batch is taken in a simulation of one that stays full, and of one with more places
than that ..."""
LEAST_STEADY, MOST_STEADY = 96, 3072
"""... but so many requests at least, and at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, what kind of load they are, and what it tells of the server."""

    kind: str
    workload: Workload
    cap: int | None = None
    """Most requests that run at the same time."""
    steady: bool = False
    """Only the time counts in which so many do."""


def read_load(row: RowReader) -> Load:
    """Clients that send one request after the other, requests that come at some rate, or all at once."""
    kind, about = row.text("load_kind").lower(), row.text("concurrency_or_rate").lower()
    kind = next((known for known in KINDS if kind.startswith(known)), kind)
    clients, rate = CLIENTS.search(about), RATE.match(about)
    if "multi-turn" in row.text("notes"):
        raise row.wrong("was a load of conversations, whose turns are not in the table")
    if kind == CLOSED and clients:
        requests = _requests(row, _count(row, TURNS * int(clients[1])))
        if OUT_OF_STEP.search(f"{row.text('prefix_note')} {row.text('bench_cmd')} {row.text('notes')}"):
            requests = _spread(row, requests, int(clients[1]))
        return Load(kind, workload_from_requests(requests, concurrency=int(clients[1])))
    if kind in (POISSON, CONSTANT) and rate and rate[1] != "inf" and float(rate[1]) < AT_ONCE_FROM:
        return Load(kind, _open(row, kind, float(rate[1])), steady=row.whole("num_requests") is None)
    if kind == BURST or (kind in (POISSON, CONSTANT) and rate):
        if row.whole("num_requests") is None:
            raise row.wrong("needs the column 'num_requests'")
        return Load(BURST, workload_from_requests(_requests(row, _count(row, 1))))
    cap = CAP.search(about)
    if kind == CAPPED and cap:
        return Load("capped batch", _full(row, int(cap[1])), int(cap[1]), steady=True)
    if kind == OFFLINE:
        return Load(kind, _full(row, row.whole("max_num_seqs") or 256), steady=True)
    raise row.wrong(f"load {kind!r} with {about!r} is not known; known: {', '.join(KINDS)}")


def _count(row: RowReader, otherwise: int) -> int:
    count = row.whole("num_requests")
    if count is None:
        row.assume(f"{otherwise:,} requests: their number is not stated")
    return count or otherwise


def _requests(row: RowReader, count: int) -> list[Request]:
    """So many requests, all of which come at once."""
    return [Request(0.0, *pair) for pair in zip(*read_lengths(row, count), strict=True)]


def _spread(row: RowReader, requests: list[Request], clients: int) -> list[Request]:
    """Clients that begin spread over one answer: the first of each is cut, where most have one length."""
    longest = max(each.num_output for each in requests)
    if clients < 2 or sum(each.num_output == longest for each in requests) < len(requests) / 2:
        return requests
    row.assume("clients are spread over one answer")
    cut = (max(1, round(each.num_output * (place + 1) / clients)) for place, each in enumerate(requests[:clients]))
    first = [replace(each, num_output=tokens) for each, tokens in zip(requests, cut, strict=False)]
    return first + requests[clients:]


def _open(row: RowReader, kind: str, rate: float) -> Workload:
    """Requests that come at a rate, at random times or evenly spaced."""
    most = min(MOST_OPEN, max(1, round(rate * OPEN_SECONDS)))
    count = _count(row, most)
    gaps = np.full(count, 1 / rate) if kind == CONSTANT else np.random.default_rng(0).exponential(1 / rate, count)
    times = np.cumsum(gaps).tolist()
    requests = _requests(row, count)
    return workload_from_requests(replace(each, arrival=at) for each, at in zip(requests, times, strict=True))


def _full(row: RowReader, cap: int) -> Workload:
    """More requests at once than can run at the same time: as many as show how a full batch goes on."""
    count = min(max((STEADY_TURNS if cap <= WIDE else WIDE_TURNS) * cap, LEAST_STEADY), MOST_STEADY)
    stated = row.whole("num_requests")
    if stated is None or stated > count:
        row.assume(f"a full batch is simulated with {count:,} requests")
    else:
        count = stated
    return workload_from_requests(_requests(row, count))
