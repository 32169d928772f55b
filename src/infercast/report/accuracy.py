"""Forecasts compared with measured runs: errors, interval coverage and SLO reliability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from math import sqrt
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from infercast.lab.validate import reliability
from infercast.lab.validate.compare import Comparison, FileParts, LoadErrors, RunComparison, Validation
from infercast.report.terminal import Field, Grid, Section, at, cells, pick, record
from infercast.units import MILLI, format_percent

QUANTITIES = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")
TITLES = ("TTFT p50", "TTFT p99", "TPOT p50", "tokens/s")
UNITS = ("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tokens/s")
JOULES = "joules_per_output_token"
ERRORS = ("median", "mean", "p90", "bias")
PARTS = ("idle_ttft", "decode_step", "prompts")
ORDER_FIELDS: tuple[Field[reliability.Order], ...] = (
    Field("", lambda order: order.quantity, "ranked by", dict(zip(QUANTITIES, TITLES, strict=True)).__getitem__),
    Field("of_one_load", lambda order: order.of_one_load, "engines with one load", "{:.3f}".format),
    Field("loads", lambda order: order.loads, "loads"),
    Field("of_all", lambda order: order.of_all, "all runs", "{:.3f}".format),
)
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
PANEL, MARGIN, TOP, BOTTOM = 220, 52, 34, 48  # pixels: the side of a panel, the space to its left, above and below
TOLERANCE = 0.1  # the grey band: ten points to either side
STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}.exact{stroke:#888}"
    ".band{fill:#eee}.line{fill:none;stroke:#1f6fb4;stroke-width:1.5}.point{fill:#1f6fb4;fill-opacity:.8}"
)
COUNTED = (
    ("Tokens cached", "cached_tokens", ",.0f"), ("Tokens from host memory", "loaded_tokens", ",.0f"),
    ("Joules per output token", JOULES, ".3g"),
)  # fmt: skip


def render_reliability(groups: Sequence[reliability.Reliability]) -> RenderableType:
    columns = ["odds", *(name for group in groups for name in (group.about, "said", "held"))]
    rows = []
    for position, bucket in enumerate(groups[0].buckets):
        cells = []
        for each in (group.buckets[position] for group in groups):
            cells += [f"{each.count:,}", _percent(each.odds), _percent(each.held)]
        rows.append((f"{100 * bucket.low:.0f} to {100 * bucket.high:.0f} %", *cells))
    worst = ("furthest off", *(cell for group in groups for cell in ("", "", _percent(group.worst))))
    return Section("Promises: how often they held, by the odds that were said", Grid(columns, [*rows, worst]))


def reliability_dict(group: reliability.Reliability) -> dict[str, Any]:
    buckets = [{**asdict(bucket), "off": bucket.off} for bucket in group.buckets]
    return {"values": group.values, "worst": group.worst, "buckets": buckets}


def reliability_svg(groups: Sequence[reliability.Reliability]) -> str:
    """A panel for each group of promises: what was said to the right, what came true upwards."""
    width, height = len(groups) * (PANEL + MARGIN) + 20, TOP + PANEL + BOTTOM
    panels = "\n".join(_panel(group, MARGIN + number * (PANEL + MARGIN)) for number, group in enumerate(groups))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="Share of promises that held, by the odds that were said">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{panels}\n</svg>\n'
    )


def _panel(group: reliability.Reliability, left: float) -> str:
    def point(said: float, held: float) -> str:
        return f"{left + PANEL * said:.1f},{TOP + PANEL * (1 - held):.1f}"

    worst = "" if group.worst is None else f": at most {100 * group.worst:.1f} points off"
    band = [(0.0, 0.0), (0.0, TOLERANCE), (1 - TOLERANCE, 1.0), (1.0, 1.0), (1.0, 1 - TOLERANCE), (TOLERANCE, 0.0)]
    known = [bucket for bucket in group.buckets if bucket.off is not None]
    places = [(bucket, point(bucket.odds or 0.0, bucket.held or 0.0)) for bucket in known]
    most = max((bucket.count for bucket in known), default=1)
    marks = [
        f'<circle class="point" cx="{(place := text.split(","))[0]}" cy="{place[1]}" '
        f'r="{3 + 5 * sqrt(bucket.count / most):.1f}"><title>{bucket.count:,} promises: said '
        f"{100 * (bucket.odds or 0.0):.1f} %, held {100 * (bucket.held or 0.0):.1f} %</title></circle>"
        for bucket, text in places
    ]
    return "\n".join(
        [
            f'<text class="title" x="{left}" y="20">{escape(group.about + worst)}</text>',
            f'<polygon class="band" points="{" ".join(point(*corner) for corner in band)}"/>',
            *_axes(left),
            f'<polyline class="exact" points="{point(0, 0)} {point(1, 1)}"/>',
            f'<polyline class="line" points="{" ".join(text for _, text in places)}"/>',
            *marks,
            f'<text x="{left}" y="{TOP + PANEL + 38}">'
            f"odds that were said (buckets of {reliability.FEWEST} or more)</text>",
        ]
    )


def _axes(left: float) -> list[str]:
    found = []
    for number in range(0, 101, 20):
        across, down = left + PANEL * number / 100, TOP + PANEL * (1 - number / 100)
        found += [
            f'<path class="grid" d="M{across:.1f} {TOP}V{TOP + PANEL}M{left} {down:.1f}H{left + PANEL}"/>',
            f'<text x="{across:.1f}" y="{TOP + PANEL + 18}" text-anchor="middle">{number}</text>',
            f'<text x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{number} %</text>',
        ]
    return found


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


def render_validation(validation: Validation) -> list[RenderableType]:
    parts = [_render_file(validation, name, blocks) for name, blocks in validation.kv_blocks]
    # Of runs with arrivals over time, where single requests differ.
    scattered = [run for run in validation.runs if run.scatter and not (run.parts and run.parts.is_static)]
    return [
        *parts,
        Section(
            "Request by request: absolute error, and rank correlations",
            Grid(*cells(SCATTER_FIELDS, scattered), text_columns=2, notes_at=(0,)),
        ),
        Section("Which part is off: median error", _parts_grid(validation)),
        *_load_sections(validation),
        *render_totals(validation),
        render_reliability(reliability.reliability_of(validation.runs)),
        Section(
            "Order of configurations: rank correlation of measured and predicted",
            Grid(*cells(ORDER_FIELDS, reliability.orders_of(validation.runs))),
        ),
    ]


def render_totals(validation: Validation) -> list[RenderableType]:
    """Errors and coverage of all runs together, which come first on a screen."""
    medians = Grid(("runs", "count", *TITLES), [_median_row(validation, kind) for kind in (*validation.kinds, None)])
    error, inside = validation.median_ape(JOULES), validation.coverage(JOULES)
    joules = f"Joules per output token: {_percent(error)} in the median, {_percent(inside)} inside the 80 % intervals"
    left_out = f" ({validation.num_stalled} stalled runs left out)" if validation.num_stalled else ""
    covered = [
        *((kind, _coverage_cells(validation, kind=kind)) for kind in validation.kinds),
        *((name, _coverage_cells(validation, file=name)) for name, _ in validation.kv_blocks),
        ("all", _coverage_cells(validation)),
    ]
    return [
        Section(f"Median absolute error{left_out}", medians),
        *([] if error is None else [Text(joules)]),
        Section(
            "Measured values inside the 80 % intervals of forecasts, and their mean half width",
            Grid(("runs", *TITLES, "all"), [(name, *cells) for name, cells in covered], notes_at=(0,)),
        ),
    ]


def _coverage_cells(validation: Validation, **chosen: str) -> list[str]:
    groups = [*((quantity,) for quantity in QUANTITIES), tuple(QUANTITIES)]
    both = [(validation.coverage(*each, **chosen), validation.width(*each, **chosen)) for each in groups]
    return ["-" if share is None else f"{_percent(share)}, +-{_percent(width)}" for share, width in both]


def _parts_grid(validation: Validation) -> RenderableType:
    """What decides in each: host, kernels (and launches), the queue on top of them."""
    columns, rows = cells(FILE_FIELDS, validation.file_parts())
    medians = ["all, absolute", *(_percent(validation.median_part(part)) for part in PARTS), ""]
    return Grid(columns, [*rows, medians], notes_at=(0,))


def _load_sections(validation: Validation) -> list[RenderableType]:
    """Errors by class of load, as forecast and at the host's speed that a lighter load shows."""
    classes = [each for each in validation.by_load() if each.num_runs]
    if not classes:
        return []
    columns = ("load", "runs", *(f"{title} {name}" for title in ("TTFT p50", "TPOT p50") for name in ERRORS))
    sections: list[RenderableType] = []
    for title, count, suffix in (
        ("By load: absolute error", "num_runs", ""),
        ("By load, the host's speed taken from the lightest load of each file", "num_known", "_known"),
    ):
        names = (f"ttft_p50{suffix}", f"tpot_p50{suffix}")
        rows = [
            (each.name, f"{getattr(each, count)}", *(cell for name in names for cell in _error_cells(each, name)))
            for each in classes
            if getattr(each, count)
        ]
        if rows:
            sections.append(Section(title, Grid(columns, rows)))
    return sections


def _error_cells(each: LoadErrors, name: str) -> list[str]:
    errors = getattr(each, name)
    if errors is None:
        return ["-"] * len(ERRORS)
    return [*(_percent(error) for error in errors[:-1]), signed_percent(errors.bias)]


def _render_file(validation: Validation, name: str, blocks: Comparison | None) -> RenderableType:
    columns = ("run", *(column for title in UNITS for column in (title, "error")))
    runs = [run for run in validation.runs if run.file == name]
    counted = "as configured"
    if blocks is not None:
        counted = f"{blocks.measured:,.0f} measured, {blocks.predicted:,.0f} predicted, {signed_percent(blocks.error)}"
    lines = [f"Host: {validation.hosts[name]}"] if name in validation.hosts else []
    lines += [f"KV blocks: {counted}", *_counted_lines(runs), "Runs: measured > predicted", ""]
    return Section(name, Group(Text("\n".join(lines)), Grid(columns, map(_run_row, runs), notes_at=(0,))))


def _counted_lines(runs: Sequence[RunComparison]) -> list[str]:
    return [
        f"{what}, {run.label}: {pair.measured:{form}} measured, {pair.predicted:{form}} predicted, "
        f"{signed_percent(pair.error)}"
        for what, name, form in COUNTED
        for run in runs
        if (pair := getattr(run, name)) is not None
    ]


def validation_dict(validation: Validation) -> dict[str, Any]:
    files, promises = validation.file_parts(), reliability.reliability_of(validation.runs)
    idle = [abs(each.idle_ttft) for each in files if each.idle_ttft is not None]
    return {
        "runs": [
            {
                **pick(run, "file kind label"),
                "requests": asdict(run.scatter) if run.scatter else None,
                **{key: pair_dict(at(path)(run), scale) for key, (path, scale) in RUN_PAIRS.items()},
            }
            for run in validation.runs
        ],
        "kv_blocks": [{"file": name, **(pair_dict(pair) or {})} for name, pair in validation.kv_blocks if pair],
        "files": [record(FILE_FIELDS, each) | {"host": validation.hosts.get(each.file)} for each in files],
        "by_load": [asdict(each) for each in validation.by_load() if each.num_runs],
        "reliability": {each.about.replace(" ", "_"): reliability_dict(each) for each in promises},
        "rank_correlation": {
            each.quantity: record(ORDER_FIELDS, each) for each in reliability.orders_of(validation.runs)
        },
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
