"""Recorded workloads: Azure and Mooncake traces, conversations, and plain CSV or JSON lines of your own.

A file is a stream of records (a CSV row or a JSON object, by name), a format turns one record into rows, and
`read_trace` turns rows into requests. Nothing in a file is ever executed: numbers, dates and names only.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.serve.workload.adapters import asking_for
from infercast.serve.workload.request import Request, Workload
from infercast.serve.workload.trace_rows import PLAIN_FIELDS, Record, Row, Segments, azure_row, mooncake_row, plain_row
from infercast.serve.workload.trace_sessions import (
    CONVERSATION_FIELDS,
    conversation_rows,
    with_histories,
    with_sessions,
)

MOONCAKE = "Mooncake trace"
NO_SESSIONS = "give it a column session, or blocks as Mooncake's traces have them"

A_DATE = 1e8
"""Seconds: an earliest arrival later than this, three years, is a moment since 1970 and not since the start."""
Records = Iterator[tuple[int, Record]]
"""Each record with the number of its line."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How one kind of file is recognised and read."""

    label: str
    is_json: bool
    """One JSON object a line; otherwise CSV with a header."""
    fields: tuple[tuple[str, ...], ...]
    """Names of the fields that must be there, each with its alternatives."""
    read_rows: Callable[[Record, Segments], list[Row]]
    ticks_per_second: int = 1
    starts_at_zero: bool = True
    """Arrivals count from the earliest one, not from the file's own zero."""
    in_turns: bool = False
    """Its sessions go turn by turn in any case: it does not say when later turns came."""


def read_trace(path: str | os.PathLike[str], format: str | None = None, *, follow: bool = False) -> Workload:
    """The requests of a trace file, in order of arrival; plain or gzip-compressed.

    ``format`` is azure, mooncake, conversations, csv or jsonl; left out, the first line tells. Arrivals of Azure and
    Mooncake traces count from their earliest request, and so do dates; plain files of seconds keep their own zero. Rows
    out of order are sorted, equal arrivals keeping the order of the file. Columns that are not known are ignored.

    Requests that are turns of one session carry its number: where a column says so, or in Mooncake's traces where the
    blocks of one prompt are the beginning of a later one. They are sent when the trace says; with ``follow`` none
    before the answer to the one before it. Files of conversations go turn by turn in any case.

    Answers end by EOS, as those of real users do (`Request.stops`).

    An output of 0 tokens becomes 1, because an engine always samples one token; the description says how often that
    happened. An input of 0 tokens is refused.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("trace format", format, FORMATS)
    segments = Segments()
    try:
        with open(path, "rb") as raw, _as_text(raw) as stream:
            trace_format, records = _recognise(path, stream, format)
            rows = _read_rows(path, trace_format, records, segments)
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise FileFormatError(path, "has no requests")
    rows.sort(key=itemgetter(0))
    if trace_format.label == MOONCAKE:
        rows = with_sessions(rows)
    elif not trace_format.in_turns and any(row.session is not None for row in rows):
        rows = with_histories(rows, segments)
    origin = rows[0].arrival if trace_format.starts_at_zero or rows[0].arrival >= A_DATE else 0.0
    in_turns = trace_format.in_turns or follow
    if follow and not trace_format.in_turns and all(row.session is None for row in rows):
        raise FileFormatError(path, f"has no sessions to follow: {NO_SESSIONS}")
    numbers: dict[object, int] = {}
    requests = tuple(_request(row, origin, trace_format.ticks_per_second, numbers) for row in rows)
    num_empty = [row.num_output for row in rows].count(0)
    description = _describe(requests, trace_format.label, Path(path).name, num_empty, len(numbers))
    return Workload(requests, description=description, in_turns=in_turns)


def _request(row: Row, origin: float, ticks: int, numbers: dict[object, int]) -> Request:
    """A row as a request; sessions are numbered as they come."""
    session = None if row.session is None else numbers.setdefault(row.session, len(numbers))
    request = Request(
        (row.arrival - origin) / ticks,
        row.num_input,
        row.num_output or 1,
        row.prefix,
        row.answer,
        session=session,
        think=row.think,
        priority=row.priority,
        slo_class=row.slo_class,
        stops=True,
    )
    return request if row.adapter is None else asking_for(request, row.adapter)


def _read_rows(path: object, trace_format: TraceFormat, records: Records, segments: Segments) -> list[Row]:
    rows: list[Row] = []
    for line, record in records:
        try:
            rows += trace_format.read_rows(record, segments)
        except InputError as error:
            raise FileFormatError(path, str(error), line) from None
    return rows


def _as_text(raw: io.BufferedReader) -> io.TextIOWrapper:
    # Compression is told by gzip's magic number, so a renamed file reads as well as one that ends in .gz.
    binary = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
    return io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")


def _recognise(path: object, stream: Iterator[str], name: str | None) -> tuple[TraceFormat, Records]:
    """The format called ``name``, or else the one whose fields the first record has; and all records."""
    head: list[str] = []
    for text in stream:
        head.append(text)
        if text.strip():
            break
    else:
        raise FileFormatError(path, "is empty")
    is_json = FORMATS[name].is_json if name else head[-1].lstrip().startswith("{")
    records = (_json_records if is_json else _csv_records)(path, chain(head, stream))
    first = next(records, None)
    if first is None:
        raise FileFormatError(path, "has no requests after its first line")
    candidates = {name: FORMATS[name]} if name else FORMATS
    for known in candidates.values():
        if known.is_json == is_json and all(not first[1].keys().isdisjoint(names) for names in known.fields):
            return known, chain([first], records)
    expected = (f"{key} ({', '.join('/'.join(names) for names in known.fields)})" for key, known in candidates.items())
    found = ", ".join(first[1])[:120]
    raise FileFormatError(path, f"the fields {found!r} are not those of a trace; expected {'; '.join(expected)}")


def _csv_records(path: object, lines: Iterator[str]) -> Records:
    reader = csv.reader(lines)
    header = next(([name.strip() for name in row] for row in reader if row), [])
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise FileFormatError(path, f"the header names {repeated[0]!r} more than once", reader.line_num)
    for values in reader:
        if len(values) == len(header):
            yield reader.line_num, dict(zip(header, values, strict=True))
        elif any(map(str.strip, values)):
            raise FileFormatError(path, f"has {len(values)} values where the header has {len(header)}", reader.line_num)


def _json_records(path: object, lines: Iterator[str]) -> Records:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise FileFormatError(path, f"expected one JSON object a line, not {text.strip()[:80]!r}", line)
        yield line, record


def _describe(requests: tuple[Request, ...], label: str, name: str, num_empty: int, num_sessions: int) -> str:
    span = requests[-1].arrival - requests[0].arrival
    empty = f", {num_empty:,} with 0 output tokens taken as 1" if num_empty else ""
    mean_input = fmean(map(attrgetter("num_input"), requests))
    mean_output = fmean(map(attrgetter("num_output"), requests))
    sessions = f" in {num_sessions:,} sessions" if num_sessions else ""
    lengths = f"input mean {mean_input:,.0f}, output mean {mean_output:,.0f}"
    return f"{len(requests):,} requests{sessions} over {span:,.0f} s, {label} {name}, {lengths}{empty}"


_AZURE_FIELDS = (("TIMESTAMP",), ("ContextTokens",), ("GeneratedTokens",))
_MOONCAKE_FIELDS = (("timestamp",), ("input_length",), ("output_length",))
FORMATS = {
    "azure": TraceFormat("Azure trace", False, _AZURE_FIELDS, azure_row, ticks_per_second=1_000_000),
    "mooncake": TraceFormat(MOONCAKE, True, _MOONCAKE_FIELDS, mooncake_row, ticks_per_second=1000),
    "conversations": TraceFormat(
        "conversations", True, (CONVERSATION_FIELDS,), conversation_rows, starts_at_zero=False, in_turns=True
    ),
    "csv": TraceFormat("trace", False, PLAIN_FIELDS, plain_row, starts_at_zero=False),
    "jsonl": TraceFormat("trace", True, PLAIN_FIELDS, plain_row, starts_at_zero=False),
}
