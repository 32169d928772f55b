"""Forecasts against measurements, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from infercast.report.layout import grid, section
from infercast.report.validation.reliability import orders_dict, reliability_groups, render_orders, render_reliability
from infercast.units import MILLI, format_percent
from infercast.validate.by_load import LoadErrors
from infercast.validate.compare import RunComparison, Validation
from infercast.validate.parts import Comparison
from infercast.validate.reliability import orders_of, reliability_of

QUANTITIES = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")
TITLES = ("TTFT p50", "TTFT p99", "TPOT p50", "tokens/s")
JOULES = "joules_per_output_token"
ERRORS = ("median", "mean", "p90", "bias")
PARTS = ("idle_ttft", "decode_step", "prompts")
UNITS = ("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tokens/s")


def render_validation(validation: Validation) -> list[RenderableType]:
    """Tables for a terminal: the runs of each file, then medians over all."""
    parts = [_render_file(validation, name, blocks) for name, blocks in validation.kv_blocks]
    medians = grid(("runs", "count", *TITLES), [_median_row(validation, kind) for kind in (*validation.kinds, None)])
    left_out = f" ({validation.num_stalled} stalled runs left out)" if validation.num_stalled else ""
    return [
        *parts,
        section("Request by request: absolute error, and rank correlations", _scatter_grid(validation)),
        section("Which part is off: median error", _parts_grid(validation)),
        *_load_sections(validation),
        section(f"Median absolute error{left_out}", medians),
        *(Text(line) for line in _joule_medians(validation)),
        section(
            "Measured values inside the 80 % intervals of forecasts, and their mean half width",
            _coverage_grid(validation),
        ),
        render_reliability(reliability_of(validation.runs)),
        render_orders(orders_of(validation.runs)),
    ]


def _coverage_grid(validation: Validation) -> RenderableType:
    """How often, by kind of run, by file and in all."""
    rows = [
        *((kind, _coverage_cells(validation, kind=kind)) for kind in validation.kinds),
        *((name, _coverage_cells(validation, file=name)) for name, _ in validation.kv_blocks),
        ("all", _coverage_cells(validation)),
    ]
    return grid(("runs", *TITLES, "all"), [(name, *cells) for name, cells in rows], notes_at=(0,))


def _coverage_cells(validation: Validation, **chosen: str) -> list[str]:
    groups = [*((quantity,) for quantity in QUANTITIES), tuple(QUANTITIES)]
    both = [(validation.coverage(*each, **chosen), validation.width(*each, **chosen)) for each in groups]
    return ["-" if share is None else f"{_percent(share)}, +-{_percent(width)}" for share, width in both]


def _scatter_grid(validation: Validation) -> RenderableType:
    """Runs with arrivals over time, where single requests differ."""
    columns = ("file", "run", "TTFT median", "TTFT p90", "TPOT median", "TPOT p90", "start order", "TTFT order")
    rows = [
        (
            run.file,
            run.label,
            *map(_percent, (each.ttft_median, each.ttft_p90, each.tpot_median, each.tpot_p90)),
            *("-" if order is None else f"{order:.3f}" for order in (each.start_order, each.ttft_order)),
        )
        for run in validation.runs
        if (each := run.scatter) is not None and (run.parts is None or not run.parts.is_static)
    ]
    return grid(columns, rows, text_columns=2, notes_at=(0,))


def _parts_grid(validation: Validation) -> RenderableType:
    """What decides in each: host, kernels (and launches), the queue on top of them."""
    columns = ("file", "idle TTFT (host)", "decode step", "prompts", "TTFT under load (queue)")
    rows = [
        (each.file, *map(_signed_percent, (each.idle_ttft, each.decode_step, each.prompts, each.loaded_ttft)))
        for each in validation.file_parts()
    ]
    medians = ("all, absolute", *(_percent(validation.median_part(part)) for part in PARTS), "")
    return grid(columns, [*rows, medians], notes_at=(0,))


def _load_sections(validation: Validation) -> list[RenderableType]:
    """Errors by class of load, as forecast and at the host's speed that a lighter load shows."""
    classes = [each for each in validation.by_load() if each.num_runs]
    if not classes:
        return []
    columns = ("load", "runs", *(f"{title} {name}" for title in ("TTFT p50", "TPOT p50") for name in ERRORS))
    sections = []
    for title, count, suffix in (
        ("By load: absolute error", "num_runs", ""),
        ("By load, the host's speed taken from the lightest load of each file", "num_known", "_known"),
    ):
        rows = [
            (
                each.name,
                f"{getattr(each, count)}",
                *_error_cells(each, f"ttft_p50{suffix}"),
                *_error_cells(each, f"tpot_p50{suffix}"),
            )
            for each in classes
            if getattr(each, count)
        ]
        if rows:
            sections.append(section(title, grid(columns, rows)))
    return sections


def _error_cells(each: LoadErrors, name: str) -> list[str]:
    errors = getattr(each, name)
    if errors is None:
        return ["-"] * len(ERRORS)
    return [*(_percent(error) for error in errors[:-1]), _signed_percent(errors.bias)]


def _percent(error: float | None) -> str:
    return "-" if error is None else format_percent(error)


def _signed_percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+,.1f} %"


def _render_file(validation: Validation, name: str, blocks: Comparison | None) -> RenderableType:
    """One file: its KV blocks, and each run as measured and as forecast, with the error."""
    columns = ("run", *(column for title in UNITS for column in (title, "error")))
    rows = [_run_row(run) for run in validation.runs if run.file == name]
    counted = "as the engine was told"
    if blocks is not None:
        counted = f"{blocks.measured:,.0f} measured, {blocks.predicted:,.0f} predicted, {_signed(blocks)}"
    hits = [line for run in validation.runs if run.file == name for line in _hit_lines(run)]
    hits += [line for run in validation.runs if run.file == name for line in _joule_lines(run)]
    heading = Text("\n".join([f"KV blocks: {counted}", *hits, "Runs: measured > predicted", ""]))
    return section(name, Group(heading, grid(columns, rows, notes_at=(0,))))


def _hit_lines(run: RunComparison) -> list[str]:
    """Tokens that were found, of runs whose files have them."""
    pairs = (("cached", run.cached_tokens), ("from host memory", run.loaded_tokens))
    return [
        f"Tokens {what}, {run.label}: {pair.measured:,.0f} measured, {pair.predicted:,.0f} predicted, {_signed(pair)}"
        for what, pair in pairs
        if pair is not None
    ]


def _joule_lines(run: RunComparison) -> list[str]:
    """Joules of an output token, of runs whose files have them."""
    pair = run.joules_per_output_token
    if pair is None:
        return []
    joules = f"{pair.measured:.3g} measured, {pair.predicted:.3g} predicted"
    return [f"Joules per output token, {run.label}: {joules}, {_signed(pair)}"]


def _joule_medians(validation: Validation) -> list[str]:
    """How far joules are off over all runs that tell them."""
    error, inside = validation.median_ape(JOULES), validation.coverage(JOULES)
    if error is None:
        return []
    return [f"Joules per output token: {_percent(error)} in the median, {_percent(inside)} inside the 80 % intervals"]


def validation_dict(validation: Validation) -> dict[str, Any]:
    """The same as plain data; errors are fractions."""
    files, promises = validation.file_parts(), reliability_of(validation.runs)
    idle = [abs(each.idle_ttft) for each in files if each.idle_ttft is not None]
    return {
        "runs": [_run_dict(run) for run in validation.runs],
        "kv_blocks": [{"file": name, **_pair(pair, 1.0)} for name, pair in validation.kv_blocks if pair],
        "files": [
            {
                "file": each.file,
                "idle_ttft_error": each.idle_ttft,
                "decode_step_error": each.decode_step,
                "prompts_error": each.prompts,
                "loaded_ttft_p50_error": each.loaded_ttft,
            }
            for each in files
        ],
        "by_load": [asdict(each) for each in validation.by_load() if each.num_runs],
        "reliability": reliability_groups(promises),
        "rank_correlation": orders_dict(orders_of(validation.runs)),
        "summary": {
            "ttft_p50_ape_median": validation.median_ape("ttft_p50"),
            "ttft_p99_ape_median": validation.median_ape("ttft_p99"),
            "tpot_p50_ape_median": validation.median_ape("tpot_p50"),
            "throughput_ape_median": validation.median_ape("output_tokens_per_second"),
            "idle_ttft_ape_max": max(idle, default=None),
            "loaded_ttft_p50_ape_median": validation.median_loaded("ttft_p50"),
            "loaded_ttft_p99_ape_median": validation.median_loaded("ttft_p99"),
            "decode_step_ape_median": validation.median_part("decode_step"),
            "prompts_ape_median": validation.median_part("prompts"),
            "joules_per_output_token_ape_median": validation.median_ape(JOULES),
            "joules_per_output_token_interval_coverage": validation.coverage(JOULES),
            "kv_blocks_ape_max": max((pair.ape for _, pair in validation.kv_blocks if pair), default=None),
            "interval_coverage": validation.coverage(*QUANTITIES),
            "interval_half_width_mean": validation.width(*QUANTITIES),
            **{f"{quantity}_interval_coverage": validation.coverage(quantity) for quantity in QUANTITIES},
            **{f"{quantity}_interval_half_width_mean": validation.width(quantity) for quantity in QUANTITIES},
            "reliability_worst": promises[0].worst,
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


def _pair(pair: Comparison, scale: float) -> dict[str, Any]:
    plain = {"measured": pair.measured / scale, "predicted": pair.predicted / scale, "ape": pair.ape}
    if pair.interval is None:
        return plain
    return {**plain, "interval": [end / scale for end in pair.interval], "is_inside": pair.is_inside}


def _run_dict(run: RunComparison) -> dict[str, Any]:
    return {
        "file": run.file,
        "kind": run.kind,
        "label": run.label,
        "ttft_p50_ms": _pair(run.ttft_p50, MILLI),
        "ttft_p99_ms": _pair(run.ttft_p99, MILLI),
        "tpot_p50_ms": _pair(run.tpot_p50, MILLI) if run.tpot_p50 else None,
        "output_tokens_per_s": _pair(run.output_tokens_per_second, 1.0),
        "requests": asdict(run.scatter) if run.scatter else None,
        "idle_ttft_ms": _part(run, "idle_ttft"),
        "prompts_ms": _part(run, "prompts"),
        "decode_step_ms": _part(run, "decode_step"),
        "cached_tokens": _pair(run.cached_tokens, 1.0) if run.cached_tokens else None,
        "loaded_tokens": _pair(run.loaded_tokens, 1.0) if run.loaded_tokens else None,
        JOULES: _pair(run.joules_per_output_token, 1.0) if run.joules_per_output_token else None,
    }


def _part(run: RunComparison, name: str) -> dict[str, Any] | None:
    pair = getattr(run.parts, name, None)
    return _pair(pair, MILLI) if pair else None
