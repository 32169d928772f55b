"""What measured files tell of prefixes: conversations whose prompts go on with answers, and tokens that were cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from infercast.engines.measured import Fields
from infercast.errors import FileFormatError
from infercast.serve.workload.request import Request, Segment

SYSTEM = 0
"""The name of what all conversations of a run begin with."""
MOST_TURNS = 1 << 20
"""Names of the turns of one conversation."""


class Hits(NamedTuple):
    """Tokens of prompts that were not computed, over all requests of a run."""

    cached: int
    """From either tier ..."""
    loaded: int
    """... and those of them that came from the host's memory."""


def hits_of(path: Path, rows: list[Any], where: str) -> Hits | None:
    """From the optional fields ``n_cached`` and ``n_external`` of the requests."""
    if not all(isinstance(row, dict) and row.get("n_cached") is not None for row in rows):
        return None
    return Hits(*(sum(_count(path, row, name, where) for row in rows) for name in ("n_cached", "n_external")))


class Talks:
    """Conversations of a run: every prompt is the one before, its answer, and new tokens."""

    def __init__(self, run: Fields) -> None:
        self._path = run.path
        self._system = run.at_least("system_len", 0) if "system_len" in run else 0
        self._said: dict[int, tuple[Segment, ...]] = {}

    def turn(self, request: Request, row: dict[str, Any], place: str) -> Request:
        """A request with the content that it shares with others; turns of a conversation come in order."""
        session, turn, new = (_count(self._path, row, name, place) for name in ("session", "turn", "n_new"))
        said = self._said.get(session, (Segment(SYSTEM, self._system),) if self._system else ())
        name = 1 + 2 * (session * MOST_TURNS + turn)
        said = (*said, Segment(name, new))
        tokens = sum(segment.num_tokens for segment in said)
        if tokens != request.num_input:
            raise FileFormatError(
                self._path, f"{place}.n_in {request.num_input} is not the {tokens} tokens said before and new"
            )
        self._said[session] = (*said, Segment(name + 1, request.num_output))
        return Request(request.arrival, request.num_input, request.num_output, said, answer=name + 1, session=session)


def _count(path: Path, row: dict[str, Any], name: str, place: str) -> int:
    value = row.get(name) or 0
    if type(value) is not int or value < 0:
        raise FileFormatError(path, f"{place}.{name} must be a whole number, not {value!r}")
    return value
