"""``infercast measure``: time the kernels of the GPU in this machine."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from infercast.cli.options import known_names, with_options
from infercast.cli.outputs import Form, bar_of, note, print_result
from infercast.errors import InputError, UnknownNameError, require
from infercast.forecast.option_table import own_options
from infercast.lab.measure.cases import DEFAULT as ANCHORS
from infercast.lab.measure.cases import NAMES
from infercast.lab.measure.device import ENGINES, gpu_name, require_gpu
from infercast.lab.measure.host import measure_host
from infercast.lab.measure.sweep import Progress, Sweep, run_sweep
from infercast.report.files import write_in_folder
from infercast.report.terminal import Facts, Grid, Section, pick

INTERRUPTED = 130
MINUTES, MINUTES_OF_ANCHORS = 10.0, 1.0


@with_options(own_options("measure", families=", ".join(NAMES)))
def command(
    *, out: Path, minutes: float | None, engine: str | None, anchors: int | None, form: Form, **given: Any
) -> None:
    if minutes is None:
        minutes = MINUTES if anchors is None else MINUTES_OF_ANCHORS
    require(0 < minutes < math.inf, "--minutes", "be above 0", minutes)
    require(anchors is None or 0 < anchors <= ANCHORS, "--anchors", f"be between 1 and {ANCHORS}", anchors)
    if engine is not None and engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is not a folder")
    chosen = _families(given["families"])
    if given["host"]:
        if chosen or engine == "torch" or anchors:
            raise InputError("--host times vLLM itself; leave out --families, --anchors and --engine torch")
        _host(out, form)
        return
    try:
        with _bar(60 * minutes) as progress:
            result = run_sweep(
                out, minutes=minutes, families=chosen, engine=engine, progress=progress, anchors=anchors or 0
            )
    except KeyboardInterrupt:
        note("stopped; the same command takes the sweep up again")
        sys.exit(INTERRUPTED)
    print_result(form, _sweep_dict, _sweep_tables, result, out, anchors)


def _families(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = known_names("kernel family", text, NAMES)
    if not names:
        raise InputError(f"--families names none of {', '.join(NAMES)}")
    return names


@contextmanager
def _bar(budget: float) -> Iterator[Progress | None]:
    """A bar with the time left, where standard error is a terminal."""
    task = {"description": "getting ready", "total": 1.0}
    with bar_of(task, "measuring", "BarColumn", "{task.description}") as update:

        def tell(finished: int, total: int, used: float) -> None:
            left = seconds_left(finished, total, used, budget)
            text = f"{finished:,} of {total:,} shapes, {left // 60:.0f}:{left % 60:02.0f} left"
            if update is not None:
                update(completed=used / max(used + left, 1e-9), description=text)

        yield None if update is None else tell


def seconds_left(finished: int, total: int, used: float, budget: float) -> float:
    """Until all is done at the speed so far or, if that comes first, until the time is up."""
    until_stop = max(0.0, budget - used)
    return min(until_stop, used / finished * (total - finished)) if finished else until_stop


def _next(out: Path, anchors: int | None) -> str:
    if anchors:
        return f"infercast simulate MODEL --gpu GPU --anchors {shlex.quote(str(out))}"
    return f"infercast fit DATA --measurements {shlex.quote(str(out))} --out kernels.npz"


def _sweep_dict(result: Sweep, out: Path, anchors: int | None) -> dict[str, Any]:
    return {
        **pick(result, "gpu engine left", measured="rows", rows="tables", skipped="tally.skipped"),
        "folder": str(result.folder),
        "minutes": round(result.seconds / 60, 2),
        "next": _next(out, anchors),
    }


def _sweep_tables(result: Sweep, out: Path, anchors: int | None) -> list[Any]:
    spent = f"{result.seconds / 60:.1f} minutes, {result.rows:,} rows new"
    if result.left:
        spent += f", {result.left:,} shapes left: the same command goes on with them"
    kernels = "vLLM's where it has them" if result.engine == "vllm" else "PyTorch's own"
    parts = [
        Facts([("GPU", result.gpu), ("written to", str(result.folder)), ("kernels", kernels), ("time", spent)]),
        Grid(("table", "rows"), [(name, f"{rows:,}") for name, rows in result.tables.items()]),
    ]
    if result.tally.skipped:
        rows = [(f"{count:,}", reason) for reason, count in result.tally.skipped.items()]
        parts.append(Section("Skipped", Grid(("shapes", "why"), rows, text_columns=0, notes_at=(1,))))
    return [*parts, Section("Next", Facts([("learn from it", _next(out, anchors))]))]


def _host(out: Path, form: Form) -> None:
    require_gpu()
    times = measure_host(say=partial(print, file=sys.stderr, flush=True))
    result = {"gpu": gpu_name(), **times}
    path = out / result["gpu"] / "host.json"
    write_in_folder(path, json.dumps(result, indent=1) + "\n")
    rows = [
        (str(model["layers"]), *_ends(model["first_token_ms"]), *_ends(model["decode_step_ms"]))
        for model in times["models"]
    ]
    columns = ("layers", "first token, short prompt", "long prompt", "decode step, one sequence", "many")
    known = [("GPU", result["gpu"]), ("engine", f"vLLM {times['engine_version']}"), ("CPU", times["cpu"])]
    tables = [Facts([*known, ("written to", str(path))]), Grid(columns, rows, text_columns=0)]
    print_result(form, lambda: result, lambda: tables, rows="models")


def _ends(times: dict[str, float]) -> tuple[str, str]:
    """The first and the last of a row of times."""
    values = list(times.values())
    return f"{values[0]:.2f} ms", f"{values[-1]:.2f} ms"
