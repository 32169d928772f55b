"""Sessions in recorded files: whole conversations on a line, and turns that can be told from their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from infercast.errors import InputError
from infercast.serve.workload.request import Segment
from infercast.serve.workload.trace_rows import (
    MOONCAKE_BLOCK_TOKENS,
    Record,
    Row,
    Segments,
    labels_of,
    moment_of,
    number_of,
    whole_of,
)

CHARACTERS = 4
"""Of a token in a text whose tokens nobody counted: English with the tokenizers of today has four to five."""
CONVERSATION_FIELDS = ("turns", "messages", "conversations")
ANSWERERS = ("assistant", "gpt", "model", "chatgpt", "bot")
Turn = tuple[list[Segment], int, float]
"""New pieces of a prompt, tokens of the answer, and seconds before it."""


def conversation_rows(record: Record, segments: Segments) -> list[Row]:
    """All turns of a conversation, which is either ``turns`` of counted tokens or ``messages`` with texts or counts."""
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
    """``{"input": 60, "output": 200, "think": 8.5}``: new tokens, those of the answer, seconds since the one before."""
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
    """Messages as chat clients have them; every answer ends a turn, and what comes after the last one is not sent."""
    messages = record.get("messages", record.get("conversations"))
    if not (isinstance(messages, list) and all(isinstance(message, dict) for message in messages)):
        raise InputError(f"messages must be a list of objects, not {str(messages)[:80]!r}")
    turns: list[Turn] = []
    pieces: list[Segment] = []
    think = 0.0
    for message in messages:
        role, text = message.get("role", message.get("from")), message.get("content", message.get("value"))
        tokens = _tokens(message, text)
        think += number_of(message, "think") if message.get("think") is not None else 0.0
        if role in ANSWERERS:
            turns.append((pieces, tokens, think))
            pieces, think = [], 0.0
        elif tokens:
            # Equal instructions are equal tokens; what people say is taken to be their own.
            shared = role == "system" and isinstance(text, str)
            pieces.append(Segment(segments.name_of(text) if shared else segments.new_name(), tokens))
    return turns


def _tokens(message: Record, text: Any) -> int:
    if message.get("tokens") is not None:
        return whole_of(message, "tokens", 0)
    if not isinstance(text, str):
        raise InputError(f"a message must have a text as content, or tokens, not {str(message)[:80]!r}")
    return -(-len(text) // CHARACTERS)


def with_sessions(rows: Sequence[Row]) -> list[Row]:
    """Rows in order of arrival whose prompts are named in equal blocks, with the sessions that these tell.

    A request goes on with an earlier one if all whole blocks of the earlier prompt are its own beginning, and only one
    way to go on from there is ever seen: a system prompt, after which many go on differently, tells nothing.
    """
    follows: dict[int, int] = {}
    many: set[int] = set()
    for row in rows:
        blocks = _whole_blocks(row)
        for block, after in pairwise(blocks):
            if follows.setdefault(block, after) != after:
                many.add(block)
    last_of: dict[int, int] = {}
    found = []
    for number, row in enumerate(rows):
        blocks = _whole_blocks(row)
        ended = [block for block in blocks if block in last_of]
        session = last_of.pop(ended[-1]) if ended else number
        if blocks and blocks[-1] not in many:
            last_of[blocks[-1]] = session
        found.append(row._replace(session=session))
    sizes: dict[int, int] = {}
    for row in found:
        sizes[row.session] = sizes.get(row.session, 0) + 1
    return [row if sizes[row.session] > 1 else row._replace(session=None) for row in found]


def _whole_blocks(row: Row) -> list[int]:
    return [segment.content for segment in row.prefix if segment.num_tokens == MOONCAKE_BLOCK_TOKENS]


def with_histories(rows: Sequence[Row], segments: Segments) -> list[Row]:
    """The same where a column names sessions: a prompt that has room for it begins with the turn before it."""
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
