"""Where the time of a run went, for people and for programs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.breakdown import Breakdown, KernelPart
from infercast.forecast.explain.composition import Composition
from infercast.forecast.explain.request_parts import RequestParts
from infercast.forecast.explain.step_log import KINDS
from infercast.report.layout import grid, section
from infercast.serve import Workload
from infercast.units import MILLI, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_REQUESTS = 5
SHOWN_FAMILIES = 5
SHOWN_SHARE = 0.0005
"""Parts below this share are left out of tables, never out of JSON."""


BY_PLACE = "What a token is made of, by its place in the answer"


def render_breakdown(workload: Workload, breakdown: Breakdown) -> list[RenderableType]:
    """Tables for a terminal."""
    several = f", on {breakdown.side_by_side:,} replicas and stages" if breakdown.side_by_side > 1 else ""
    title = f"Where every second of the {format_seconds(breakdown.duration)} goes{several}"
    parts = [
        section(title, _run_table(breakdown)),
        section("Where the time to first token goes, per request", _parts_table(breakdown.first_tokens)),
        section("The slowest first tokens", _slowest_table(workload, breakdown.first_tokens)),
    ]
    if breakdown.later_tokens is not None:
        parts.append(section("Where the time per output token goes", _parts_table(breakdown.later_tokens)))
    if breakdown.composition is not None:
        parts.append(section(BY_PLACE, grid(*composition_cells(breakdown.composition))))
    return parts


def render_parts(breakdown: Breakdown) -> list[RenderableType]:
    """The same for a notebook, without the requests that it is of."""
    parts = [_run_table(breakdown), section("TTFT, per request", _parts_table(breakdown.first_tokens))]
    if breakdown.later_tokens is not None:
        parts.append(section("TPOT", _parts_table(breakdown.later_tokens)))
    return parts


def by_family(breakdown: Breakdown) -> list[tuple[str, list[KernelPart]]]:
    """Families with their kernels, both largest first."""
    ordered = sorted(breakdown.kernels, key=lambda part: part.family)
    families = [(name, list(parts)) for name, parts in groupby(ordered, key=lambda part: part.family)]
    return sorted(families, key=lambda family: -sum(part.total for part in family[1]))


def _run_table(breakdown: Breakdown) -> RenderableType:
    rows = []
    for family, kernels in by_family(breakdown):
        seconds = {kind: sum(kernel.seconds[kind] for kernel in kernels) for kind in KINDS}
        rows.append(_run_row(family, seconds, breakdown.whole))
        if len(kernels) > 1 or kernels[0].name != family:
            rows += [_run_row(f"  {kernel.name}", kernel.seconds, breakdown.whole) for kernel in kernels]
    rows.append(_run_row(breakdown.host.name, breakdown.host.seconds, breakdown.whole))
    idle = breakdown.idle_seconds
    rows.append(("no request in the system", "", "", "", *_total(idle, breakdown.whole)))
    steps = [f"{breakdown.steps[kind]:,} {kind} step{'' if breakdown.steps[kind] == 1 else 's'}" for kind in KINDS]
    shown = [row for row in rows if not row[0].startswith("  ") or row[-1] != format_percent(0.0)]
    return grid(("", *steps, "all", "share"), shown)


def _run_row(name: str, seconds: dict[str, float], whole: float) -> tuple[str, ...]:
    cells = (format_seconds(seconds[kind]) if seconds[kind] > 0 else "-" for kind in KINDS)
    return (name, *cells, *_total(sum(seconds.values()), whole))


def _total(seconds: float, whole: float) -> tuple[str, str]:
    return (format_seconds(seconds) if seconds > 0 else "-"), format_percent(seconds / whole)


def _parts_table(parts: RequestParts) -> RenderableType:
    """Means over all requests beside means over the slowest."""
    columns = [parts.mean(), parts.mean(parts.slowest)]
    totals = [sum(column.values()) for column in columns]
    rows = []
    for name in parts.parts:
        if max(column[name] / total for column, total in zip(columns, totals, strict=True)) >= SHOWN_SHARE:
            cells = [
                cell
                for column, total in zip(columns, totals, strict=True)
                for cell in (format_seconds(max(column[name], 0.0)), format_percent(max(column[name], 0.0) / total))
            ]
            rows.append((name, *cells))
    rows.append(("together", format_seconds(totals[0]), "", format_seconds(totals[1]), ""))
    count = parts.slowest.size
    slowest = "the slowest" if count == 1 else f"slowest {count:,}"
    return grid(("", f"all {parts.total.size:,}", "share", slowest, "share"), rows)


def _slowest_table(workload: Workload, parts: RequestParts) -> RenderableType:
    rows = []
    for position in parts.total.argsort(kind="stable")[::-1][:SHOWN_REQUESTS].tolist():
        request = workload.requests[int(parts.requests[position])]
        total = float(parts.total[position])
        words = largest_parts({name: float(part[position]) for name, part in parts.parts.items()}, total)
        sent = format_seconds(float(parts.sent_at[position]))
        rows.append(
            (f"{int(parts.requests[position]):,}", sent, f"{request.num_input:,}", format_seconds(total), words)
        )
    return grid(("request", "sent at", "prompt", "TTFT", "largest parts"), rows, text_columns=0, notes_at=(4,))


def largest_parts(parts: dict[str, float], total: float) -> str:
    """What most of a request's time went to, in words."""
    shares = sorted(((seconds / total, name) for name, seconds in parts.items()), reverse=True)
    return ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares[:4] if share >= 0.01)


def composition_cells(composition: Composition) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows: what a token takes in each range of places, and the shares of kernel families in it."""
    sums: dict[str, float] = {}
    for each in composition.ranges:
        for family, seconds in each.families.items():
            sums[family] = sums.get(family, 0.0) + seconds * each.tokens
    shown = sorted(sums, key=lambda family: -sums[family])[:SHOWN_FAMILIES]
    rows = []
    for each in composition.ranges:
        shares = [each.families[family] / each.seconds for family in shown]
        cells = [format_percent(share) for share in (*shares, max(0.0, 1.0 - sum(shares)))]
        rows.append((f"{each.first:,} to {each.last:,}", f"{each.requests:,}", format_seconds(each.seconds), *cells))
    return ("token", "requests", "per token", *shown, "rest"), rows


def breakdown_dict(breakdown: Breakdown) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "duration_s": breakdown.duration,
        "side_by_side": breakdown.side_by_side,
        "steps": breakdown.steps,
        "kernels": [
            {"kernel": part.name, "family": part.family, "seconds": part.seconds} for part in breakdown.kernels
        ],
        "host_seconds": breakdown.host.seconds,
        "idle_seconds": breakdown.idle_seconds,
        "ttft": _parts_dict(breakdown.first_tokens),
        "tpot": None if breakdown.later_tokens is None else _parts_dict(breakdown.later_tokens),
        "by_tokens_generated": [
            {
                "first": each.first,
                "last": each.last,
                "requests": each.requests,
                "tokens": each.tokens,
                "ms": each.seconds / MILLI,
                "families_ms": {family: seconds / MILLI for family, seconds in each.families.items()},
            }
            for each in (() if breakdown.composition is None else breakdown.composition.ranges)
        ],
    }


def _parts_dict(parts: RequestParts) -> dict[str, Any]:
    def request(position: int) -> dict[str, Any]:
        each = {name: float(part[position]) / MILLI for name, part in parts.parts.items()}
        return {"request": int(parts.requests[position]), "ms": float(parts.total[position]) / MILLI, "parts_ms": each}

    return {
        "mean_ms": {name: seconds / MILLI for name, seconds in parts.mean().items()},
        "slowest_mean_ms": {name: seconds / MILLI for name, seconds in parts.mean(parts.slowest).items()},
        "slowest": [request(position) for position in parts.slowest.tolist()],
    }
