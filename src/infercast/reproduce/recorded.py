"""Tables of what was recorded: measured serving runs in each tier, and ours beside ideas and tools of others."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from infercast.bundled import DATA
from infercast.lab.validate.compare import CLASSES, PARTS, PREFIX
from infercast.reproduce.tables import Cell, Table, number

Rows = Sequence[dict[str, Any]]
QUANTITIES = ("TTFT", "TPOT", "tokens/s")
WAYS = {"whole": "", "unseen": " unseen"}
FAMILIES = {
    "Llama 3.1": "llama", "Qwen3": r"qwen3-(0|4|8|14)", "Qwen3, experts": r"qwen3(\.5)?-(30|35)", "Gemma": "gemma",
    "Mistral": "mistral", "DeepSeek V2": "deepseek", "others": "",
}  # fmt: skip


@cache
def records() -> dict[str, Any]:
    """What benchmarks/papers/record.py wrote: runs, and tables of pages."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / "papers" / "recorded.json.gz").read_bytes()))
    return found


def runs() -> Rows:
    found: Rows = records()["runs"]
    return found


def page(figure: str) -> Table:
    """A table as its page has it."""
    return Table(**records()["tables"][figure])


def family_of(row: dict[str, Any]) -> str:
    return next(family for family, pattern in FAMILIES.items() if re.match(pattern, row["file"]))


def errors_of(rows: Rows, way: str) -> list[Cell]:
    """Median absolute errors in per cent: TTFT p50, TPOT p50, tokens a second."""
    found: list[Cell] = []
    for place in range(len(QUANTITIES)):
        pairs = [(row[way][place], row["measured"][place]) for row in rows if row["measured"][place]]
        errors = [abs(forecast / measured - 1.0) for forecast, measured in pairs]
        found.append(round(100.0 * float(np.median(errors)), 1) if errors else None)
    return found


def by_family() -> Table:
    """Each family of models in both tiers."""
    groups = {family: [row for row in runs() if family_of(row) == family] for family in FAMILIES} | {"all": runs()}
    columns = ["models", "runs", *(f"{quantity}{tier}" for tier in WAYS.values() for quantity in QUANTITIES)]
    rows = [[name, len(rows), *(e for way in WAYS for e in errors_of(rows, way))] for name, rows in groups.items()]
    return Table(columns, rows)


def by_part() -> Table:
    """Errors of all runs, and of those with arrivals over time, with one part turned off at a time."""
    rows = runs()
    loaded = [row for row in rows if row["load"]]
    columns = ["forecast", *QUANTITIES, *(f"{what}, loaded" for what in QUANTITIES)]
    ways = {"whole": "whole", "roofline": "kernels by the roofline", "unseen": "kernels of A100 and L40S"}
    ways |= {part: f"without {part}" for part in PARTS if part in rows[0]}
    return Table(columns, [[name, *errors_of(rows, way), *errors_of(loaded, way)] for way, name in ways.items()])


def by_load() -> Table:
    """Errors by the rate at which requests arrive, with their signs' median: below 0, forecasts are too fast."""
    columns = ["load", "runs", *QUANTITIES, "TTFT, bias", "TTFT inside"]
    found = []
    for name in (*(name for _, name in CLASSES), PREFIX):
        group = [row for row in runs() if row["load"] == name]
        if group:
            bias = np.median([row["whole"][0] / row["measured"][0] - 1.0 for row in group])
            inside = np.mean([row["inside"][0] for row in group])
            ends = [round(100.0 * float(each), 1) for each in (bias, inside)]
            found.append([name, len(group), *errors_of(group, "whole"), *ends])
    return Table(columns, found)


def scatter() -> Table:
    """Every run: forecast and measured."""
    columns = ["engine", "models", "run", *(f"{what}, {side}" for what in QUANTITIES for side in ("measured", "ours"))]
    rows: list[list[Cell]] = []
    for row in runs():
        values = [row[side][place] for place in range(len(QUANTITIES)) for side in ("measured", "whole")]
        rows.append([row["engine"], family_of(row), row["label"], *values])
    return Table(columns, rows)


# Pages: ours beside ideas and tools of others.


IDEAS = ("roofline x a factor", "nearest shapes", "throughput curves", "tile network", "pipe network")


def against() -> Table:
    """Means over kernel families of a roofline, of the best other idea for each family, and of ours."""
    names = {"measured H200": "measured", "unseen B200": "unseen-b200"}
    rows: list[list[Cell]] = []
    for title, name in names.items():
        lines = {str(row[0]): [number(cell) or np.inf for cell in row[1:]] for row in page(name).rows}
        waves, ours = lines["roofline, whole waves"], lines["infercast"]
        others = [min(column) for column in zip(*(lines[idea] for idea in IDEAS), strict=True)]
        rows.append(_compared(title, *(float(np.mean(each)) for each in (waves, others, ours))))
        rows.append(_compared(f"{title}, bf16", waves[0], lines["tile network"][0], ours[0]))
    return Table(("rows of", "roofline", "other", "ours", "roofline / ours", "others / ours", "less, %"), rows)


def _compared(name: str, waves: float, others: float, ours: float) -> list[Cell]:
    return [name, waves, others, ours, waves / ours, others / ours, 100.0 * (1.0 - ours / others)]


def by_gpu() -> Table:
    """Mean errors of each GPU by a model of its own rows, and by one of all other GPUs."""
    columns, rows = page("unseen")
    found: list[list[Any]] = []
    for gpu in dict.fromkeys(row[0] for row in rows):
        own = next(row for row in rows if row[0] == gpu and row[1] == "itself")
        unseen = next(row for row in rows if row[0] == gpu and row[2] == "nothing (unseen)")
        found.append([gpu, *map(number, own[3:]), number(unseen[-1])])
    means = [float(np.mean([row[place] for row in found])) for place in range(1, len(found[0]))]
    return Table(("GPU", *columns[3:], "unseen"), [*found, ["mean of five", *means]])


def tools() -> Table:
    """Errors of other tools on static batches, and their TTFT's over ours."""
    rows: list[list[Any]] = [[*row] for row in page("tools").rows if number(row[1]) is not None]
    errors = [[number(part) for part in re.split(" / ", row[1])] for row in rows]
    ours = errors[0][0] or 1.0
    cells = [[row[0], *each, (each[0] or 0.0) / ours, row[4]] for row, each in zip(rows, errors, strict=True)]
    return Table(("tool", *QUANTITIES, "TTFT, times ours", "models of 7"), cells)


FIGURES: dict[str, Callable[[], Table]] = {
    "families": by_family, "parts": by_part, "load": by_load, "scatter": scatter,
    "against": against, "gpus": by_gpu, "tools": tools,
}  # fmt: skip
