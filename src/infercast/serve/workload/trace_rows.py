"""One record of a trace file as one or more rows: what each known format calls its fields, and how they are checked."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any, NamedTuple

from infercast.errors import InputError
from infercast.serve.workload.lengths import LONGEST
from infercast.serve.workload.request import Segment

MOONCAKE_BLOCK_TOKENS = 512
Record = dict[str, Any]

PLAIN_FIELDS = (
    ("arrival", "arrival_s", "timestamp"),
    ("input", "num_input", "input_tokens"),
    ("output", "num_output", "output_tokens"),
)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Row(NamedTuple):
    """One request as a file has it."""

    arrival: float
    """In the ticks of its format."""
    num_input: int
    num_output: int
    """May be 0."""
    prefix: tuple[Segment, ...] = ()
    answer: int | None = None
    session: Any = None
    """Under the file's own name."""
    think: float = 0.0
    priority: int = 0
    slo_class: str = ""
    adapter: int | None = None


class Segments(dict[tuple[int, int], Segment]):
    """Segments by content and length, made on first use: requests that share a block share the object."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, int] = {}
        self._num_names = 0

    def __missing__(self, key: tuple[int, int]) -> Segment:
        return self.setdefault(key, Segment(*key))

    def new_name(self) -> int:
        """The name of content that nothing in the file has a name for."""
        self._num_names += 1
        return -self._num_names

    def name_of(self, text: str) -> int:
        """The name of a text, the same for equal ones."""
        if text not in self._texts:
            self._texts[text] = self.new_name()
        return self._texts[text]


def azure_row(record: Record, _: Segments) -> list[Row]:
    """Time is cut to microseconds (Azure writes seven decimals, the last one always 0); without a zone it is UTC."""
    text = record["TIMESTAMP"]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise InputError(f"TIMESTAMP must be a time like '2023-11-16 18:17:03.9799600', not {text[:80]!r}") from None
    ticks = (moment - _EPOCH) // _MICROSECOND
    return [Row(ticks, whole_of(record, "ContextTokens", 1), whole_of(record, "GeneratedTokens", 0))]


def mooncake_row(record: Record, segments: Segments) -> list[Row]:
    """Each of hash_ids names 512 tokens of the prompt; the last is cut to what remains of input_length.

    Ids beyond the prompt's end are dropped. Where there are too few (or none), the rest of the prompt is the request's
    own and shared with nobody.
    """
    num_input = whole_of(record, "input_length", 1)
    ids = record.get("hash_ids", [])
    if not (isinstance(ids, list) and set(map(type, ids)) <= {int}):
        raise InputError(f"hash_ids must be a list of whole numbers, not {str(ids)[:80]!r}")
    num_whole, rest = divmod(num_input, MOONCAKE_BLOCK_TOKENS)
    block_tokens = chain(repeat(MOONCAKE_BLOCK_TOKENS, num_whole), (rest,) if rest else ())
    prefix = tuple(map(segments.__getitem__, zip(ids, block_tokens, strict=False)))
    return [Row(number_of(record, "timestamp"), num_input, whole_of(record, "output_length", 0), prefix)]


def plain_row(record: Record, segments: Segments) -> list[Row]:
    """The input is the whole prompt; prefix_length of it, from the start, is shared within its prefix_group."""
    arrival_field, input_field, output_field = (_only_name(record, names) for names in PLAIN_FIELDS)
    arrival, num_input = moment_of(record, arrival_field), whole_of(record, input_field, 1)
    num_output = whole_of(record, output_field, 0)
    row = Row(arrival, num_input, num_output, **labels_of(record))
    if all(record.get(field) in (None, "") for field in ("prefix_group", "prefix_length")):
        return [row]
    group, length = whole_of(record, "prefix_group", 0), whole_of(record, "prefix_length", 0)
    if length > num_input:
        raise InputError(f"prefix_length {length} is longer than the whole prompt, {input_field} {num_input}")
    return [row._replace(prefix=(segments[group, length],) if length else ())]


def labels_of(record: Record) -> dict[str, Any]:
    """What else a record may say of a request or a session: whose it is, and how important."""
    labels: dict[str, Any] = {}
    if record.get("session") not in (None, ""):
        labels["session"] = str(record["session"])[:80]
    if record.get("think") not in (None, ""):
        labels["think"] = number_of(record, "think")
    if record.get("priority") not in (None, ""):
        labels["priority"] = _signed(record, "priority")
    if record.get("class") not in (None, ""):
        labels["slo_class"] = str(record["class"])[:80]
    if record.get("adapter") not in (None, ""):
        labels["adapter"] = whole_of(record, "adapter", 0)
    return labels


def _signed(record: Record, field: str) -> int:
    try:
        return int(str(record[field]))
    except ValueError:
        raise InputError(f"{field} must be a whole number, not {str(record[field])[:80]!r}") from None


def moment_of(record: Record, field: str) -> float:
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
    return number_of(record, field)


def _only_name(record: Record, names: tuple[str, ...]) -> str:
    present = [name for name in names if name in record]
    if len(present) != 1:
        raise InputError(f"has {' and '.join(present) or 'none'} where exactly one of {', '.join(names)} is needed")
    return present[0]


def number_of(record: Record, field: str) -> float:
    """A field that must be a number of at least 0."""
    value: Any = record.get(field)
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or type(value) is bool:
        problem = "is missing" if value is None else f"must be a number of at least 0, not {str(value)[:80]!r}"
        raise InputError(f"{field} {problem}")
    return number


def whole_of(record: Record, field: str, least: int) -> int:
    """A field that must be a whole number of at least so many."""
    value: Any = record.get(field)
    is_digits = type(value) is str and len(value) <= 10 and value.isdecimal()
    # Otherwise through float, because spreadsheets and data frames write a column with gaps as 512.0.
    number = int(value) if is_digits else number_of(record, field)
    if not (least <= number <= LONGEST and number == int(number)):
        raise InputError(f"{field} must be a whole number from {least} to {LONGEST}, not {str(value)[:80]!r}")
    return int(number)
