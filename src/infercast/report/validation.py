"""Forecasts against measurements, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from infercast.report.layout import grid, section
from infercast.units import MILLI, format_percent
from infercast.validate.compare import Comparison, RunComparison, Validation

QUANTITIES = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")
TITLES = ("TTFT p50", "TTFT p99", "TPOT p50", "tokens/s")
UNITS = ("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tokens/s")


def render_validation(validation: Validation) -> list[RenderableType]:
    """Tables for a terminal: the runs of each file, then medians over all."""
    parts = [_render_file(validation, name, blocks) for name, blocks in validation.kv_blocks]
    medians = grid(("runs", "count", *TITLES), [_median_row(validation, kind) for kind in (*validation.kinds, None)])
    left_out = f" ({validation.num_stalled} stalled runs left out)" if validation.num_stalled else ""
    return [*parts, section(f"Median absolute error{left_out}", medians)]


def _render_file(validation: Validation, name: str, blocks: Comparison) -> RenderableType:
    """One file: its KV blocks, and each run as measured and as forecast, with the error."""
    columns = ("run", *(column for title in UNITS for column in (title, "error")))
    rows = [_run_row(run) for run in validation.runs if run.file == name]
    counted = f"{blocks.measured:,.0f} measured, {blocks.predicted:,.0f} predicted, {_signed(blocks)}"
    heading = Text(f"KV blocks: {counted}\nRuns: measured > predicted\n")
    return section(name, Group(heading, grid(columns, rows, notes_at=(0,))))


def validation_dict(validation: Validation) -> dict[str, Any]:
    """The same as plain data; ``ape`` is a fraction."""
    return {
        "runs": [_run_dict(run) for run in validation.runs],
        "kv_blocks": [{"file": name, **_pair(pair, 1.0)} for name, pair in validation.kv_blocks],
        "summary": {
            "ttft_p50_ape_median": validation.median_ape("ttft_p50"),
            "ttft_p99_ape_median": validation.median_ape("ttft_p99"),
            "tpot_p50_ape_median": validation.median_ape("tpot_p50"),
            "throughput_ape_median": validation.median_ape("output_tokens_per_second"),
            "kv_blocks_ape_max": max((pair.ape for _, pair in validation.kv_blocks), default=None),
            "runs": len(validation.runs),
            "stalled_runs": validation.num_stalled,
        },
    }


def _run_row(run: RunComparison) -> tuple[str, ...]:
    cells = [run.label]
    for quantity in QUANTITIES:
        pair = getattr(run, quantity)
        if pair is None:
            cells += ["-", "-"]
        else:
            scale = 1.0 if quantity == "output_tokens_per_second" else MILLI
            cells.append(f"{_digits(pair.measured / scale)} > {_digits(pair.predicted / scale)}")
            cells.append(f"{100 * (pair.predicted / pair.measured - 1):+,.0f} %")
    return tuple(cells)


def _digits(value: float) -> str:
    """Three digits at least, so that columns stay narrow."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _median_row(validation: Validation, kind: str | None) -> tuple[str, ...]:
    count = sum(kind is None or run.kind == kind for run in validation.runs)
    errors = (validation.median_ape(quantity, kind) for quantity in QUANTITIES)
    return (kind or "all", f"{count}", *("-" if error is None else format_percent(error) for error in errors))


def _signed(pair: Comparison) -> str:
    """How far the prediction is off, with its sign."""
    return f"{100 * (pair.predicted / pair.measured - 1):+,.1f} %"


def _pair(pair: Comparison, scale: float) -> dict[str, float]:
    return {"measured": pair.measured / scale, "predicted": pair.predicted / scale, "ape": pair.ape}


def _run_dict(run: RunComparison) -> dict[str, Any]:
    return {
        "file": run.file,
        "kind": run.kind,
        "label": run.label,
        "ttft_p50_ms": _pair(run.ttft_p50, MILLI),
        "ttft_p99_ms": _pair(run.ttft_p99, MILLI),
        "tpot_p50_ms": _pair(run.tpot_p50, MILLI) if run.tpot_p50 else None,
        "output_tokens_per_s": _pair(run.output_tokens_per_second, 1.0),
    }
