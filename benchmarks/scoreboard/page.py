"""The page of the scoreboard, from a record: tables by every dimension, the worst runs, and what was not simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from groups import DIMENSIONS, QUANTITIES, Errors, Run, errors_of, grouped, over_sources

INTRODUCTION = """# Scoreboard: published runs

Forecasts compared with runs that others published: vLLM and SGLang, with machines, models and loads that this project
did not choose. One command writes all numbers of this page, its pictures and `benchmarks/scoreboard/results.json`:

```
python benchmarks/scoreboard/board.py RUNS.csv [--requests FOLDER] [--against OLD.json]
```

`RUNS.csv` is a table of collected runs ([its columns](../published/README.md#tables-with-commands)), which is not
part of this repository. The record has forecasts and errors, not the table. `--against` compares with another record:
better, worse, new and gone. `benchmarks/scoreboard/run.py RUNS.csv --gpu NAME --source WORD` shows single runs with
measured values, intervals and everything that was assumed. `--requests` is a folder with publishers' own files of
requests (`requests.jsonl`), which stand for those of a row with the same number and means.

How a run is read: lengths and how they vary, the load, the flags of the server's command, engine and release, weights
and GPUs as the source states them. **What it does not state is assumed and listed with the run.** The engine is the
one whose costs were measured (vLLM 0.25, SGLang 0.5.16) with the defaults of the stated release where they are known.
Medians are compared where a source has them, otherwise means; *capped batches* only while the batch is full. Long
closed loops are simulated in part and extrapolated (within 1 % of the whole), unless prompts come again. Nothing is
fitted to a row or a source.

Errors are absolute percentages in the median over runs, with the median signed error in brackets (above 0: the forecast
is too high), and the share of measured values inside the 80 % intervals that `simulate` shows of the same runs,
with half the width of these in the mean. *Grade* A: settings are known, B: some are implied.
"""
WORST = 10
SAME = ("source", "model", "gpu", "engine", "load")
"""Of runs that agree in all of these only the worst is shown."""


def page_of(record: Mapping[str, Any], explanations: Mapping[str, str], causes: str) -> str:
    """The whole page."""
    runs = list(record["runs"].values())
    known = [run for run in runs if run["grade"] == "A"]
    parts = [INTRODUCTION, "## In short\n", _in_short(runs, known)]
    parts += [f"![Signed errors by source](../../docs/images/scoreboard_sources.svg)\n\n{causes.strip()}\n"]
    for dimension, title in DIMENSIONS.items():
        if dimension == "grade" and len(runs) == len(known):
            continue
        chosen = runs if dimension == "grade" else known
        of = "all runs" if dimension == "grade" else "grade A"
        parts += [f"## By {title.lower() if title != 'GPU' else title} ({of})\n", _table(chosen, dimension, title)]
        if dimension == "gpu":
            parts.append("![Signed errors by GPU](../../docs/images/scoreboard_gpus.svg)\n")
    parts += ["## The ten worst\n", _worst(record["runs"], explanations)]
    parts += ["## What is assumed\n", _assumed(record), "## What is not simulated\n", _not_simulated(record)]
    return "\n".join(parts).rstrip() + "\n"


def _in_short(runs: Sequence[Run], known: Sequence[Run]) -> str:
    """Medians over sources, and over all runs."""
    rows = [
        ("grade A, median over sources", len(known), [_share(over_sources(known, name)) for name in QUANTITIES]),
        ("grade A, all runs", len(known), [_cell(errors_of(known, name)) for name in QUANTITIES]),
    ]
    if len(runs) > len(known):
        rows += [
            ("all grades, median over sources", len(runs), [_share(over_sources(runs, name)) for name in QUANTITIES]),
            ("all grades, all runs", len(runs), [_cell(errors_of(runs, name)) for name in QUANTITIES]),
        ]
    head = ["| runs | count | TTFT | TPOT | tokens/s |", "| --- | --: | --: | --: | --: |"]
    lines = [f"| {name} | {count} | {' | '.join(cells)} |" for name, count, cells in rows]
    columns = "| grade A, all runs | mean | median | p90 | in 80% intervals | half their width |"
    more = ["", columns, "| --- | --: | --: | --: | --: | --: |"]
    for name, title in QUANTITIES.items():
        if (each := errors_of(known, name)) is not None:
            intervals = f"{each.inside:.0%} | {each.width:.0%}"
            more.append(f"| {title} | {each.mean:.1%} | {each.median:.1%} | {each.p90:.1%} | {intervals} |")
    return "\n".join([*head, *lines, *more]).replace("%", " %") + "\n"


def _table(runs: Sequence[Run], dimension: str, title: str) -> str:
    head = [
        f"| {title} | runs | TTFT | inside | TPOT | inside | tokens/s | inside |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines = []
    for name, group in grouped(runs, dimension).items():
        cells = []
        for quantity in QUANTITIES:
            errors = errors_of(group, quantity)
            cells += [_cell(errors), "" if errors is None else f"{errors.inside:.0%} of ±{errors.width:.0%}"]
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join([*head, *lines]).replace("%", " %") + "\n"


def _cell(errors: Errors | None) -> str:
    return "" if errors is None else f"{errors.median:.1%} ({errors.bias:+.0%})"


def _share(value: float | None) -> str:
    return "" if value is None else f"**{value:.1%}**"


def badness(run: Run) -> float:
    """How many times a forecast is too high or too low, as a logarithm, in the quantity that is worst."""
    return max((abs(log(max(1e-6, 1 + run[name]["error"]))) for name in QUANTITIES if name in run), default=0.0)


def worst_of(runs: Mapping[str, Run]) -> list[str]:
    """The worst runs of grade A, one of each kind."""
    seen: set[tuple[str, ...]] = set()
    found = []
    for key in sorted(runs, key=lambda each: (-badness(runs[each]), each)):
        kind = tuple(runs[key][name] for name in SAME)
        if runs[key]["grade"] == "A" and kind not in seen:
            seen.add(kind)
            found.append(key)
    return found[:WORST]


def _worst(runs: Mapping[str, Run], explanations: Mapping[str, str]) -> str:
    """One run of each kind (source, model, GPU, engine, load), the furthest off first, with what was found about it."""
    lines = []
    for number, key in enumerate(worst_of(runs), start=1):
        run = runs[key]
        errors = ", ".join(
            f"{title} {run[name]['error']:+.0%}" for name, title in QUANTITIES.items() if name in run
        ).replace("%", " %")
        about = explanations.get(key) or "Not explained yet."
        lines.append(
            f"{number}. **{run['model']} on {run['gpu']}** ({run['layout']}, {run['engine']} {run['version']}, "
            f"{run['precision']}, {run['load']}; {key}): {errors}. {about}"
        )
    return (
        "\n".join(["One run of each kind (source, model, GPU, engine and load), the furthest off first.\n", *lines])
        + "\n"
    )


def _assumed(record: Mapping[str, Any]) -> str:
    """Assumptions by their beginning, and how many runs have them."""
    counts: Counter[str] = Counter()
    for run in record["runs"].values():
        counts.update({kind_of(record["assumptions"][number]) for number in run["assumed"]})
    without = sum(not run["assumed"] for run in record["runs"].values())
    lines = [f"| {kind} | {count} |" for kind, count in counts.most_common() if count > 1]
    return "\n".join(["| assumption | runs |", "| --- | --: |", *lines, f"| none | {without} |"]) + "\n"


def kind_of(assumption: str) -> str:
    """What an assumption is about, without its numbers."""
    if assumption.startswith("--"):
        return f"{assumption.split(maxsplit=1)[0]} changes nothing"
    for words, kind in KINDS.items():
        if words in assumption:
            return kind
    return assumption.partition(":")[0] if ":" in assumption else assumption


KINDS = {
    "every prompt has": "all prompts and answers have the mean length",
    "a full batch is simulated": "a full batch is simulated with a few requests for each place",
    "the rest is like the last": "the first requests are simulated, the rest is like the last of them",
    "prompts have ": "mean lengths of prompts of a data set",
    "lengths are uniform": "lengths are uniform up to twice their means",
    "lengths of chats": "lengths of chats, where the row names those of another run",
    "the release of": "the release, by the date of the run or the measured one",
    "experts over": "experts over all GPUs: attention is split over as many",
    "the longest context": "the longest context that has room",
    "precision": "weights as the checkpoint has them",
    "in the KV cache": "room in the KV cache as the source has it",
    "of the answers end": "some answers end anywhere before their limit",
    "has the shape of": "a model has the shape of another one",
    "their number is not stated": "how many requests there were",
    "requests end at the longest context": "some requests end at the longest context",
    "come round again": "prompts of a small data set come round again",
    "servers of": "layouts that are not stated: servers on as few GPUs as hold the weights",
}
"""Words of assumptions, and what these are about."""


def _not_simulated(record: Mapping[str, Any]) -> str:
    grades = list(record["not_simulated"])
    reasons: Counter[str] = Counter()
    for counts in record["not_simulated"].values():
        reasons.update(counts)
    head = [f"| reason | {' | '.join(grades)} |", "| --- |" + " --: |" * len(grades)]
    lines = [
        f"| {reason} | {' | '.join(str(record['not_simulated'][grade].get(reason, '')) for grade in grades)} |"
        for reason, _ in reasons.most_common()
    ]
    total = " | ".join(str(sum(record["not_simulated"][grade].values())) for grade in grades)
    note = "By grade; `s`: with speculative decoding.\n"
    return "\n".join([note, *head, *lines, f"| all | {total} |"]) + "\n"
