"""The load of a published run: as much of it as its row tells, the rest as stated here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from infercast.errors import FileFormatError
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests

SHARES = re.compile(r"uniform\s*\[\s*(\d+(?:\.\d+)?)?\s*l\s*,\s*(\d+(?:\.\d+)?)?\s*l\s*\]")
"""Lengths that are uniform between two shares of the stated length: ``uniform[0.8L,L]``."""
EXACT = ("", "exact", "fixed", "inference-perf shared_prefix")
"""In the column ``len_dist``: every request has just the stated length."""
LOADS = ("closed-loop", "all-at-once burst", "constant-rate", "poisson", "trace")
"""How the column ``load`` may begin."""
OPEN_LOOP_SECONDS = 120.0
"""Of a constant rate only so much is simulated: it is steady long before."""
SHARED_PROMPTS = 16
"""Prompts of a load generator that goes round a small set of them."""
CHATS = {"isl": (1.1, 4, 1000), "osl": (1.4, 2, 1000)}
"""Lengths of chats whose mean alone is published: log-normal, standard deviation of logarithms, shortest, longest."""


class RowReader:
    """One line of a table, with errors that name it."""

    def __init__(self, path: Path, line: int, row: Mapping[str, str | None]) -> None:
        self.path, self.line, self._row = path, line, row
        self.assumptions: list[str] = []
        """What the row does not say and is taken to be so."""

    def assume(self, what: str) -> None:
        """List what is taken to be so, once."""
        if what not in self.assumptions:
            self.assumptions.append(what)

    @property
    def folder(self) -> Path:
        """Where files of this run lie, if its publisher kept any."""
        return self.path.parent / self.text("source") / self.text("src_id")

    def text(self, name: str) -> str:
        """A field, or nothing."""
        return (self._row.get(name) or "").strip()

    def required(self, name: str) -> str:
        """A field that must be there."""
        if not self.text(name):
            raise self.wrong(f"needs the column {name!r}")
        return self.text(name)

    def number(self, name: str) -> float | None:
        """A number above 0, or None where the field is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.wrong(f"{name} must be a number above 0, not {text!r}")
        return value

    def measured(self, name: str) -> float | None:
        """A number above 0; None where the field is empty or 0, which is how load generators say that it is missing."""
        return None if re.fullmatch(r"0*(\.0*)?", self.text(name)) else self.number(name)

    def whole(self, name: str) -> int | None:
        """A whole number, or None where the field is empty."""
        value = self.number(name)
        return None if value is None else round(value)

    def milliseconds(self, name: str) -> float | None:
        """A time in seconds, written in milliseconds."""
        value = self.number(name)
        return None if value is None else value / 1e3

    def wrong(self, problem: str) -> FileFormatError:
        """A clear sentence about this line."""
        return FileFormatError(self.path, problem, self.line)


def read_arguments(row: RowReader) -> dict[str, Any]:
    """The engine's arguments from a run's own ``meta.json``; nothing where there is none."""
    path = row.folder / "meta.json"
    if not path.is_file():
        return {}
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))["engine_kwargs"]
    except (OSError, ValueError, KeyError, TypeError):
        raise row.wrong(f"{path} must be JSON with the engine's arguments in 'engine_kwargs'") from None
    return arguments if isinstance(arguments, dict) else {}


def read_workload(row: RowReader, *, cached: bool) -> Workload:
    """The requests of a run; ``cached``: its prompts come again and again and are likely to be found in the cache."""
    load = row.required("load")
    kind = next((known for known in LOADS if load.lower().startswith(known)), None)
    if kind is None:
        raise row.wrong(f"load {load!r} is not known; known: {', '.join(LOADS)}")
    if kind == "trace":
        return _read_requests(row, row.folder / "requests.jsonl")
    if kind == "all-at-once burst":
        count = _stated(row, "n_requests")
        shuffle = np.random.default_rng(0)
        lengths = (_burst_lengths(row, name, count, shuffle) for name in ("isl", "osl"))
        return workload_from_requests([Request(0.0, *pair) for pair in zip(*lengths, strict=True)])
    inputs, outputs = _lengths(row, "isl"), _lengths(row, "osl")
    if kind == "closed-loop":
        clients = _stated(row, "concurrency")
        count = row.whole("n_requests") or 10 * clients
        return synthetic_workload(concurrency=clients, count=count, input_lengths=inputs, output_lengths=outputs)
    rate = row.number("rate")
    if rate is None:
        raise row.wrong(f"load {load!r} needs the column 'rate'")
    # Of an open loop a part is enough.
    most = max(1, round(rate * OPEN_LOOP_SECONDS))
    count = min(row.whole("n_requests") or most, most)
    arrival = "constant" if kind == "constant-rate" else kind
    workload = synthetic_workload(arrival=arrival, rate=rate, count=count, input_lengths=inputs, output_lengths=outputs)
    return _from_few_prompts(workload) if cached else workload


def _stated(row: RowReader, name: str) -> int:
    """A whole number without which this kind of load says too little."""
    value = row.whole(name)
    if value is None:
        raise row.wrong(f"load {row.text('load')!r} needs the column {name!r}")
    return value


def _lengths(row: RowReader, name: str) -> str:
    """Lengths as `parse_lengths` reads them: exactly the stated one, unless the row says how they differ."""
    length = _stated(row, name)
    stated = row.text("len_dist")
    if stated.lower() in EXACT:
        return str(length)
    shares = SHARES.fullmatch(stated.lower())
    if shares is None:
        raise row.wrong(f"len_dist {stated!r} is not known; known: nothing (exact lengths), fixed, uniform[0.8L,L]")
    low, high = (math.floor(float(share or 1) * length) for share in shares.groups())
    return f"uniform:{max(1, low)}:{max(1, high)}"


def _burst_lengths(row: RowReader, name: str, count: int, shuffle: np.random.Generator) -> list[int]:
    """Lengths of chats where a mean is published, of one length where that is."""
    mean, length = row.number(f"mean_{name}"), row.whole(name)
    if mean is None and length is None:
        raise row.wrong(f"load {row.text('load')!r} needs the column {name!r} or 'mean_{name}'")
    return [length] * count if mean is None and length else _chat(row, name, mean or 1.0, count, shuffle)


def _chat(row: RowReader, name: str, mean: float, count: int, shuffle: np.random.Generator) -> list[int]:
    """The same for a context of the row's length."""
    return chat_lengths(name, mean, count, shuffle, row.whole("max_model_len"))


def chat_lengths(
    name: str, mean: float, count: int, shuffle: np.random.Generator, context: int | None = None
) -> list[int]:
    """Lengths of chats whose mean is the published one, in random order."""
    spread, shortest, longest = CHATS[name]
    longest = min(longest, (context or 2 * longest) // 2)
    ranks = np.array([NormalDist().inv_cdf((position + 0.5) / count) for position in range(count)])
    low, high = math.log(shortest), math.log(longest)
    for _ in range(40):  # halve the range of the median until the lengths have their mean
        middle = (low + high) / 2
        lengths = np.clip(np.exp(middle + spread * ranks), shortest, longest)
        low, high = (middle, high) if lengths.mean() < mean else (low, middle)
    return [int(length) for length in shuffle.permutation(np.rint(lengths))]


def _from_few_prompts(workload: Workload) -> Workload:
    """The same requests with prompts of a small set, which come round again and again."""
    return workload_from_requests(
        Request(each.arrival, each.num_input, each.num_output, (Segment(index % SHARED_PROMPTS, each.num_input),))
        for index, each in enumerate(workload.requests)
    )


def _read_requests(row: RowReader, path: Path) -> Workload:
    """Arrivals and lengths of single requests, from the file beside the table."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        start = min(line["arrival_time"] for line in lines)
        requests = [Request(line["arrival_time"] - start, line["input_toks"], line["output_toks"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        raise row.wrong(f"needs {path} with arrival_time, input_toks and output_toks of every request") from None
    return workload_from_requests(requests)
