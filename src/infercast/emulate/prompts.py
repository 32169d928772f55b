"""Texts as tokens by a stated rule, and what a prompt shares with earlier ones.

A token is up to five letters, up to three digits, one other sign, or a run of spaces; one space before it belongs to
it. English has about 4.2 characters a token this way, like the tokenizers of today's models. Answers are short words,
each of one token, so a client that sends an answer back sends the same tokens.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
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
CHUNK = 16  # Tokens of a prompt that are compared together; an engine's blocks have as many or more
IDS = 1 << 17


def encode(text: str) -> list[int]:
    return [crc32(piece.encode(errors="surrogatepass")) % IDS for piece in PIECE.findall(text)]


WORD_IDS = {word: encode(word)[0] for word in WORDS}


def encode_chat(messages: Any) -> list[int]:
    """A conversation in a plain template: a token for each role, the content, a token for its end."""
    if not isinstance(messages, list) or not messages:
        raise InputError("messages must be a list of at least one message")
    found: list[int] = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError('every message must be an object with a "role" and a "content"')
        found += [_special(message["role"]), *encode(_text_of(message.get("content"))), _special("end")]
    return [*found, _special("assistant")]


def _text_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        if any(part.get("type", "text") not in ("text", "input_text") for part in content):
            raise InputError("only parts of type text are emulated; images and audio are not")
        return "".join(str(part.get("text", "")) for part in content)
    raise InputError("the content of a message must be a text or a list of parts")


def _special(name: str) -> int:
    return IDS + crc32(name.encode(errors="surrogatepass")) % 1024


def answer_words(seed: int, count: int) -> list[str]:
    """The words of an answer, each one token with the space before it."""
    step, first = 1 + seed % 58 | 1, seed // 59
    return [WORDS[(first + number * step) % len(WORDS)] for number in range(count)]


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
        rest = [*ids[len(ids) // CHUNK * CHUNK :], *map(WORD_IDS.__getitem__, answer)]
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
