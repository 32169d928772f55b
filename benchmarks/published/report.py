"""Forecasts compared with published runs, as tables and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from infercast.forecast.intervals import LEVEL
from infercast.lab.validate.compare import Comparison
from infercast.report.accuracy import pair_dict
from infercast.report.terminal import Grid, Printable, Section, pick, styled
from infercast.units import MILLI, format_percent
from published.compare import PublishedComparison, summarise
from published.promises import Reliability, promises_in, reliability_dict, reliability_in, render_reliability
from published.run import PublishedRun

GROUPS: dict[str, Callable[[PublishedRun], str]] = {
    "GPU": lambda run: run.gpu,
    "model": lambda run: run.model.rpartition("/")[2],
    "layout": lambda run: run.layout,
    "source": lambda run: run.source,
}
TIMES = ("ttft", "tpot")
LATENCIES = (*TIMES, "end_to_end")
PUBLISHED_PAIRS = {
    "ttft_ms": ("ttft", MILLI), "tpot_ms": ("tpot", MILLI), "end_to_end_ms": ("end_to_end", MILLI),
    "output_tokens_per_s": ("output_tokens_per_second", 1.0),
}  # fmt: skip


def promised(compared: Sequence[PublishedComparison]) -> Reliability:
    """How often promises about runs held of which means are known."""
    return reliability_in(promises_in(compared, LATENCIES), "all")


def render_published(compared: Sequence[PublishedComparison]) -> list[Printable]:
    columns = ("run", "GPU", "model", "layout", "load", "TTFT ms", "error", "80 %", "TPOT ms", "error", "80 %")
    rows = [_published_row(each) for each in compared if not each.problem]
    parts: list[Printable] = [
        Section(
            "Runs: mean measured > mean predicted, and its 80 % interval",
            Grid(columns, rows, text_columns=5, notes_at=(0, 2)),
        )
    ]
    refused = [f"{each.run.run_id}: {each.problem}" for each in compared if each.problem]
    if refused:
        parts.append(Section("Not simulated", styled("\n".join(refused))))
    assumed = Counter(text for each in compared if not each.problem for text in each.run.assumptions)
    if assumed:
        lines = "\n".join(f"{text} ({count:,})" for text, count in assumed.most_common())
        parts.append(Section("Assumed, and in how many runs", styled(lines)))
    parts += [Section(f"Absolute error by {name}", _group_grid(name, compared)) for name in GROUPS]
    return [*parts, render_reliability([promised(compared)])]


def published_dict(compared: Sequence[PublishedComparison]) -> dict[str, Any]:
    return {
        "runs": [_published_dict(each) for each in compared],
        **{
            f"by_{name.lower()}": [
                {name.lower(): value, **_summaries(members)} for value, members in _groups(name, compared).items()
            ]
            for name in GROUPS
        },
        "interval_level": LEVEL,
        "reliability": reliability_dict(promised(compared)),
        "summary": {**_summaries(compared), "runs": len(compared)},
    }


def _groups(name: str, compared: Sequence[PublishedComparison]) -> dict[str, list[PublishedComparison]]:
    groups: dict[str, list[PublishedComparison]] = {}
    for each in compared:
        groups.setdefault(GROUPS[name](each.run), []).append(each)
    return groups


def _group_grid(name: str, compared: Sequence[PublishedComparison]) -> Printable:
    of_each = ("mean", "p90", "bias", "in 80 %", "half width")
    columns = (name, "runs", "TTFT median", *of_each, "TPOT median", *of_each)
    rows = [(value, *_group_cells(members)) for value, members in _groups(name, compared).items()]
    return Grid(columns, [*rows, ("all", *_group_cells(compared))])


def _group_cells(members: Sequence[PublishedComparison]) -> tuple[str, ...]:
    cells = [f"{len(members)}"]
    for quantity in TIMES:
        summary = summarise(members, quantity)
        if summary is None:
            cells += ["-"] * 6
        else:
            cells += [format_percent(value) for value in (summary.median, summary.mean, summary.p90)]
            cells += [f"{100 * summary.bias:+.1f} %", f"{100 * summary.inside:.0f} %", f"{100 * summary.width:.0f} %"]
    return tuple(cells)


def _published_row(each: PublishedComparison) -> tuple[str, ...]:
    run, workload = each.run, each.run.workload
    mean_input = sum(request.num_input for request in workload.requests) / len(workload.requests)
    clients = f"{workload.concurrency} clients" if workload.concurrency else f"{len(workload.requests):,} requests"
    cells = [run.run_id.rpartition("#")[2], run.gpu, GROUPS["model"](run), run.layout, f"{clients} x {mean_input:,.0f}"]
    for quantity in TIMES:
        cells += _pair_cells(getattr(each, quantity))
    return tuple(cells)


def _pair_cells(pair: Comparison | None) -> list[str]:
    if pair is None or pair.interval is None:
        return ["-", "-", "-"]
    digits = 0 if pair.measured >= 100 * MILLI else 1 if pair.measured >= 10 * MILLI else 2
    measured, predicted, low, high = (
        f"{seconds / MILLI:,.{digits}f}" for seconds in (pair.measured, pair.predicted, *pair.interval)
    )
    return [f"{measured} > {predicted}", f"{100 * pair.error:+,.0f} %", f"{low} to {high}"]


def _summaries(members: Sequence[PublishedComparison]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for quantity in LATENCIES:
        summary = summarise(members, quantity)
        found[quantity] = None
        if summary is not None:
            coverage = {"interval_coverage": "inside", "interval_half_width_mean": "width"}
            found[quantity] = pick(summary, "count median mean p90 bias", **coverage)
    return found


def _published_dict(each: PublishedComparison) -> dict[str, Any]:
    pairs = {key: (getattr(each, name), scale) for key, (name, scale) in PUBLISHED_PAIRS.items()}
    return {
        **pick(each.run, "run_id source gpu model layout"),
        **{
            key: None if pair is None or pair.interval is None else pair_dict(pair, scale, "error")
            for key, (pair, scale) in pairs.items()
        },
        "assumptions": list(each.run.assumptions),
        "problem": each.problem or None,
    }
