"""A result as plain data, CSV, data frame, notebook HTML or figure, by functions that are loaded when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from infercast.errors import InputError, require
from infercast.report import terminal
from infercast.report.files import csv_lines
from infercast.units import MICRO, format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from infercast.report.page.figures import Plot

ENDS = ("low", "high")  # of an interval, which JSON has as a pair
LEFT, RIGHT = ' style="text-align:left"', ' style="text-align:right"'
LIBRARIES = ("pandas", "polars")


def rows_of(document: Any, key: str | tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """A list as its members, what a document has under ``key`` as those, and any other document as one row. Of several
    keys each is a row, and so is each member of a mapping; the first column is then its name.
    """
    if key is None:
        found = [document] if isinstance(document, Mapping) else document
    else:
        found = document[key] if isinstance(key, str) else {name: document[name] for name in key}
    if isinstance(found, Mapping):
        found = [{"name": name, **value} for name, value in found.items()]
    return [flat(row) for row in found]


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """One level of names, such as ``ttft_ms.p50``. Lists of records have no place in a row and are left out."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells |= flat(value, f"{before}{name}.")
        elif _is_interval(f"{before}{name}", value):
            cells |= {f"{before}{name}.{end}": each for end, each in zip(ENDS, value, strict=True)}
        elif isinstance(value, (list, tuple)):
            if not any(isinstance(each, (Mapping, list, tuple)) for each in value):
                cells[f"{before}{name}"] = "; ".join(map(str, value))
        else:
            cells[f"{before}{name}"] = value
    return cells


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = columns_of(rows)
    cells = ([row.get(name) for name in columns] for row in rows)
    return "".join(
        csv_lines(columns, ([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in cells))
    )


def _is_interval(name: str, value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == len(ENDS)
    return is_pair and "interval" in name and all(isinstance(each, (int, float)) for each in value)


def html(title: str, parts: Iterable[terminal.Printable]) -> str:
    body = "".join(map(_written, parts))
    return f'<div class="infercast"><p><b>{escape(title)}</b></p>{body}</div>'


def _written(part: Any) -> str:
    match part:
        case terminal.Section():
            is_open = "" if part.title.startswith(terminal.FOLDED) else " open"
            text = f"<details{is_open}><summary>{escape(part.title)}</summary>{_written(part.body)}</details>"
        case terminal.Facts():
            rows = (f"<th{LEFT}>{escape(name)}</th><td{LEFT}>{escape(value)}</td>" for name, value in part.rows)
            text = f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
        case terminal.Paragraph():
            text = _lines(part.text)
        case terminal.FittingTable():
            text = _table(part.whole)
        case terminal.Grid():
            text = _table(part)
        case terminal.Group():
            text = "".join(map(_written, part.parts))
        case _:
            text = f"<pre>{escape(terminal.drawn(part))}</pre>"
    return text


def _table(part: terminal.Grid) -> str:
    sides = [LEFT if place in part.words else RIGHT for place in range(len(part.columns))]
    head = "".join(f"<th{side}>{escape(name)}</th>" for side, name in zip(sides, part.columns, strict=True))
    rows = (
        "".join(f"<td{side}>{_cell(cell)}</td>" for side, cell in zip(sides, row, strict=True)) for row in part.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _cell(text: str) -> str:
    """Names of parts keep the blanks that they are indented by."""
    indent = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * indent + escape(text.lstrip(" "))


def _lines(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines() if line)


def frame_of_rows(rows: Sequence[Mapping[str, Any]], library: str | None = None) -> Any:
    """A data frame with a row for each of these; a name that a row does not have is missing there."""
    return frame_of_columns({name: [row.get(name) for row in rows] for name in columns_of(rows)}, library)


def frame_of_columns(columns: Mapping[str, Any], library: str | None = None) -> Any:
    return _library(library).DataFrame(dict(columns))


def _library(name: str | None) -> Any:
    require(name is None or name in LIBRARIES, "library", f"be {' or '.join(LIBRARIES)}", repr(name))
    for each in LIBRARIES if name is None else (name,):
        try:
            return import_module(each)
        except ImportError:
            continue
    wanted = "pandas or polars" if name is None else name
    raise InputError(
        f"to_frame needs {wanted}: pip install {name or LIBRARIES[0]} (the extra notebook); to_dict() "
        "gives plain data without"
    )


def plain_dict(answer: Any) -> dict[str, Any]:
    """Of an answer that has its document itself: facts, and perhaps one list of rows."""
    found: dict[str, Any] = answer.document()
    return found


def plain_tables(answer: Any) -> list[terminal.Printable]:
    document = plain_dict(answer)
    key, rows = next(((key, each) for key, each in document.items() if isinstance(each, list)), ("", []))
    facts = [(name.replace("_", " "), _plain(name, each)) for name, each in document.items() if name != key]
    parts: list[terminal.Printable] = [
        terminal.Section(repr(answer).strip("<>").partition(": ")[2], terminal.Facts(facts))
    ]
    if not rows:
        return parts
    varied = [name for name in rows[0] if len(rows) == 1 or any(row[name] != rows[0][name] for row in rows)]
    cells = [[_plain(name, row[name]) for name in varied] for row in rows]
    words = max(1, sum(isinstance(rows[0][name], str) for name in varied))
    titles = [name.removesuffix("_us").removesuffix("_pct").replace("_", " ") for name in varied]
    return [*parts, terminal.Section(key, terminal.Grid(titles, cells, text_columns=words))]


def _plain(name: str, value: Any) -> str:
    """A value as its name says: a time, a share, bytes, or a count."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if not isinstance(value, float):
        return "-" if value is None else f"{value:.36}" if name in ("kernel", "shape") else f"{value}"
    if name.endswith(("_us", "seconds")):
        return format_seconds(value * (MICRO if name.endswith("_us") else 1.0))
    if name.endswith("_pct"):
        return f"{value:+.2f} %"
    if name.endswith(("share", "error", "lost")):
        return format_percent(value)
    return format_bytes(value) if "bytes" in name else format_count(value) if value >= 1000 else f"{value:.3g}"


RENDERERS = {
    "Design": terminal.Renderers(plain_dict, plain_tables, rows="chips"),
    "Elasticities": terminal.Renderers(plain_dict, plain_tables, rows="elasticities"),
    "Estimate": terminal.Renderers(plain_dict, plain_tables),
    "OwnKernel": terminal.Renderers(plain_dict, plain_tables),
    "Partition": terminal.Renderers(plain_dict, plain_tables, rows="stages"),
    "ProfileDiagnosis": terminal.Renderers(plain_dict, plain_tables, rows="kernels"),
    "Variants": terminal.Renderers(plain_dict, plain_tables, rows="front"),
}
HOMES = dict.fromkeys(RENDERERS, "formats") | {
    kind: module
    for module, kinds in {
        "calibration": "Calibration", "catalog": "Gpu", "command": "Explained",
        "deployment": "Deployment Fit ModelConfig Workload", "diagnosis": "RunDiagnosis",
        "forecast": "Forecast Intervals Verdict", "kernels": "Breakdown Diagnosis StepCost", "plan": "Layouts Plan",
        "sweep": "DayPlan Savings Sweep",
    }.items()
    for kind in kinds.split()
}  # fmt: skip
"""The module of this package with the renderers of each kind of answer, loaded when one is written."""


def renderers_of(answer: Any) -> terminal.Renderers:
    kind = _kind_of(answer)
    found: terminal.Renderers = import_module(f"infercast.report.{HOMES[kind]}").RENDERERS[kind]
    return found


def _kind_of(answer: Any) -> str:
    for kind in type(answer).__mro__:
        if kind.__name__ in HOMES:
            return kind.__name__
    raise TypeError(f"nothing is known of how a {type(answer).__name__} is written")


def document_of(answer: Any, *more: Any) -> Any:
    return renderers_of(answer).document(answer, *more)


def frame_of(answer: Any, library: str | None) -> Any:
    if hasattr(answer, "per_request"):
        return frame_of_columns(answer.per_request(), library)
    document, key = document_of(answer), renderers_of(answer).rows
    return frame_of_rows(rows_of(document, "shapes" if key is None and "shapes" in document else key), library)


def html_of(answer: Any) -> str:
    return html(repr(answer).strip("<>"), renderers_of(answer).tables(answer))


def picture_of(answer: Any) -> Any:
    from infercast.report.plots import PICTURES, Picture  # noqa: PLC0415 - needs matplotlib

    draw = PICTURES.get(_kind_of(answer))
    return plot_of(answer).figure(Picture) if draw is None else draw(answer)


def plot_of(answer: Any) -> Plot:
    from infercast.report.page.figures import PLOTS  # noqa: PLC0415 - asked for by few

    return PLOTS[_kind_of(answer)](answer)
