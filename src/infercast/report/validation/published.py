"""Forecasts against published runs, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infercast.forecast.intervals.intervals import LEVEL
from infercast.report.layout import grid, section, styled
from infercast.report.validation.reliability import reliability_dict, render_reliability
from infercast.units import MILLI, format_percent
from infercast.validate.parts import Comparison
from infercast.validate.published.compare import PublishedComparison, Summary, summarise
from infercast.validate.published.run import PublishedRun
from infercast.validate.reliability import reliability_of_published

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS: dict[str, Callable[[PublishedRun], str]] = {
    "GPU": lambda run: run.gpu,
    "model": lambda run: run.model.rpartition("/")[2],
    "layout": lambda run: run.layout,
    "source": lambda run: run.source,
}
TIMES = ("ttft", "tpot")


def render_published(compared: Sequence[PublishedComparison]) -> list[RenderableType]:
    """Tables for a terminal: every run, then medians by GPU, model, layout and source."""
    columns = ("run", "GPU", "model", "layout", "load", "TTFT ms", "error", "80 %", "TPOT ms", "error", "80 %")
    rows = [_run_row(each) for each in compared if not each.problem]
    parts: list[RenderableType] = [
        section(
            "Runs: mean measured > mean predicted, and its 80 % interval",
            grid(columns, rows, text_columns=5, notes_at=(0, 2)),
        )
    ]
    refused = [f"{each.run.run_id}: {each.problem}" for each in compared if each.problem]
    if refused:
        parts.append(section("Not simulated", styled("\n".join(refused))))
    assumed = Counter(text for each in compared if not each.problem for text in each.run.assumptions)
    if assumed:
        lines = "\n".join(f"{text} ({count:,})" for text, count in assumed.most_common())
        parts.append(section("Assumed, and in how many runs", styled(lines)))
    parts += [section(f"Absolute error by {name}", _group_grid(name, compared)) for name in GROUPS]
    return [*parts, render_reliability([reliability_of_published(compared)])]


def published_dict(compared: Sequence[PublishedComparison]) -> dict[str, Any]:
    """The same as plain data; errors are fractions."""
    return {
        "runs": [_run_dict(each) for each in compared],
        **{
            f"by_{name.lower()}": [
                {name.lower(): value, **_summaries(members)} for value, members in _groups(name, compared).items()
            ]
            for name in GROUPS
        },
        "interval_level": LEVEL,
        "reliability": reliability_dict(reliability_of_published(compared)),
        "summary": {**_summaries(compared), "runs": len(compared)},
    }


def _groups(name: str, compared: Sequence[PublishedComparison]) -> dict[str, list[PublishedComparison]]:
    """Runs by one of their features, in order of appearance."""
    groups: dict[str, list[PublishedComparison]] = {}
    for each in compared:
        groups.setdefault(GROUPS[name](each.run), []).append(each)
    return groups


def _group_grid(name: str, compared: Sequence[PublishedComparison]) -> RenderableType:
    of_each = ("mean", "p90", "bias", "in 80 %", "half width")
    columns = (name, "runs", "TTFT median", *of_each, "TPOT median", *of_each)
    rows = [(value, *_group_cells(members)) for value, members in _groups(name, compared).items()]
    return grid(columns, [*rows, ("all", *_group_cells(compared))])


def _group_cells(members: Sequence[PublishedComparison]) -> tuple[str, ...]:
    cells = [f"{len(members)}"]
    for quantity in TIMES:
        summary = summarise(members, quantity)
        cells += ["-"] * 6 if summary is None else _cells(summary)
    return tuple(cells)


def _cells(summary: Summary) -> list[str]:
    sizes = [format_percent(value) for value in (summary.median, summary.mean, summary.p90)]
    return [*sizes, f"{100 * summary.bias:+.1f} %", f"{100 * summary.inside:.0f} %", f"{100 * summary.width:.0f} %"]


def _run_row(each: PublishedComparison) -> tuple[str, ...]:
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
    for quantity in (*TIMES, "end_to_end"):
        summary = summarise(members, quantity)
        found[quantity] = None
        if summary is not None:
            names = ("count", "median", "mean", "p90", "bias")
            coverage = {"interval_coverage": summary.inside, "interval_half_width_mean": summary.width}
            found[quantity] = {**{name: getattr(summary, name) for name in names}, **coverage}
    return found


def _run_dict(each: PublishedComparison) -> dict[str, Any]:
    run = each.run
    return {
        "run_id": run.run_id,
        "source": run.source,
        "gpu": run.gpu,
        "model": run.model,
        "layout": run.layout,
        "ttft_ms": _pair_dict(each.ttft, MILLI),
        "tpot_ms": _pair_dict(each.tpot, MILLI),
        "end_to_end_ms": _pair_dict(each.end_to_end, MILLI),
        "output_tokens_per_s": _pair_dict(each.output_tokens_per_second, 1.0),
        "assumptions": list(run.assumptions),
        "problem": each.problem or None,
    }


def _pair_dict(pair: Comparison | None, scale: float) -> dict[str, Any] | None:
    if pair is None or pair.interval is None:
        return None
    return {
        "measured": pair.measured / scale,
        "predicted": pair.predicted / scale,
        "error": pair.error,
        "interval": [end / scale for end in pair.interval],
        "is_inside": pair.is_inside,
    }
