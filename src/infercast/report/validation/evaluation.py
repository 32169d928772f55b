"""How wrong kernel estimates are, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infercast.report.layout import grid, section
from infercast.units import format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_evaluation(result: dict[str, Any]) -> list[RenderableType]:
    """One table a family: every GPU, then its dtypes."""
    parts: list[RenderableType] = []
    for family, scores in result["families"].items():
        rows = []
        for gpu, statistics in scores["gpus"].items():
            rows.append((gpu, *_cells(statistics)))
            rows += [(f"  {dtype}", *_cells(inner)) for dtype, inner in statistics["by_dtype"].items()]
        parts.append(section(family, grid(("GPU", "rows", "mean", "median", "p90", "in interval"), rows)))
    return [
        *parts,
        section("All", grid(("", "rows", "mean", "median", "p90", "in interval"), [("", *_cells(result["overall"]))])),
    ]


def _cells(statistics: dict[str, Any]) -> tuple[str, ...]:
    errors = (format_percent(statistics[name]) for name in ("mape", "median_ape", "p90_ape", "coverage80"))
    return (f"{statistics['rows']:,}", *errors)
