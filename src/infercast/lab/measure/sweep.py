"""The sweep itself: batches of cases, most useful first, kept as they come, until all is done or the time is up."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.errors import InputError, reading
from infercast.lab.measure.cases import Case, Shape, anchor_cases, sweep_cases
from infercast.lab.measure.device import Monitor, State, choose_engine, describe, gpu_name, require_gpu
from infercast.lab.measure.processes import COMPILED, ISOLATED, compile_ahead, load_apart, measure_isolated, prepare
from infercast.lab.measure.rows import Bench, Row, Store, Tally, is_heavy, measure_batch, require_pandas

# What a reader of a table must know: ``meta.toml`` next to it.

NAME = "meta.toml"


class Meta:
    """The facts of one folder: written when a sweep begins and again when it ends, however it ends."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], before: State) -> None:
        earlier = read_meta(folder)
        self._folder, self._minutes_before = folder, float(earlier.get("minutes", 0.0))
        protocol, date = read_data("lab/sweep.toml")["protocol"], time.strftime("%Y-%m-%d")
        self._facts = {**facts, "protocol": protocol, "date": date}
        self._facts |= {"minutes": self._minutes_before, "rows": earlier.get("rows", 0), **_state(before, "before")}
        write_meta(folder, self._facts)

    def finish(self, seconds: float, rows: int, skipped: Mapping[str, int], during: State) -> None:
        """Add what the sweep came to; minutes are those of all sweeps into this folder."""
        self._facts |= {"minutes": round(self._minutes_before + seconds / 60, 2), "rows": rows}
        self._facts |= _state(during, "during")
        self._facts["skipped"] = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        write_meta(self._folder, self._facts)


def _state(state: State, when: str) -> dict[str, float]:
    return {f"sm_mhz_{when}": state.sm_mhz, f"watts_{when}": state.watts, f"celsius_{when}": state.celsius}


def read_meta(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    with reading(path, "TOML"):
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_meta(folder: Path, facts: Mapping[str, Any]) -> None:
    lines = []
    for name, value in facts.items():
        text = json.dumps(value) if isinstance(value, str | bool | int | float) else json.dumps(str(value))
        lines.append(f"{name} = {text}\n")
    temporary = folder / f"{NAME}.part"
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, folder / NAME)


BATCH = 150
Progress = Callable[[int, int, float], None]  # told how many cases are done, of how many, and after how many seconds


@dataclass
class Sweep:
    gpu: str
    folder: Path
    engine: str
    rows: int = 0
    left: int = 0
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)


def run_sweep(
    out: Path, *, minutes: float, families: Sequence[str] | None = None, engine: str | None = None,
    progress: Progress | None = None, anchors: int = 0,
) -> Sweep:  # fmt: skip
    """Measure until all is done or time is up, resuming ``out``; ``anchors``: only the most informative shapes."""
    cases = [case for case in anchor_cases(anchors) if not families or case.family in families]
    cases = cases if anchors else sweep_cases(families)
    chosen = choose_engine(engine)
    is_compiled = chosen == "vllm" or not anchors
    if is_compiled:
        load_apart(chosen)
    require_gpu()
    require_pandas()
    result = Sweep(gpu_name(), out / gpu_name(), chosen)
    store = Store(result.folder)
    earlier = read_meta(store.folder).get("kernels", chosen)
    if earlier != chosen:
        raise InputError(
            f"{store.folder} holds kernels measured with --engine {earlier}; choose another --out for --engine {chosen}"
        )
    done = store.done()
    waiting = [case for case in cases if case.key not in done]
    begin = time.monotonic()
    deadline = begin + 60 * minutes
    monitor = Monitor()

    def measure(shared: Sequence[Case]) -> None:
        if shared:
            _measure_here(shared, store, monitor, result, deadline, progress)
        result.left = len(waiting) - result.tally.tried

    try:
        meta = Meta(store.folder, {"gpu": result.gpu, **describe(), "kernels": chosen}, monitor.since(0.0))
        shared = [case for case in waiting if case.family not in ISOLATED]
        apart = [case for case in waiting if case.family in ISOLATED]
        try:
            if is_compiled:
                # Of a few anchors, those that need no compiling are measured before others are compiled.
                ready = [case for case in shared if anchors and case.family not in COMPILED]
                prepare(waiting, chosen, deadline, partial(measure, ready))
                shared = [case for case in shared if case not in ready]
            if apart:
                result.rows += measure_isolated(apart, store, result.tally, chosen, deadline)
            measure(shared)
        finally:
            result.seconds = time.monotonic() - begin
            meta.finish(result.seconds, len(done) + result.rows, result.tally.skipped, monitor.since(begin))
    finally:
        monitor.stop()
    result.tables = store.write_tables()
    return result


def open_bench() -> Bench:
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    return GpuBench()


def _measure_here(
    waiting: Sequence[Case], store: Store, monitor: Monitor, result: Sweep, deadline: float, progress: Progress | None
) -> None:
    """Kernels that break no process."""
    bench = open_bench()
    begin, before = time.monotonic(), result.tally.tried
    for batch in batches(waiting):
        now = time.monotonic()
        if now > deadline:
            break
        if progress is not None:
            progress(result.tally.tried - before, len(waiting), now - begin)
        rows = measure_batch(batch, bench, monitor, result.tally, deadline)
        store.append([{"gpu": result.gpu, **row} for row in rows])
        result.rows += len(rows)
    bench.close()


def batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in their order, light and heavy ones never in one batch: a hot chip runs light kernels slower."""
    waiting: dict[bool, list[Case]] = {False: [], True: []}
    for case in cases:
        heavy = is_heavy(case)
        waiting[heavy].append(case)
        if len(waiting[heavy]) == BATCH:
            yield waiting[heavy]
            waiting[heavy] = []
    yield from (rest for rest in waiting.values() if rest)


# Launch configurations of routed experts, tried on the GPU at hand.


@dataclass
class Trial:
    gpu: str
    facts: dict[str, Any]
    rows: list[Row]
    skipped: dict[str, int]
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """When compiling and measuring were done, in seconds from the start."""


def trial_cases(layer: Shape, configurations: Iterable[dict[str, int] | None]) -> list[Case]:
    """Cases of one layer. ``None`` is what vLLM chooses; a second one is another turn, to see what chance does."""
    flops = 6.0 * layer["tokens"] * layer["topk"] * layer["hidden"] * layer["inter"]
    cases: list[Case] = []
    tuning = "tuning"
    for each in configurations:
        turn = sum(case.shape["configuration"] == each for case in cases)
        cases.append(Case(tuning, layer | {"configuration": each, "turn": turn}, flops))
    return cases


def try_configurations(cases: Sequence[Case], seconds: float) -> Trial:
    """Compile with all cores, then measure, for at most ``seconds``."""
    require_gpu()
    if choose_engine(None) != "vllm":
        raise InputError("trying configurations needs vLLM, whose kernel they are for: pip install vllm")
    begin = time.monotonic()
    trial = Trial(gpu_name(), describe(), [], {})
    compiling = 0.55
    compile_ahead([case for case in cases if not case.shape["turn"]], "vllm", compiling * seconds)
    trial.stages["compiled"] = time.monotonic() - begin
    tally, monitor = Tally(), Monitor()
    try:
        bench = open_bench()
        for dtype in dict.fromkeys(case.shape["dtype"] for case in cases):
            for batch in batches([case for case in cases if case.shape["dtype"] == dtype]):
                trial.rows += measure_batch(batch, bench, monitor, tally, begin + seconds)
    except RuntimeError as problem:  # a kernel has broken the GPU's context: what was measured before is still good
        tally.skip(cases[0], problem)
    finally:
        monitor.stop()
    trial.skipped, trial.seconds = tally.skipped, time.monotonic() - begin
    trial.stages["measured"] = trial.seconds
    return trial
