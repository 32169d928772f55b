"""Texts as tokens by a stated rule, and what a prompt shares with earlier ones.

A token is up to five letters, up to three digits, one other sign, or a run of spaces; one space before it belongs to
it. English has about 4.2 characters a token this way, like the tokenizers of today's models. Answers are short words,
each of one token, so a client that sends an answer back sends the same tokens. A tokenizer of Hugging Face's takes the
rule's place where one is given, and its chat template that of the plain one.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from infercast.errors import InputError, need
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


@lru_cache(1 << 16)
def token_id(piece: str) -> int:
    return crc32(piece.encode(errors="surrogatepass")) % IDS


TEXTS = {token_id(word): word for word in WORDS}


def text_of_call(name: str, arguments: str) -> str:
    """How a model writes that it calls a tool."""
    return f'{{"name": "{name}", "arguments": {arguments}}}'


class Rule:
    """Tokens by the stated rule, and conversations in a plain template."""

    words, size = WORDS, IDS + 1024

    def pieces(self, text: str) -> list[str]:
        """The texts of its tokens."""
        found: list[str] = PIECE.findall(text)
        return found

    def id_of(self, piece: str) -> int:
        return token_id(piece)

    def encode(self, text: str) -> list[int]:
        return [*map(token_id, PIECE.findall(text))]

    def decode(self, ids: Iterable[int]) -> str:
        """A text for tokens: the words of answers are found again, and others stand for what nobody knows."""
        return "".join(TEXTS.get(each) or WORDS[each % len(WORDS)] for each in ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), **_: Any) -> list[int]:
        return _plainly(self.encode, messages, tools)


def _plainly(
    encode: Callable[[str], list[int]], messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
) -> list[int]:
    """A conversation: what tools there are, a token for each role, the content, one for its end."""
    found: list[int] = []
    if tools:
        found = [_special("tools"), *encode("\n".join(json.dumps(each["function"]) for each in tools)), _special("end")]
    for message in messages:
        text = _text_of(message.get("content"))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {}) if isinstance(call, Mapping) else {}
            text += text_of_call(str(function.get("name", "")), str(function.get("arguments", "")))
        found += [_special(message["role"]), *encode(text), _special("end")]
    return [*found, _special("assistant")]


class HuggingFace:
    """Tokens and the chat template of a folder with ``tokenizer.json``."""

    def __init__(self, folder: Path) -> None:
        need("--tokenizer", "tokenizer")
        from jinja2.exceptions import TemplateError  # noqa: PLC0415 - both may be missing
        from tokenizers import Tokenizer  # noqa: PLC0415

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._template, self._special = _template_of(folder)
        except Exception as problem:  # the package has no class of its own for what is wrong with a file
            raise InputError(f"--tokenizer {folder} must be a folder with a tokenizer.json: {problem}") from None
        self._problems = (TemplateError, TypeError, ValueError)
        self.size, few = self._tokenizer.get_vocab_size(), 10
        whole = [word for word in WORDS if len(self._ids(word)) == 1]
        self.words = whole if len(whole) > few else WORDS

    def _ids(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False).ids]

    def pieces(self, text: str) -> list[str]:
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        return [text[begin:end] for begin, end in pairwise([0, *ends[:-1], len(text)])]

    @lru_cache(1 << 16)  # noqa: B019 - there is one for a process
    def id_of(self, piece: str) -> int:
        return next(iter(self._ids(piece)), 0)

    def encode(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text).ids]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode([*ids], skip_special_tokens=False))

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), **options: Any
    ) -> list[int]:
        """``options``: what the template may ask for besides."""
        if self._template is None:
            return _plainly(self._ids, messages, tools)
        told = {"messages": [{**each, "content": _text_of(each.get("content"))} for each in messages]}
        options = {"add_generation_prompt": True, **options}
        try:
            return self._ids(self._template.render(**self._special, **told, tools=[*tools] or None, **options))
        except self._problems as problem:
            raise InputError(f"the chat template refuses the conversation: {problem}") from None


Vocabulary = Rule | HuggingFace


def _template_of(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The chat template, None where there is none, and the texts of special tokens that it may write."""
    from jinja2.exceptions import TemplateError  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def refuse(message: str) -> None:
        raise TemplateError(message)

    file, own = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = json.loads(file.read_text("utf-8")) if file.exists() else {}
    text = own.read_text("utf-8") if own.exists() else config.get("chat_template")
    special = {key: each.get("content", "") if isinstance(each, dict) else each for key, each in config.items()}
    if not isinstance(text, str):
        return None, {}
    loaded = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"],
    )  # fmt: skip
    loaded.filters["tojson"] = lambda each, indent=None: json.dumps(each, ensure_ascii=False, indent=indent)
    loaded.globals |= {"raise_exception": refuse, "strftime_now": time.strftime}
    return loaded.from_string(text), {key: each for key, each in special.items() if key.endswith("_token")}


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

    def remember(self, ids: Sequence[int], whole: int, answer: Iterable[int], segments: tuple[Segment, ...]) -> None:
        """What a later prompt may continue: ``segments`` of a prompt with a hash of each chunk, and its answer."""
        rest = [*ids[len(ids) // CHUNK * CHUNK :], *answer]
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
