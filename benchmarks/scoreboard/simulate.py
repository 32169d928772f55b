"""Simulate published runs one after the other, each engine set up once and no run served twice."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from publishers import as_published
from reasons import reason_of
from shorten import shortened, weighed

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.errors import InfercastError, InputError
from infercast.forecast.estimate import read_rows
from infercast.forecast.system import System
from infercast.lab.validate.compare import Comparison
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.synthetic import workload_from_requests
from published.compare import PublishedComparison, compare_run, started, system_for
from published.run import OPEN, PublishedRun, RowReader
from published.table import known_model, read_collected

QUANTITIES = {"ttft": "ttft", "tpot": "tpot", "output_tokens_per_second": "throughput"}
SAME = ("infercast_gpu", "concurrency_or_rate", "ttft_p50", "ttft_mean_ms", "tpot_mean_ms", "itl_p50", "output_tok_s")
"""What tells that two rows are one run."""
MISTAKE = "a mistake of the simulation"
KEPT = 8
"""Engines that are kept: rows of one engine are near each other."""
REPEATED = "the same run as one before"
FEW = 3
"""Numbers of rows that must be stated for two of them to be told apart."""


class Board:
    """Simulates runs, and remembers engines and results."""

    def __init__(self) -> None:
        self._systems: dict[str, System] = {}
        self._compared: dict[str, PublishedComparison] = {}

    def compare(self, run: PublishedRun) -> PublishedComparison:
        """One run beside its forecast, or the reason why there is none."""
        try:
            if run.problem:
                raise InputError(run.problem)
            return self._simulated(run)
        except InfercastError as problem:
            return PublishedComparison(run, problem=str(problem))
        except Exception as mistake:
            return PublishedComparison(run, problem=f"{MISTAKE}: {type(mistake).__name__} {mistake}")

    def _simulated(self, run: PublishedRun) -> PublishedComparison:
        run, deployment = started(run)
        gpu = deployment.gpu.name, deployment.gpu.kernels
        parts = (deployment.model, gpu, deployment.settings, deployment.layout, run.instances)
        engine = "|".join(map(repr, parts))
        summed_up = run.median, run.gaps, run.steady, run.copies
        key = f"{engine}|{run.version}|{run.workload.concurrency}|{run.workload.requests}|{summed_up}"
        if key not in self._compared:
            if engine not in self._systems:
                if len(self._systems) == KEPT:
                    self._systems.pop(next(iter(self._systems)))
                self._systems[engine] = system_for(run, deployment)
            told = replace(run, ttft=1.0, tpot=1.0, end_to_end=1.0, output_tokens_per_second=1.0)
            system = self._systems[engine]
            short = shortened(told, system)
            self._compared[key] = compare_run(short, system, weighed(short, told))
        return _measured(run, self._compared[key])


def _measured(run: PublishedRun, forecast: PublishedComparison) -> PublishedComparison:
    """The same forecast beside what this run showed."""

    def pair(name: str) -> Comparison | None:
        measured, found = getattr(run, name), getattr(forecast, name)
        return None if measured is None or found is None else replace(found, measured=measured)

    ttft, tpot, whole, rate = map(pair, ("ttft", "tpot", "end_to_end", "output_tokens_per_second"))
    added = tuple(each for each in forecast.run.assumptions if each not in run.assumptions)
    run = replace(run, assumptions=(*run.assumptions, *added))
    return replace(forecast, run=run, ttft=ttft, tpot=tpot, end_to_end=whole, output_tokens_per_second=rate)


def listed_in(folder: Path | None) -> dict[tuple[float, ...], Workload]:
    """Requests that a publisher lists one by one, by their number and mean lengths."""
    found = {}
    for file in sorted(folder.rglob("requests.jsonl")) if folder else ():
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        start = min(line["arrival_time"] for line in lines)
        requests = [Request(line["arrival_time"] - start, line["input_toks"], line["output_toks"]) for line in lines]
        means = (round(mean(getattr(each, name) for each in requests), 2) for name in ("num_input", "num_output"))
        found[len(requests), *means] = workload_from_requests(requests)
    return found


def results(
    path: Path,
    chosen: Callable[[int, Mapping[str, str]], bool],
    board: Board | None = None,
    requests: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """A line for every row that is ``chosen``; ``requests`` is a folder of publishers' files of single requests."""
    board, seen = board or Board(), set[tuple[str, ...]]()
    listed = listed_in(requests)
    for line, read in enumerate(read_rows(path), start=2):
        if not chosen(line, read):
            continue
        row = as_published(read)
        begun = time.perf_counter()
        run = read_collected(RowReader(path, line, row))
        stated = tuple(float(row[name] or 0) for name in ("num_requests", "mean_in", "mean_out"))
        if run.load in OPEN and stated in listed:
            run = replace(
                run, workload=listed[stated], assumptions=(*run.assumptions, "requests as the source lists them")
            )
        measured = tuple(row.get(name, "") for name in SAME)
        if sum(map(bool, measured)) > FEW and measured in seen:
            run = replace(run, problem=REPEATED)
        seen.add(measured)
        yield line_of(line, row, board.compare(run), time.perf_counter() - begun)


def line_of(line: int, row: Mapping[str, str], compared: PublishedComparison, seconds: float) -> dict[str, Any]:
    """One run as a JSON object."""
    run = compared.run
    found: dict[str, Any] = {
        "line": line, "source": run.source, "path": row.get("path", ""), "gpu": run.gpu,
        "model": known_model(run.model) or run.model,
        "published_model": row.get("model", ""), "engine": run.engine.partition("@")[0],
        "version": ".".join(map(str, run.version)), "precision": run.precision, "layout": run.layout,
        "load": run.load, "about_load": row.get("concurrency_or_rate", ""), "mean_in": row.get("mean_in", ""),
        "mean_out": row.get("mean_out", ""), "grade": run.grade,
    }  # fmt: skip
    if compared.problem:
        return {**found, "reason": reason_of(compared.problem), "problem": compared.problem}
    for name, short in QUANTITIES.items():
        pair = getattr(compared, name)
        if pair is not None:
            low, high = pair.interval
            found[short] = {
                "measured": pair.measured, "predicted": pair.predicted, "error": pair.error, "low": low, "high": high,
            }  # fmt: skip
    return {**found, "assumptions": list(run.assumptions), "seconds": round(seconds, 2)}


def counted(lines: Iterable[Mapping[str, Any]]) -> int:
    """How many of these were simulated."""
    return sum("reason" not in line for line in lines)
