"""Forecasts compared with measured runs: errors and interval coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from infercast.lab.validate.compare import Comparison, FileParts, LoadErrors, RunComparison, Validation
from infercast.report.terminal import Field, Grid, Group, Paragraph, Printable, Section, at, cells, pick, record, styled
from infercast.units import MILLI, format_percent

QUANTITIES = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")
TITLES = ("TTFT p50", "TTFT p99", "TPOT p50", "tokens/s")
UNITS = ("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tokens/s")
JOULES = "joules_per_output_token"
ERRORS = ("median", "mean", "p90", "bias")
PARTS = ("idle_ttft", "decode_step", "prompts")
SCATTER_FIELDS: tuple[Field[RunComparison], ...] = (
    Field("", lambda run: run.file, "file"),
    Field("", lambda run: run.label, "run"),
    Field("", lambda run: run.scatter.ttft_median if run.scatter else None, "TTFT median", format_percent),
    Field("", lambda run: run.scatter.ttft_p90 if run.scatter else None, "TTFT p90", format_percent),
    Field("", lambda run: run.scatter.tpot_median if run.scatter else None, "TPOT median", format_percent),
    Field("", lambda run: run.scatter.tpot_p90 if run.scatter else None, "TPOT p90", format_percent),
    Field("", lambda run: run.scatter.start_order if run.scatter else None, "start order", "{:.3f}".format),
    Field("", lambda run: run.scatter.ttft_order if run.scatter else None, "TTFT order", "{:.3f}".format),
)
COUNTED = (
    ("Tokens cached", "cached_tokens", ",.0f"), ("Tokens from host memory", "loaded_tokens", ",.0f"),
    ("Joules per output token", JOULES, ".3g"),
)  # fmt: skip


def _percent(error: float | None) -> str:
    return "-" if error is None else format_percent(error)


def signed_percent(error: float) -> str:
    return f"{100 * error:+,.1f} %"


FILE_FIELDS: tuple[Field[FileParts], ...] = (
    Field("file", lambda found: found.file, "file"),
    Field("idle_ttft_error", lambda found: found.idle_ttft, "idle TTFT (host)", signed_percent),
    Field("decode_step_error", lambda found: found.decode_step, "decode step", signed_percent),
    Field("prompts_error", lambda found: found.prompts, "prompts", signed_percent),
    Field("loaded_ttft_p50_error", lambda found: found.loaded_ttft, "TTFT under load (queue)", signed_percent),
)


def render_validation(validation: Validation) -> list[Printable]:
    parts = [_render_file(validation, name, blocks) for name, blocks in validation.kv_blocks]
    # Of runs with arrivals over time, where single requests differ.
    scattered = [run for run in validation.runs if run.scatter and not (run.parts and run.parts.is_static)]
    # What decides in each: host, kernels (and launches), the queue on top of them.
    columns, rows = cells(FILE_FIELDS, validation.file_parts())
    medians = ["all, absolute", *(_percent(validation.median_part(part)) for part in PARTS), ""]
    return [
        *parts,
        Section(
            "Request by request: absolute error, and rank correlations",
            Grid(*cells(SCATTER_FIELDS, scattered), text_columns=2, notes_at=(0,)),
        ),
        Section("Which part is off: median error", Grid(columns, [*rows, medians], notes_at=(0,))),
        *_load_sections(validation),
        *render_totals(validation),
    ]


def render_totals(validation: Validation) -> list[Printable]:
    medians = Grid(("runs", "count", *TITLES), [_median_row(validation, kind) for kind in (*validation.kinds, None)])
    error, inside = validation.median_ape(JOULES), validation.coverage(JOULES)
    joules = f"Joules per output token: {_percent(error)} in the median, {_percent(inside)} inside the 80 % intervals"
    left_out = f" ({validation.num_stalled} stalled runs left out)" if validation.num_stalled else ""
    left_out += "" if validation.hosts else "; host times as bundled, no probe was found"
    covered = [
        *((kind, _coverage_cells(validation, kind=kind)) for kind in validation.kinds),
        *((name, _coverage_cells(validation, file=name)) for name, _ in validation.kv_blocks),
        ("all", _coverage_cells(validation)),
    ]
    totals: list[Printable] = [Section(f"Median absolute error{left_out}", medians)]
    totals += [] if error is None else [styled(joules)]
    totals += [Paragraph(_hosts_said(validation))] if validation.hosts else []
    if validation.coverage(*QUANTITIES) is None:  # a part was turned off
        return totals
    rows = [(name, *cells) for name, cells in covered]
    title = "Measured values inside the 80 % intervals of forecasts, and their mean half width"
    return [*totals, Section(title, Grid(("runs", *TITLES, "all"), rows, notes_at=(0,)))]


def _hosts_said(validation: Validation) -> str:
    """Whose host times these are, where not the bundled ones."""
    told, bundled = dict.fromkeys(validation.hosts.values()), len(validation.kv_blocks) - len(validation.hosts)
    said = f"Host times: {next(iter(told)) if len(told) == 1 else f'by probes of {len(validation.hosts)} files'}"
    return f"{said}; as bundled where files have no probe, {bundled}" if bundled else said


def _coverage_cells(validation: Validation, **chosen: str) -> list[str]:
    groups = [*((quantity,) for quantity in QUANTITIES), tuple(QUANTITIES)]
    both = [(validation.coverage(*each, **chosen), validation.width(*each, **chosen)) for each in groups]
    return ["-" if share is None else f"{_percent(share)}, +-{_percent(width)}" for share, width in both]


def _load_sections(validation: Validation) -> list[Printable]:
    classes = [each for each in validation.by_load() if each.num_runs]
    if not classes:
        return []
    columns = ("load", "runs", *(f"{title} {name}" for title in ("TTFT p50", "TPOT p50") for name in ERRORS))
    rows = [
        (each.name, f"{each.num_runs}", *_error_cells(each, "ttft_p50"), *_error_cells(each, "tpot_p50"))
        for each in classes
    ]
    return [Section("By load: absolute error", Grid(columns, rows))]


def _error_cells(each: LoadErrors, name: str) -> list[str]:
    errors = getattr(each, name)
    if errors is None:
        return ["-"] * len(ERRORS)
    return [*(_percent(error) for error in errors[:-1]), signed_percent(errors.bias)]


def _render_file(validation: Validation, name: str, blocks: Comparison | None) -> Printable:
    columns = ("run", *(column for title in UNITS for column in (title, "error")))
    runs = [run for run in validation.runs if run.file == name]
    counted = "as configured"
    if blocks is not None:
        counted = f"{blocks.measured:,.0f} measured, {blocks.predicted:,.0f} predicted, {signed_percent(blocks.error)}"
    lines = [f"Host: {validation.hosts[name]}"] if name in validation.hosts else []
    lines += [f"KV blocks: {counted}", *_counted_lines(runs), "Runs: measured > predicted", ""]
    return Section(name, Group(styled("\n".join(lines)), Grid(columns, map(_run_row, runs), notes_at=(0,))))


def _counted_lines(runs: Sequence[RunComparison]) -> list[str]:
    return [
        f"{what}, {run.label}: {pair.measured:{form}} measured, {pair.predicted:{form}} predicted, "
        f"{signed_percent(pair.error)}"
        for what, name, form in COUNTED
        for run in runs
        if (pair := getattr(run, name)) is not None
    ]


def validation_dict(validation: Validation) -> dict[str, Any]:
    files = validation.file_parts()
    idle = [abs(each.idle_ttft) for each in files if each.idle_ttft is not None]
    return {
        "runs": [
            {
                **pick(run, "file kind label"), "requests": asdict(run.scatter) if run.scatter else None,
                **{key: pair_dict(at(path)(run), scale) for key, (path, scale) in RUN_PAIRS.items()},
            }
            for run in validation.runs
        ],
        "kv_blocks": [{"file": name, **(pair_dict(pair) or {})} for name, pair in validation.kv_blocks if pair],
        "files": [record(FILE_FIELDS, each) | {"host": validation.hosts.get(each.file)} for each in files],
        "by_load": [asdict(each) for each in validation.by_load() if each.num_runs],
        "summary": {
            **{f"{quantity}_ape_median": validation.median_ape(quantity) for quantity in (*QUANTITIES[:3], JOULES)},
            "throughput_ape_median": validation.median_ape("output_tokens_per_second"),
            "idle_ttft_ape_max": max(idle, default=None),
            "loaded_ttft_p50_ape_median": validation.median_loaded("ttft_p50"),
            "loaded_ttft_p99_ape_median": validation.median_loaded("ttft_p99"),
            **{f"{part}_ape_median": validation.median_part(part) for part in PARTS[1:]},
            "joules_per_output_token_interval_coverage": validation.coverage(JOULES),
            "kv_blocks_ape_max": max((pair.ape for _, pair in validation.kv_blocks if pair), default=None),
            "interval_coverage": validation.coverage(*QUANTITIES),
            "interval_half_width_mean": validation.width(*QUANTITIES),
            **{f"{quantity}_interval_coverage": validation.coverage(quantity) for quantity in QUANTITIES},
            **{f"{quantity}_interval_half_width_mean": validation.width(quantity) for quantity in QUANTITIES},
            "runs": len(validation.runs), "stalled_runs": validation.num_stalled,
        },
    }  # fmt: skip


def _run_row(run: RunComparison) -> tuple[str, ...]:
    cells = [run.label]
    for quantity in QUANTITIES:
        pair = getattr(run, quantity)
        if pair is None:
            cells += ["-", "-"]
        else:
            scale = 1.0 if quantity == "output_tokens_per_second" else MILLI
            both = [value / scale for value in (pair.measured, pair.predicted)]
            # Three digits at least, so that columns stay narrow.
            cells.append(" > ".join(f"{each:,.{0 if each >= 100 else 1 if each >= 10 else 2}f}" for each in both))
            cells.append(f"{100 * pair.error:+,.0f} %")
    return tuple(cells)


def _median_row(validation: Validation, kind: str | None) -> tuple[str, ...]:
    count = sum(kind is None or run.kind == kind for run in validation.runs)
    errors = (validation.median_ape(quantity, kind) for quantity in QUANTITIES)
    return (kind or "all", f"{count}", *map(_percent, errors))


def pair_dict(pair: Comparison | None, scale: float = 1.0, error: str = "ape") -> dict[str, Any] | None:
    if pair is None:
        return None
    plain = {"measured": pair.measured / scale, "predicted": pair.predicted / scale, error: getattr(pair, error)}
    if pair.interval is None:
        return plain
    return {**plain, "interval": [end / scale for end in pair.interval], "is_inside": pair.is_inside}


RUN_PAIRS = {
    "ttft_p50_ms": ("ttft_p50", MILLI), "ttft_p99_ms": ("ttft_p99", MILLI), "tpot_p50_ms": ("tpot_p50", MILLI),
    "output_tokens_per_s": ("output_tokens_per_second", 1.0), "idle_ttft_ms": ("parts.idle_ttft", MILLI),
    "prompts_ms": ("parts.prompts", MILLI), "decode_step_ms": ("parts.decode_step", MILLI),
    "cached_tokens": ("cached_tokens", 1.0), "loaded_tokens": ("loaded_tokens", 1.0), JOULES: (JOULES, 1.0),
}  # fmt: skip
