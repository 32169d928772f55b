"""Recorded workloads: Azure and Mooncake traces, and plain CSV or JSON lines of your own.

A file is a stream of records (a CSV row or a JSON object, by name), a format turns one record into one row, and
`read_trace` turns rows into requests. Nothing in a file is ever executed: numbers, dates and names only.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.serve.workload.lengths import LONGEST
from infercast.serve.workload.request import Request, Segment, Workload

MOONCAKE_BLOCK_TOKENS = 512
A_DATE = 1e8
"""Seconds: an earliest arrival later than this, three years, is a moment since 1970 and not since the start."""
Record = dict[str, Any]
Row = tuple[float, int, int, tuple[Segment, ...]]
"""Arrival in the ticks of its format, input tokens, output tokens (may be 0), prefix."""
Records = Iterator[tuple[int, Record]]
"""Each record with the number of its line."""

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Segments(dict[tuple[int, int], Segment]):
    """Segments by content and length, made on first use: requests that share a block share the object."""

    def __missing__(self, key: tuple[int, int]) -> Segment:
        return self.setdefault(key, Segment(*key))


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How one kind of file is recognised and read."""

    label: str
    is_json: bool
    """One JSON object a line; otherwise CSV with a header."""
    fields: tuple[tuple[str, ...], ...]
    """Names of the fields that must be there, each with its alternatives."""
    read_row: Callable[[Record, Segments], Row]
    ticks_per_second: int = 1
    starts_at_zero: bool = True
    """Arrivals count from the earliest one, not from the file's own zero."""


def read_trace(path: str | os.PathLike[str], format: str | None = None) -> Workload:
    """The requests of a trace file, in order of arrival; plain or gzip-compressed.

    ``format`` is azure, mooncake, csv or jsonl; left out, the first line tells. Arrivals of Azure and Mooncake traces
    count from their earliest request, and so do dates; plain files of seconds keep their own zero. Rows out of order
    are sorted, equal arrivals keeping the order of the file. Columns that are not known are ignored.

    An output of 0 tokens becomes 1, because an engine always samples one token; the description says how often that
    happened. An input of 0 tokens is refused.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("trace format", format, FORMATS)
    try:
        with open(path, "rb") as raw, _as_text(raw) as stream:
            trace_format, records = _recognise(path, stream, format)
            rows = _read_rows(path, trace_format, records)
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows.sort(key=itemgetter(0))
    origin = rows[0][0] if trace_format.starts_at_zero or rows[0][0] >= A_DATE else 0.0
    requests = tuple(
        Request((arrival - origin) / trace_format.ticks_per_second, num_input, num_output or 1, prefix)
        for arrival, num_input, num_output, prefix in rows
    )
    num_empty = [row[2] for row in rows].count(0)
    return Workload(requests, description=_describe(requests, trace_format.label, Path(path).name, num_empty))


def _read_rows(path: object, trace_format: TraceFormat, records: Records) -> list[Row]:
    rows: list[Row] = []
    segments = Segments()
    for line, record in records:
        try:
            rows.append(trace_format.read_row(record, segments))
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


def _azure_row(record: Record, _: Segments) -> Row:
    """Time is cut to microseconds (Azure writes seven decimals, the last one always 0); without a zone it is UTC."""
    text = record["TIMESTAMP"]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise InputError(f"TIMESTAMP must be a time like '2023-11-16 18:17:03.9799600', not {text[:80]!r}") from None
    ticks = (moment - _EPOCH) // _MICROSECOND
    return ticks, _whole(record, "ContextTokens", 1), _whole(record, "GeneratedTokens", 0), ()


def _mooncake_row(record: Record, segments: Segments) -> Row:
    """Each of hash_ids names 512 tokens of the prompt; the last is cut to what remains of input_length.

    Ids beyond the prompt's end are dropped. Where there are too few (or none), the rest of the prompt is the request's
    own and shared with nobody.
    """
    num_input = _whole(record, "input_length", 1)
    ids = record.get("hash_ids", [])
    if not (isinstance(ids, list) and set(map(type, ids)) <= {int}):
        raise InputError(f"hash_ids must be a list of whole numbers, not {str(ids)[:80]!r}")
    num_whole, rest = divmod(num_input, MOONCAKE_BLOCK_TOKENS)
    block_tokens = chain(repeat(MOONCAKE_BLOCK_TOKENS, num_whole), (rest,) if rest else ())
    prefix = tuple(map(segments.__getitem__, zip(ids, block_tokens, strict=False)))
    return _number(record, "timestamp"), num_input, _whole(record, "output_length", 0), prefix


def _plain_row(record: Record, segments: Segments) -> Row:
    """The input is the whole prompt; prefix_length of it, from the start, is shared within its prefix_group."""
    arrival_field, input_field, output_field = (_only_name(record, names) for names in _PLAIN_FIELDS)
    arrival, num_input = _moment(record, arrival_field), _whole(record, input_field, 1)
    num_output = _whole(record, output_field, 0)
    if all(record.get(field) in (None, "") for field in ("prefix_group", "prefix_length")):
        return arrival, num_input, num_output, ()
    group, length = _whole(record, "prefix_group", 0), _whole(record, "prefix_length", 0)
    if length > num_input:
        raise InputError(f"prefix_length {length} is longer than the whole prompt, {input_field} {num_input}")
    return arrival, num_input, num_output, (segments[group, length],) if length else ()


def _moment(record: Record, field: str) -> float:
    """Seconds, or a date like ``2026-03-01T08:30:00.5`` as seconds since 1970; without a zone it is UTC."""
    text = record.get(field)
    if isinstance(text, str) and "-" in text[1:] and ":" in text:
        try:
            moment = datetime.fromisoformat(text.strip())
            zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return zoned.timestamp()
        except (ValueError, OverflowError):
            raise InputError(
                f"{field} must be seconds or a date like '2026-03-01T08:30:00', not {text[:80]!r}"
            ) from None
    return _number(record, field)


def _only_name(record: Record, names: tuple[str, ...]) -> str:
    present = [name for name in names if name in record]
    if len(present) != 1:
        raise InputError(f"has {' and '.join(present) or 'none'} where exactly one of {', '.join(names)} is needed")
    return present[0]


def _number(record: Record, field: str) -> float:
    value: Any = record.get(field)
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or type(value) is bool:
        problem = "is missing" if value is None else f"must be a number of at least 0, not {str(value)[:80]!r}"
        raise InputError(f"{field} {problem}")
    return number


def _whole(record: Record, field: str, least: int) -> int:
    value: Any = record.get(field)
    is_digits = type(value) is str and len(value) <= 10 and value.isdecimal()
    # Otherwise through float, because spreadsheets and data frames write a column with gaps as 512.0.
    number = int(value) if is_digits else _number(record, field)
    if not (least <= number <= LONGEST and number == int(number)):
        raise InputError(f"{field} must be a whole number from {least} to {LONGEST}, not {str(value)[:80]!r}")
    return int(number)


def _describe(requests: tuple[Request, ...], label: str, name: str, num_empty: int) -> str:
    span = requests[-1].arrival - requests[0].arrival
    empty = f", {num_empty:,} with 0 output tokens taken as 1" if num_empty else ""
    mean_input = fmean(map(attrgetter("num_input"), requests))
    mean_output = fmean(map(attrgetter("num_output"), requests))
    lengths = f"input mean {mean_input:,.0f}, output mean {mean_output:,.0f}"
    return f"{len(requests):,} requests over {span:,.0f} s, {label} {name}, {lengths}{empty}"


_PLAIN_FIELDS = (
    ("arrival", "arrival_s", "timestamp"),
    ("input", "num_input", "input_tokens"),
    ("output", "num_output", "output_tokens"),
)
_AZURE_FIELDS = (("TIMESTAMP",), ("ContextTokens",), ("GeneratedTokens",))
_MOONCAKE_FIELDS = (("timestamp",), ("input_length",), ("output_length",))
FORMATS = {
    "azure": TraceFormat("Azure trace", False, _AZURE_FIELDS, _azure_row, ticks_per_second=1_000_000),
    "mooncake": TraceFormat("Mooncake trace", True, _MOONCAKE_FIELDS, _mooncake_row, ticks_per_second=1000),
    "csv": TraceFormat("trace", False, _PLAIN_FIELDS, _plain_row, starts_at_zero=False),
    "jsonl": TraceFormat("trace", True, _PLAIN_FIELDS, _plain_row, starts_at_zero=False),
}
