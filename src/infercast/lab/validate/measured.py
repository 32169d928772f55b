"""Measured serving runs, read from a file (docs/validation.md); `Engine.measured_setup` says what it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.bundled import DATA
from infercast.engines.base import measured_engine
from infercast.engines.settings import MeasuredSetup
from infercast.errors import Fields, InputError, read_json
from infercast.forecast.deploy import image_of
from infercast.hardware.host import HostProbe, mean_probe, probe_of, read_probe
from infercast.models.spec import ModelConfig
from infercast.serve.workload.classes import showing
from infercast.serve.workload.request import Request, Segment, Workload

# What measured files say of prefixes: conversations with prompts that continue answers, and tokens that were cached.


class Hits(NamedTuple):
    """Tokens of prompts that were not computed, over all requests of a run."""

    cached: int  # From either tier ...
    loaded: int  # ... and those of them that came from the host's memory.


def hits_of(rows: list[Fields]) -> Hits | None:
    """From the optional fields ``n_cached`` and ``n_external`` of the requests."""
    if not all("n_cached" in row for row in rows):
        return None
    return Hits(*(sum(_count(row, name) for row in rows) for name in ("n_cached", "n_external")))


class Conversations:
    """Conversations of a run: every prompt is the one before, its answer, and new tokens."""

    def __init__(self, run: Fields) -> None:
        self._system = run.at_least("system_len", 0) if "system_len" in run else 0
        self._said: dict[int, tuple[Segment, ...]] = {}

    def turn(self, request: Request, row: Fields) -> Request:
        """A request with the content that it shares with others; turns of a conversation come in order."""
        session, turn, new = (_count(row, name) for name in ("session", "turn", "n_new"))
        system = 0  # the name of what all conversations of a run begin with
        said = self._said.get(session, (Segment(system, self._system),) if self._system else ())
        most_turns = 1 << 20  # names of the turns of one conversation
        name = 1 + 2 * (session * most_turns + turn)
        said = (*said, Segment(name, new))
        tokens = sum(segment.num_tokens for segment in said)
        if tokens != request.num_input:
            raise row.wrong("n_in", f"{request.num_input} is not the {tokens} tokens said before and new")
        self._said[session] = (*said, Segment(name + 1, request.num_output))
        return Request(request.arrival, request.num_input, request.num_output, said, answer=name + 1, session=session)


def _count(row: Fields, name: str) -> int:
    return row.at_least(name, 0) if name in row else 0


FIRST_MEASURED = "vllm"
TINY_MS = 1e-6  # no latency is shorter than this; errors are fractions of what was measured


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run against a real engine; arrays are in order of arrival."""

    kind: str
    label: str
    workload: Workload
    ttft: npt.NDArray[Any]
    tpot: npt.NDArray[Any]
    output_tokens_per_second: float
    rate: float = 0.0  # Arrivals a second: as the file states it, or as they came
    token_gap: float | None = None  # Median over requests of their median time between two tokens, if the file has it
    hits: Hits | None = None
    joules: float | None = None  # What the board's energy counter said, where the file has it, ...
    mean_watts: float | None = None  # ... and the same over the time from the first request sent to the last token.
    sizes: tuple[list[tuple[int, int]], ...] = ()  # Of the images in each prompt, if any has some


WARM_UP = "warmup"  # the kind of a run that only lets the engine meet what comes later


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """All runs of one engine, in the order in which they were made."""

    path: Path
    model: str  # Name of the model, without what follows a double underscore
    gpu: str
    setup: MeasuredSetup
    runs: tuple[MeasuredRun, ...]
    num_stalled: int
    probe: HostProbe | None = None  # Of the machine, in the file or beside it
    is_warm: bool = False  # Its engine had served before the first run


def shipped_runs(engine: str = FIRST_MEASURED) -> list[Path]:
    """Files that come with infercast, one a model: of one release if the name has it."""
    family, _, release = engine.partition("@")
    return sorted((DATA / "runs").glob(f"*-{measured_engine(family).family}-{release or '*'}/*.json.gz"))


def read_measured(path: Path) -> MeasuredFile:
    document = Fields(path, read_json(path, "JSON or gzipped JSON"))
    stated, runs = document.get("config", dict), document.get("runs", list)
    if any(isinstance(run, dict) and _is_streamed(run.get("requests")) for run in runs):
        stated = {"api_server": True, "gpu": "", **stated}
    config = Fields(path, stated, "config")
    measured, num_stalled = [], 0
    for run in document.parts("runs"):
        if run.holder.get("one_off_stall"):
            num_stalled += 1
        elif run.holder.get("kind") != WARM_UP or run.holder.get("requests"):
            measured.append(_read_run(run))
    return MeasuredFile(
        path=path, model=config.get("name", str).split("__")[0], gpu=config.get("gpu", str),
        setup=measured_engine(config.word("engine", FIRST_MEASURED)).measured_setup(config), runs=tuple(measured),
        num_stalled=num_stalled, probe=_probe(path, document.holder), is_warm=bool(config.holder.get("warmed_up")),
    )  # fmt: skip


def _probe(path: Path, document: Mapping[str, Any]) -> HostProbe | None:
    """What says how fast the host was: probes in a file of runs, or else files next to it (``runs.probe.json``)."""
    inside = [document[name] for name in ("probe", "probe_before", "probe_after") if document.get(name) is not None]
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    endings = () if inside else (".*probe*.json", "[_-]probe*.json", "[._-]host.json")
    files = sorted({each for ending in endings for each in path.parent.glob(f"{escape(stem)}{ending}")})
    probes = [probe_of(each, path) for each in inside] or [read_probe(each) for each in files]
    where = ", ".join(each.name for each in files) or "the same file"
    return mean_probe(probes, f"probed host ({where})") if probes else None


def _is_streamed(rows: Any) -> bool:
    """Whether a client counted the parts of answers, as those of a server over HTTP do."""
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "chunks" in rows[0]


def _read_run(run: Fields) -> MeasuredRun:
    kind, _ = run.get("kind", str), run.get("requests", list)
    if not (rows := run.parts("requests")):
        raise run.wrong("requests", "is empty")
    groups = run.holder.get("groups")
    prefix_len = 0
    if groups is not None:
        prefix_len = run.at_least("prefix_len", 1)
        if not isinstance(groups, list) or len(groups) != len(rows) or not all(type(each) is int for each in groups):
            raise run.wrong("groups", f"must number a prefix for each of the {len(rows)} requests")
    requests, values, sizes = [], [], []
    conversations = Conversations(run) if "session" in rows[0].holder else None
    early_seconds = 1e-3  # a client's timer may wake it this long before the start; that counts as the start
    for position, row in enumerate(rows):
        num_input, num_output = int(row.needed("n_in", 1)), int(row.needed("n_out", 1))
        if prefix_len > num_input:
            raise row.wrong("n_in", f"{num_input} is below {run.named('prefix_len')} {prefix_len}")
        prefix = () if groups is None else (Segment(groups[position], prefix_len),)
        arrival = max(row.needed("arrival", -early_seconds), 0.0)
        sizes.append(_sizes(row))
        request = Request(arrival, num_input, num_output, prefix)
        requests.append(request if conversations is None else conversations.turn(request, row))
        # After a stall all tokens of an answer may come at one moment.
        tpot_ms = max(row.needed("tpot_ms", 0.0), TINY_MS) if num_output > 1 else 0.0
        latencies = row.needed("ttft_ms", TINY_MS), tpot_ms, row.needed("e2e_ms", TINY_MS)
        values.append((arrival, num_output, *latencies))
    order = sorted(range(len(rows)), key=lambda index: requests[index].arrival)
    arrival, n_out, ttft, tpot, e2e = np.array(values)[order].T
    duration = float((arrival + e2e / 1e3).max() - arrival.min())
    # From the optional field ``itl_p50_ms`` of the requests
    gaps = [row.needed("itl_p50_ms", TINY_MS) for row in rows if "itl_p50_ms" in row.holder]
    summary = run.maybe("summary")
    return MeasuredRun(
        kind=kind, label=_label(kind, run.holder), workload=_workload(run, [requests[index] for index in order]),
        ttft=ttft / 1e3, tpot=tpot[n_out > 1] / 1e3, output_tokens_per_second=float(n_out.sum()) / duration,
        rate=_rate(run.holder, arrival), token_gap=float(np.median(gaps)) / 1e3 if gaps else None,
        hits=hits_of(rows), joules=summary.number("joule", TINY_MS), mean_watts=summary.number("mean_w", TINY_MS),
        sizes=tuple(sizes[index] for index in order) if any(sizes) else (),
    )  # fmt: skip


def _sizes(row: Fields) -> list[tuple[int, int]]:
    """Of the images in a prompt, which count in its ``n_in``."""
    sizes = row.holder.get("images", [])
    try:
        found = [(width, height) for width, height in sizes]
    except (TypeError, ValueError):
        found = [(0, 0)]
    if not all(type(side) is int and side > 0 for size in found for side in size):
        raise row.other("images", "a list of [width, height]")
    return found


def with_images_of(run: MeasuredRun, model: ModelConfig) -> MeasuredRun:
    """A run with the images of its prompts as this model's processor cuts them, each one new, before the text."""
    requests, count = [], 0
    for request, sizes in zip(run.workload.requests, run.sizes, strict=False):
        images = [image_of(model, *size)._replace(content=-count - number) for number, size in enumerate(sizes, 1)]
        count, tokens = count + len(images), sum(image.num_tokens for image in images)
        if tokens > request.num_input:
            said = f"{run.label}: a prompt of {request.num_input} tokens with {len(images)} images"
            raise InputError(f"{said}, which alone are {tokens} tokens of {model.name}")
        text = replace(request, num_input=request.num_input - tokens)
        requests.append(showing(text, images) if images else request)
    return replace(run, workload=replace(run.workload, requests=tuple(requests))) if requests else run


def _workload(run: Fields, requests: list[Request]) -> Workload:
    """At the times at which they came or, of a closed loop, one after the other by each of its clients."""
    description = _label(run.get("kind", str), run.holder)
    name = next((each for each in ("clients", "concurrency") if each in run), None)
    if name is None:
        return Workload(tuple(requests), description=description)
    clients = run.at_least(name, 1)
    begun = max(
        request.arrival for request in requests[:clients]
    )  # One after the other, as fast as their program sends
    first = (replace(request, arrival=min(request.arrival, begun)) for request in requests)
    return Workload(tuple(first), concurrency=clients, description=description)


def _rate(run: Mapping[str, Any], arrival: npt.NDArray[Any]) -> float:
    stated = run.get("rate")
    if isinstance(stated, int | float) and not isinstance(stated, bool) and 0 < stated < math.inf:
        return float(stated)
    span = float(arrival[-1] - arrival[0])
    return (arrival.size - 1) / span if span else 0.0


def _label(kind: str, run: Mapping[str, Any]) -> str:
    if isinstance(run.get("images"), str) and "rep" in run:
        return f"{kind} {run['images']} #{run['rep']}"
    if "batch" in run:
        return f"{kind} {run['batch']}x{run.get('n_in')}x{run.get('n_out')} #{run.get('rep', 0)}"
    if (clients := run.get("clients", run.get("concurrency"))) is not None:
        return f"{kind} {clients} clients"
    return f"{kind} {run['rate']:g}/s" if isinstance(run.get("rate"), int | float) else kind
