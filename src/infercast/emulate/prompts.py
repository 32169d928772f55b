"""Texts as tokens by a stated rule, and what a prompt shares with earlier ones.

A token is up to five letters, up to three digits, one other sign, or a run of spaces; one space before it belongs to
it. English has about 4.2 characters a token this way, like the tokenizers of today's models. Answers are short words,
each of one token, so a client that sends an answer back sends the same tokens.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any
from zlib import crc32

from infercast.errors import InputError
from infercast.serve.workload.request import Segment

PIECE = re.compile(r" ?[^\W\d_]{1,5}| ?\d{1,3}| ?[^\w\s]|_+|\s+")
WORDS = re.findall(
    r" \w+",
    " the of and to in is that for it as was with be by on not he his but at are this have from or had an they which"
    " one you were her all she there would their we him been has when who will more no if out so what up said its",
)
TEXT_PARTS = ("text", "input_text", "output_text", "tool_result", "refusal", "thinking")
CHUNK = 16  # Tokens of a prompt that are compared together; an engine's blocks have as many or more
IDS = 1 << 17


def pieces(text: str) -> list[str]:
    """The texts of its tokens."""
    found: list[str] = PIECE.findall(text)
    return found


@lru_cache(1 << 16)
def token_id(piece: str) -> int:
    return crc32(piece.encode(errors="surrogatepass")) % IDS


def encode(text: str) -> list[int]:
    return [*map(token_id, PIECE.findall(text))]


TEXTS = {token_id(word): word for word in WORDS}


def decode(ids: Iterable[int]) -> str:
    """A text for tokens: the words of answers are found again, and others stand for what nobody knows."""
    return "".join(TEXTS.get(each) or WORDS[each % len(WORDS)] for each in ids)


def text_of_call(name: str, arguments: str) -> str:
    """How a model writes that it calls a tool."""
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def encode_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """A conversation in a plain template: what tools there are, a token for each role, the content, one for its end."""
    found: list[int] = []
    if tools:
        found = [_special("tools"), *encode("\n".join(json.dumps(each) for each in tools)), _special("end")]
    for message in messages:
        text = _text_of(message.get("content"))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {}) if isinstance(call, Mapping) else {}
            text += text_of_call(str(function.get("name", "")), str(function.get("arguments", "")))
        found += [_special(message["role"]), *encode(text), _special("end")]
    return [*found, _special("assistant")]


def _text_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    if any(not isinstance(part, Mapping) or part.get("type", "text") not in TEXT_PARTS for part in parts):
        raise InputError("only parts of type text are emulated; images and audio are not")
    return "".join(str(part.get("text", part.get("content", ""))) for part in parts)


def _special(name: str) -> int:
    return IDS + crc32(name.encode(errors="surrogatepass")) % 1024


class Contents:
    """Names for what prompts hold: equal tokens after an equal beginning have equal names."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, dict[tuple[int, ...], tuple[Segment, ...]]] = OrderedDict()
        """Segments of prompts with their answers: by a hash of all whole chunks, and by the tokens after these."""

    def segments(self, ids: Sequence[int]) -> tuple[tuple[Segment, ...], int]:
        """A prompt's content, after the longest earlier prompt and answer that it continues; a hash of its chunks."""
        names = _names(ids)
        hashes = [*accumulate(names[: len(ids) // CHUNK], _mixed, initial=0)]
        end, found = 0, tuple[Segment, ...]()
        if not self._known.keys().isdisjoint(hashes):
            end, found = self._longest(ids, hashes)
            names = _names(ids[end:]) if end else names
        sizes = (min(CHUNK, len(ids) - at) for at in range(end, len(ids), CHUNK))
        return (*found, *map(Segment, names, sizes)), hashes[-1]

    def _longest(self, ids: Sequence[int], hashes: list[int]) -> tuple[int, tuple[Segment, ...]]:
        for number in range(len(hashes) - 1, -1, -1):
            begin, known = number * CHUNK, self._known.get(hashes[number], {})
            for end in range(min(begin + CHUNK, len(ids)), begin - 1, -1) if known else ():
                if (found := known.get(tuple(ids[begin:end]))) is not None:
                    return end, found
        return 0, ()

    def remember(self, ids: Sequence[int], whole: int, answer: Iterable[str], segments: tuple[Segment, ...]) -> None:
        """What a later prompt may continue: ``segments`` of a prompt with a hash of each chunk, and its answer."""
        rest = [*ids[len(ids) // CHUNK * CHUNK :], *map(token_id, answer)]
        end = len(rest) // CHUNK * CHUNK
        known = self._known.setdefault(reduce(_mixed, _names(rest[:end]), whole), {})
        most_kept = 50_000  # Prompts with their answers that a later prompt may continue
        for full in (known, self._known):
            if len(full) >= most_kept:
                del full[next(iter(full))]  # type: ignore[arg-type]
        known[tuple(rest[end:])] = segments


def _names(ids: Sequence[int]) -> list[int]:
    return [hash(tuple(ids[at : at + CHUNK])) for at in range(0, len(ids), CHUNK)]


def _mixed(total: int, token: int) -> int:
    return hash((total, token))
