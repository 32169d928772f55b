"""Errors as tables in markdown: one cell holds mean / median / 90th percentile, in per cent."""

from collections.abc import Sequence

import numpy as np

from points import Array
from splits import COLUMNS, MEASURED, UNSEEN

Results = dict[str, dict[str, dict[str, dict[str, float]]]]
"""table -> line -> column -> statistics"""

OURS = "infercast"


def statistics(measured: Sequence[Array], predicted: Sequence[Array]) -> dict[str, float]:
    error = np.abs(np.concatenate(predicted) / np.concatenate(measured) - 1.0)
    return {
        "rows": int(error.size),
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
    }


def markdown(results: Results) -> str:
    names = [split.name for split in (*MEASURED, *UNSEEN)]
    return "\n".join(_table(name, results[name]) for name in names if name in results)


def _table(name: str, lines: dict[str, dict[str, dict[str, float]]]) -> str:
    """One table, ours last."""
    rows = {column: values["rows"] for line in lines.values() for column, values in line.items()}
    text = [f"| {name} | " + " | ".join(COLUMNS) + " |", "| --- |" + " --: |" * len(COLUMNS)]
    tested = (f"{rows[each]:,}" if each in rows else "-" for each in COLUMNS)
    text.append("| rows tested | " + " | ".join(tested) + " |")
    for line in sorted(lines, key=lambda each: each == OURS):
        cells = [_cell(lines[line].get(column)) for column in COLUMNS]
        text.append(f"| {line} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def _cell(values: dict[str, float] | None) -> str:
    if values is None:
        return "-"
    return " / ".join(_per_cent(values[name]) for name in ("mean", "median", "p90"))


def _per_cent(fraction: float) -> str:
    return f"{100 * fraction:.1f}" if fraction < 1 else f"{100 * fraction:.0f}"
