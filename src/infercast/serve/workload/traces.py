"""Recorded workloads: traces, exports of tracing tools, conversations, and plain CSV or JSON; nothing is executed."""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, pairwise, repeat
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.serve.workload.classes import asking_for
from infercast.serve.workload.distributions import LONGEST
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.units import format_many

# One record of a trace file as one or more rows: field names of each known format, and their checks.

MOONCAKE_BLOCK_TOKENS = 512
Record = dict[str, Any]
PLAIN_FIELDS = (
    ("arrival", "arrival_s", "timestamp"),
    ("input", "num_input", "input_tokens"),
    ("output", "num_output", "output_tokens"),
)
CONVERSATION_FIELDS = ("turns", "messages", "conversations")
Turn = tuple[list[Segment], int, float]  # new segments of a prompt, output tokens, and think time in seconds
MOONCAKE = "Mooncake trace"
Records = Iterator[tuple[int, Record]]  # each record with its line number
_segment_of: Callable[[tuple[int, int]], Segment] = partial(tuple.__new__, Segment)  # in half the time


class Row(NamedTuple):
    """One request as recorded in a file."""

    arrival: float  # In the format's ticks
    num_input: int
    num_output: int  # May be 0
    prefix: tuple[Segment, ...] = ()
    answer: int | None = None
    session: Any = None  # As named in the file
    think: float = 0.0
    priority: int = 0
    slo_class: str = ""
    adapter: int | None = None
    end: float | None = None  # When its answer was complete, if that is recorded
    after: tuple[int, ...] = ()  # Names of the answers it waits for


class Segments(dict[tuple[int, int], Segment]):
    """Segments by content and length, created on first use: requests that share a block share the object."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, Segment] = {}
        self._texts: dict[str, int] = {}
        self._num_names = 0
        self.histories: dict[Any, tuple[float, tuple[Segment, ...]]] = {}  # Of sessions: their start, and all so far

    def __missing__(self, key: tuple[int, int]) -> Segment:
        return self.setdefault(key, Segment(*key))

    def blocks(self, contents: list[int]) -> Iterator[Segment]:
        """Whole blocks of a Mooncake trace."""
        known = self._blocks
        new = set(contents).difference(known)
        known.update(zip(new, map(_segment_of, zip(new, repeat(MOONCAKE_BLOCK_TOKENS))), strict=True))
        return map(known.__getitem__, contents)

    def new_name(self) -> int:
        """A name for content that the file does not name."""
        self._num_names += 1
        return -self._num_names

    def name_of(self, text: str) -> int:
        """The name of a text, the same for equal ones."""
        if text not in self._texts:
            self._texts[text] = self.new_name()
        return self._texts[text]


def azure_row(record: Record, _: Segments) -> list[Row]:
    """Times are truncated to microseconds (Azure writes seven decimals, the last always 0); the default zone is UTC."""
    text = record["TIMESTAMP"]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise InputError(f"TIMESTAMP must be a time like '2023-11-16 18:17:03.9799600', not {text[:80]!r}") from None
    ticks = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return [Row(ticks, whole_of(record, "ContextTokens", 1), whole_of(record, "GeneratedTokens", 0))]


def mooncake_row(record: Record, segments: Segments) -> list[Row]:
    """Each of hash_ids names 512 tokens of the prompt, the last what remains; a prompt with too few ends unshared."""
    num_input = whole_of(record, "input_length", 1)
    ids = record.get("hash_ids", [])
    if not (isinstance(ids, list) and set(map(type, ids)) <= {int}):
        raise InputError(f"hash_ids must be a list of whole numbers, not {str(ids)[:80]!r}")
    num_whole, rest = divmod(num_input, MOONCAKE_BLOCK_TOKENS)
    last = (segments[ids[num_whole], rest],) if rest and num_whole < len(ids) else ()
    prefix = (*segments.blocks(ids[:num_whole]), *last)
    return [Row(number_of(record, "timestamp"), num_input, whole_of(record, "output_length", 0), prefix)]


def aiperf_rows(record: Record, segments: Segments) -> list[Row]:
    """A turn by its new tokens, ``delay`` milliseconds after the answer before."""
    session, begun = _text(record, "session_id"), moment_of(record, "timestamp") if "timestamp" in record else 0.0
    start, before = segments.histories.get(session, (begun, ()))
    new, num_output = whole_of(record, "input_length", 1), whole_of(record, "output_length", 0)
    prefix, answer = (*before, Segment(segments.new_name(), new)), segments.new_name()
    segments.histories[session] = start, (*prefix, Segment(answer, max(1, num_output)))
    think = number_of(record, "delay") / 1000 if record.get("delay") is not None else 0.0
    num_input = sum(piece.num_tokens for piece in prefix)
    return [Row(start, num_input, num_output, prefix, answer, session=session, think=think)]


def weka_rows(record: Record, segments: Segments) -> list[Row]:
    """A session of an agent, its prompts in blocks that it names; sub-agents are sessions that it waits for."""
    size, trace = whole_of(record, "block_size", 1), segments.new_name()

    def read(calls: list[Record], session: int, start: float, before: Sequence[Row]) -> list[Row]:
        own, others = list[Row](), list[Row]()
        for call in calls:
            sent = number_of(call, "t")
            sent = sent if sent >= start else start + sent  # of a sub-agent, older files count from its own start
            if call.get("type") == "subagent":
                others += read(call["requests"], segments.new_name(), sent, own)
                continue
            num_input, ids = whole_of(call, "in", 1), call["hash_ids"]
            blocks = [segments[segments.name_of(f"{trace}/{each}"), size] for each in ids[: num_input // size]]
            end = sent + (number_of(call, "api_time") if call.get("api_time") is not None else 0.0)
            output = whole_of(call, "out", 0)
            own.append(Row(sent, num_input, output, tuple(blocks), segments.new_name(), session, end=end))
        last = {row.session: row for row in others}
        known = [*own, *last.values(), *(row for row in before if row.end is not None and row.end <= start)]
        return [row for row in after_answers(known, session) if row.session == session] + others

    return as_soon_as(read(record["requests"], trace, 0.0, ()))


def after_answers(rows: Sequence[Row], own: Any, ticks: int = 1) -> list[Row]:
    """Calls that each wait for all answers there were when they were sent, and then as long as they did.

    An answer is not named where another that is named has waited for it: of its session, or of the ``own``.
    """
    running: list[tuple[float, int]] = []  # Ends of calls, and their numbers
    known: list[tuple[float, Row]] = []  # Those that have ended, less what later ones have waited for
    rows, found = sorted(rows, key=itemgetter(0)), list[Row]()
    for number, row in enumerate(rows):
        while running and running[0][0] <= row.arrival:
            end, at = heapq.heappop(running)
            later = rows[at]
            known = [each for each in known if each[0] > later.arrival or later.session not in (own, each[1].session)]
            known.append((end, later))
        if row.end is not None:
            heapq.heappush(running, (max(row.end, row.arrival), number))
        names = tuple(each.answer for _, each in known if each.answer is not None)
        found.append(row._replace(after=names, think=(row.arrival - known[-1][0]) / ticks) if known else row)
    return found


def as_soon_as(rows: Sequence[Row]) -> list[Row]:
    """The same, and calls that wait for answers may come as soon as what they wait for."""
    soonest: dict[int | None, float] = {}
    found = []
    for row in sorted(rows, key=itemgetter(0)):
        arrival = max((soonest[name] for name in row.after), default=row.arrival)
        soonest[row.answer] = arrival
        found.append(row._replace(arrival=arrival))
    return found


def span_rows(record: Record, _: Segments) -> list[Row]:
    """Calls of a model among OpenTelemetry's spans: one, or a whole export; others have no tokens."""
    spans = [record]
    if "resourceSpans" in record:
        scopes = [scope for part in record["resourceSpans"] for scope in part["scopeSpans"]]
        spans = [span for scope in scopes for span in scope["spans"]]
    rows = []
    for span in spans:
        said = span.get("attributes") or {}
        if isinstance(said, list):
            said = {each["key"]: next(iter(each["value"].values())) for each in said}
        if (tokens := said.get("gen_ai.usage.input_tokens")) is not None:
            session = _session((said, "gen_ai.conversation.id"), (span, "traceId"))
            said = {"input_tokens": tokens, "output_tokens": said.get("gen_ai.usage.output_tokens", 0), **span}
            num_input, num_output = whole_of(said, "input_tokens", 1), whole_of(said, "output_tokens", 0)
            end = number_of(span, "endTimeUnixNano") if span.get("endTimeUnixNano") else None
            rows.append(Row(number_of(span, "startTimeUnixNano"), num_input, num_output, session=session, end=end))
    return rows


def _session(*places: tuple[Record, str]) -> str | None:
    """The first name that is there."""
    return next((_text(record, name) for record, name in places if record.get(name)), None)


def langfuse_rows(record: Record, _: Segments) -> list[Row]:
    """An observation, if it is a generation with its tokens."""
    usage = next((record[name] for name in ("usageDetails", "usage_details", "usage") if record.get(name)), None)
    if record.get("type", "GENERATION") != "GENERATION" or not usage:
        return []
    start = _only_name(record, ("startTime", "start_time"))
    names = [_only_name(usage, names) for names in (("input", "promptTokens"), ("output", "completionTokens"))]
    session = _session(*((record, name) for name in ("sessionId", "session_id", "traceId", "trace_id")))
    ended = next((name for name in ("endTime", "end_time") if record.get(name)), None)
    end = None if ended is None else moment_of(record, ended)
    num_input, num_output = whole_of(usage, names[0], 1), whole_of(usage, names[1], 0)
    return [Row(moment_of(record, start), num_input, num_output, session=session, end=end)]


def plain_row(record: Record, segments: Segments) -> list[Row]:
    """The input is the whole prompt; its first prefix_length tokens are shared within its prefix_group."""
    arrival_field, input_field, output_field = (_only_name(record, names) for names in PLAIN_FIELDS)
    arrival, num_input = moment_of(record, arrival_field), whole_of(record, input_field, 1)
    row = Row(arrival, num_input, whole_of(record, output_field, 0), **labels_of(record))
    if all(record.get(field) in (None, "") for field in ("prefix_group", "prefix_length")):
        return [row]
    group, length = whole_of(record, "prefix_group", 0), whole_of(record, "prefix_length", 0)
    if length > num_input:
        raise InputError(f"prefix_length {length} is longer than the whole prompt, {input_field} {num_input}")
    return [row._replace(prefix=(segments[group, length],) if length else ())]


def labels_of(record: Record) -> dict[str, Any]:
    """Optional labels of a request or session, by their names in `Row`."""
    given = [name for name in LABELS if record.get(name) not in (None, "")]
    return {"slo_class" if name == "class" else name: LABELS[name](record, name) for name in given}


def _text(record: Record, field: str) -> str:
    return str(record[field])[:80]


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
    if not 0 <= number < 1e24 or type(value) is bool:  # nanoseconds since 1970 are 2e18
        limits = "below 1e24" if number >= 1e24 else "of at least 0"
        problem = "is missing" if value is None else f"must be a number {limits}, not {str(value)[:80]!r}"
        raise InputError(f"{field} {problem}")
    return number


def whole_of(record: Record, field: str, least: int) -> int:
    """A field that must be a whole number of at least ``least``."""
    value: Any = record.get(field)
    if type(value) is int and least <= value <= LONGEST:
        return value
    is_digits = type(value) is str and len(value) <= 10 and value.isdecimal()
    # Otherwise through float, because spreadsheets and data frames write a column with gaps as 512.0.
    number = int(value) if is_digits else number_of(record, field)
    if not (least <= number <= LONGEST and number == int(number)):
        raise InputError(f"{field} must be a whole number from {least} to {LONGEST}, not {str(value)[:80]!r}")
    return int(number)


LABELS: dict[str, Callable[[Record, str], Any]] = {
    "session": _text, "end": moment_of, "think": number_of, "priority": _signed, "class": _text,
    "adapter": partial(whole_of, least=0),
}  # fmt: skip

# Sessions in recorded files: whole conversations on a line, and turns inferred from their prompts.


def conversation_rows(record: Record, segments: Segments) -> list[Row]:
    """All turns of a conversation: ``turns`` with token counts, or ``messages`` with texts or token counts."""
    arrival = moment_of(record, "arrival") if record.get("arrival") is not None else 0.0
    labels = {**labels_of(record), "session": segments.new_name()}
    labels.pop("think", None)
    prefix: tuple[Segment, ...] = ()
    if record.get("prefix_length") not in (None, "", 0):
        group = whole_of(record, "prefix_group", 0) if record.get("prefix_group") is not None else 0
        prefix = (segments[group, whole_of(record, "prefix_length", 1)],)
    turns = _counted(record, segments) if "turns" in record else _messages(record, segments)
    if not turns:
        raise InputError("the conversation has no answers")
    rows = []
    for pieces, num_output, think in turns:
        prefix, answer = (*prefix, *pieces), segments.new_name()
        if not prefix:
            raise InputError("the conversation begins with an answer")
        num_input = sum(piece.num_tokens for piece in prefix)
        rows.append(Row(arrival, num_input, num_output, prefix, answer, think=think, **labels))
        prefix = (*prefix, Segment(answer, max(1, num_output)))
    return rows


def _counted(record: Record, segments: Segments) -> list[Turn]:
    """``{"input": 60, "output": 200, "think": 8.5}``: new tokens, output tokens, seconds since the previous answer."""
    turns = record["turns"]
    if not (isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns)):
        raise InputError(f"turns must be a list of objects with input and output, not {str(turns)[:80]!r}")
    return [
        (
            [Segment(segments.new_name(), whole_of(turn, "input", 1))],
            whole_of(turn, "output", 0),
            number_of(turn, "think") if turn.get("think") is not None else 0.0,
        )
        for turn in turns
    ]


def _messages(record: Record, segments: Segments) -> list[Turn]:
    """Messages in the format of chat clients; every answer ends a turn, and what follows the last one is not sent."""
    messages = record.get("messages", record.get("conversations"))
    if not (isinstance(messages, list) and all(isinstance(message, dict) for message in messages)):
        raise InputError(f"messages must be a list of objects, not {str(messages)[:80]!r}")
    turns: list[Turn] = []
    pieces: list[Segment] = []
    think = 0.0
    answerers = ("assistant", "gpt", "model", "chatgpt", "bot")
    for message in messages:
        role, text = message.get("role", message.get("from")), message.get("content", message.get("value"))
        tokens = _tokens(message, text)
        think += number_of(message, "think") if message.get("think") is not None else 0.0
        if role in answerers:
            turns.append((pieces, tokens, think))
            pieces, think = [], 0.0
        elif tokens:
            # Equal instructions are equal tokens; user messages are assumed to be unique.
            shared = role == "system" and isinstance(text, str)
            pieces.append(Segment(segments.name_of(text) if shared else segments.new_name(), tokens))
    return turns


def _tokens(message: Record, text: Any) -> int:
    if message.get("tokens") is not None:
        return whole_of(message, "tokens", 0)
    if not isinstance(text, str):
        raise InputError(f"a message must have a text as content, or tokens, not {str(message)[:80]!r}")
    return -(-len(text) // 4)  # characters of a token: English has four to five with today's tokenizers


def with_sessions(rows: Sequence[Row]) -> list[Row]:
    """Infer sessions: a request continues an earlier one if its prefix is all blocks of that one, and no other does."""
    blocks_of = [_whole_blocks(row) for row in rows]
    ends = {blocks[-1] for blocks in blocks_of if blocks}
    following = {pair for blocks in blocks_of for pair in pairwise(blocks) if pair[0] in ends}
    many = {block for block, count in Counter(map(itemgetter(0), following)).items() if count > 1}
    last_of: dict[int, int] = {}
    sessions: list[int] = []
    for number, blocks in enumerate(blocks_of):
        ended = [block for block in blocks if block in last_of]
        session = last_of.pop(ended[-1]) if ended else number
        if blocks and blocks[-1] not in many:
            last_of[blocks[-1]] = session
        sessions.append(session)
    sizes, both = Counter(sessions), zip(rows, sessions, strict=True)
    return [row._replace(session=session) if sizes[session] > 1 else row for row, session in both]


def _whole_blocks(row: Row) -> list[int]:
    contents = [*map(itemgetter(0), row.prefix)]
    return contents[:-1] if contents and row.prefix[-1].num_tokens < MOONCAKE_BLOCK_TOKENS else contents


def with_histories(rows: Sequence[Row], segments: Segments) -> list[Row]:
    """The same if a column names sessions: a prompt that is long enough begins with the previous turn."""
    history: dict[Any, tuple[Segment, ...]] = {}
    found = []
    for row in rows:
        if row.session is None:
            found.append(row)
            continue
        before = history.get(row.session, ())
        prefix = before if sum(piece.num_tokens for piece in before) <= row.num_input else row.prefix
        prefix = prefix or row.prefix
        rest = row.num_input - sum(piece.num_tokens for piece in prefix)
        prefix = (*prefix, Segment(segments.new_name(), rest)) if rest else prefix
        answer = segments.new_name()
        history[row.session] = (*prefix, Segment(answer, max(1, row.num_output)))
        found.append(row._replace(prefix=prefix, answer=answer))
    return found


def following_answers(rows: Sequence[Row], ticks: int) -> list[Row]:
    """The same with those sessions by answers of which it is recorded when calls ended."""
    sessions: dict[Any, list[Row]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    found = []
    for name, calls in sessions.items():
        is_timed = name is not None and all(each.end is not None for each in calls)
        found += after_answers(calls, name, ticks) if is_timed else calls
    return as_soon_as(found)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How one kind of file is recognised and read."""

    label: str
    is_json: bool  # One JSON object per line; otherwise CSV with a header
    fields: tuple[tuple[str, ...], ...]  # Names of required fields, each with its alternatives
    read_rows: Callable[[Record, Segments], list[Row]]
    ticks_per_second: int = 1
    starts_at_zero: bool = True  # Arrivals count from the earliest one, not from the file's own zero
    in_turns: bool = False  # Its sessions always go turn by turn: it does not record when later turns came


def read_trace(path: str | os.PathLike[str], format: str | None = None, *, follow: bool = False) -> Workload:
    """The requests of a trace file, in order of arrival; plain or gzip-compressed.

    ``format`` is one of `FORMATS`; by default it is detected from the first line. Arrivals of exports and traces count
    from their earliest request, and so do dates; plain files of seconds keep their own zero. Rows out of order are
    sorted, equal arrivals keeping the order of the file. Unknown columns are ignored.

    Requests that are turns of one session carry its number: by a column, or in Mooncake's traces where the blocks of
    one prompt are a prefix of a later one. They are sent at their recorded times; with ``follow``, none before the
    previous answer. Files of conversations always go turn by turn.

    Answers end by EOS, as those of real users do (`Request.stops`).

    An output of 0 tokens becomes 1, because an engine always samples one token; the description says how often that
    happened. An input of 0 tokens is rejected.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("trace format", format, FORMATS)
    segments = Segments()
    try:
        with open(path, "rb") as raw, _as_text(raw) as stream:
            trace_format, records = _recognise(path, stream, format)
            rows: list[Row] = []
            for line, record in records:
                try:
                    rows += trace_format.read_rows(record, segments)
                except InputError as error:
                    raise FileFormatError(path, str(error), line) from None
                except (AttributeError, KeyError, StopIteration, TypeError) as odd:
                    problem = f"is not shaped like a row of {trace_format.label}: {type(odd).__name__} {str(odd)[:80]}"
                    raise FileFormatError(path, problem, line) from None
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
    if follow and not trace_format.in_turns:
        rows = following_answers(rows, trace_format.ticks_per_second)
    is_date = rows[0].arrival >= 1e8  # three years: seconds since 1970 and not since the start
    origin = rows[0].arrival if trace_format.starts_at_zero or is_date else 0.0
    in_turns = trace_format.in_turns or follow
    if follow and not trace_format.in_turns and all(row.session is None for row in rows):
        no_sessions = "give it a column session, or blocks as Mooncake's traces have them"
        raise FileFormatError(path, f"has no sessions to follow: {no_sessions}")
    numbers: dict[object, int] = {}
    requests = tuple(_request(row, origin, trace_format.ticks_per_second, numbers) for row in rows)
    num_empty = [row.num_output for row in rows].count(0)
    span = requests[-1].arrival - requests[0].arrival
    empty = f", {num_empty:,} with 0 output tokens taken as 1" if num_empty else ""
    mean_input = fmean(map(attrgetter("num_input"), requests))
    mean_output = fmean(map(attrgetter("num_output"), requests))
    sessions = f" in {format_many(len(numbers), 'session')}" if numbers else ""
    source = f"{trace_format.label} {Path(path).name}"
    lengths = f"input mean {mean_input:,.0f}, output mean {mean_output:,.0f}"
    description = f"{format_many(len(requests), 'request')}{sessions} over {span:,.0f} s, {source}, {lengths}{empty}"
    return Workload(requests, description=description, in_turns=in_turns)


def _request(row: Row, origin: float, ticks: int, numbers: dict[object, int]) -> Request:
    """A row as a request; sessions are numbered in order of appearance."""
    request = Request(
        (row.arrival - origin) / ticks, row.num_input, row.num_output or 1, row.prefix, row.answer,
        session=None if row.session is None else numbers.setdefault(row.session, len(numbers)), think=row.think,
        priority=row.priority, slo_class=row.slo_class, stops=True, after=row.after,
    )  # fmt: skip
    return request if row.adapter is None else asking_for(request, row.adapter)


def _as_text(raw: io.BufferedReader) -> io.TextIOWrapper:
    # Compression is detected by gzip's magic number, so a renamed file reads as well as one that ends in .gz.
    binary = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
    return io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")


def _recognise(path: object, stream: Iterator[str], name: str | None) -> tuple[TraceFormat, Records]:
    """The format called ``name``, or the first that matches the fields of the first record; and all records."""
    head: list[str] = []
    for text in stream:
        head.append(text)
        if text.strip():
            break
    else:
        raise FileFormatError(path, "is empty")
    is_json = FORMATS[name].is_json if name else head[-1].lstrip().startswith(("{", "["))
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
    """One object a line, or a file that is one list of objects, or one object."""
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        record = _object(text)
        if line == 1 and not isinstance(record, dict):
            record = _object(text + "".join(lines))
            if isinstance(record, list) and all(isinstance(each, dict) for each in record):
                yield from enumerate(record, start=1)
                return
        if not isinstance(record, dict):
            raise FileFormatError(path, f"expected one JSON object a line, not {text.strip()[:80]!r}", line)
        yield line, record


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_AZURE_FIELDS = (("TIMESTAMP",), ("ContextTokens",), ("GeneratedTokens",))
_MOONCAKE_FIELDS = (("timestamp",), ("input_length",), ("output_length",))
FORMATS = {
    "azure": TraceFormat("Azure trace", False, _AZURE_FIELDS, azure_row, ticks_per_second=1_000_000),
    "aiperf": TraceFormat(
        "AIPerf trace", True, (("session_id",), *_MOONCAKE_FIELDS[1:]), aiperf_rows, ticks_per_second=1000,
        in_turns=True,
    ),
    "weka": TraceFormat("WEKA trace", True, (("requests",), ("block_size",)), weka_rows, in_turns=True),
    "spans": TraceFormat(
        "OpenTelemetry spans", True, (("resourceSpans", "startTimeUnixNano"),), span_rows, ticks_per_second=10**9
    ),
    "langfuse": TraceFormat(
        "Langfuse export", True, (("startTime", "start_time"), ("usage", "usageDetails", "usage_details")),
        langfuse_rows,
    ),
    "mooncake": TraceFormat(MOONCAKE, True, _MOONCAKE_FIELDS, mooncake_row, ticks_per_second=1000),
    "conversations": TraceFormat(
        "conversations", True, (CONVERSATION_FIELDS,), conversation_rows, starts_at_zero=False, in_turns=True
    ),
    "csv": TraceFormat("trace", False, PLAIN_FIELDS, plain_row, starts_at_zero=False),
    "jsonl": TraceFormat("trace", True, PLAIN_FIELDS, plain_row, starts_at_zero=False),
}  # fmt: skip
