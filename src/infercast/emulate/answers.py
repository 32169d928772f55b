"""What answers say: words, JSON by a schema, a call of a tool; cut where a client's stops cut them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infercast.emulate.prompts import WORDS, pieces, text_of_call, token_id

DEEPEST = 12  # Levels of a schema that are filled


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asks of an answer besides its most tokens."""

    seed: int | None = None
    is_greedy: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    keeps_stop: bool = False
    logprobs: int | None = None  # Other tokens named beside each
    schema: Mapping[str, Any] | None = None  # Of the JSON that it has to be, or of a tool's arguments
    choices: tuple[str, ...] = ()  # Texts of which it has to be one
    tool: str | None = None
    echoes: str = ""  # Text before it ...
    is_silent: bool = False  # ... and nothing else


@dataclass(slots=True)
class GeneratedText:
    """An answer as the engine writes it."""

    tokens: list[str]
    reason: str  # Why it ends
    shown: list[str] | None = None  # What a client reads of each token, where that is another text
    stop_reason: str | int | None = None


def answer_words(seed: int, count: int) -> list[str]:
    """The words of an answer, each one token with the space before it."""
    step, first = 1 + seed % 58 | 1, seed // 59
    return [WORDS[(first + number * step) % len(WORDS)] for number in range(count)]


def generate_text(wanted: Wanted, seed: int, natural: int, most: int) -> GeneratedText:
    """``natural``: tokens after which it ends by itself, unless what it has to hold needs more or less."""
    if wanted.schema is None and not wanted.choices:
        tokens = answer_words(seed, min(most, natural))
        found = GeneratedText(tokens, "length" if len(tokens) >= most else "stop")
    else:
        text = _filled(wanted.schema or {}, seed, natural)
        if wanted.choices:
            text = wanted.choices[seed % len(wanted.choices)]
        before = "" if wanted.tool is None else text_of_call(wanted.tool, "").removesuffix("}")
        whole = text if wanted.tool is None else text_of_call(wanted.tool, text)
        tokens = pieces(whole)
        found = GeneratedText(tokens[:most], "stop" if len(tokens) <= most else "length")
        if wanted.tool is not None:
            found.shown = _between(found.tokens, len(before), len(whole) - 1)
            found.reason = "tool_calls" if len(tokens) <= most else "length"
    if wanted.stops or wanted.stop_ids:
        _stop(found, wanted)
    if wanted.is_silent:
        found.shown = [""] * len(found.tokens)
    if wanted.echoes:
        found.shown = [wanted.echoes + (found.shown or found.tokens)[0], *(found.shown or found.tokens)[1:]]
    return found


def _between(tokens: Sequence[str], begin: int, end: int) -> list[str]:
    """What of each token lies between two places of the text."""
    found, at = [], 0
    for token in tokens:
        found.append(token[max(0, begin - at) : max(0, end - at)])
        at += len(token)
    return found


def _stop(answer: GeneratedText, wanted: Wanted) -> None:
    """End it with the first stop, which its text leaves out."""
    longest = max(map(len, wanted.stops), default=0)
    text = ""
    for number, token in enumerate(answer.tokens, start=1):
        before, text = len(text), text + token
        if number < wanted.min_tokens:
            continue
        since = max(0, before - longest + 1)
        hits = [(at, stop) for stop in wanted.stops if (at := text.find(stop, since)) >= 0]
        is_stop_token = token_id(token) in wanted.stop_ids
        if not hits and not is_stop_token:
            continue
        end, reason = min(hits) if hits else (before, token_id(token))
        kept = end + len(str(reason)) if hits and wanted.keeps_stop else end
        answer.tokens = answer.tokens[:number]
        answer.shown = _between(answer.tokens, 0, kept)
        answer.reason, answer.stop_reason = "stop", reason
        return


class _Filler:
    """Values of a schema; the first string without a bound takes up the words that are left over."""

    def __init__(self, root: Mapping[str, Any], seed: int, spare: int) -> None:
        self._root, self._words, self.spare = root, iter(answer_words(seed, 4096)), spare

    def value(self, schema: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - a case each
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return None
        if isinstance(target := schema.get("$ref"), str):
            return self.value(self._at(target), depth + 1)
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        if schema.get("enum"):
            return schema["enum"][len(next(self._words)) % len(schema["enum"])]
        if isinstance(several := schema.get("allOf"), list):
            return self.value(
                {**schema, "allOf": None, **{key: each[key] for each in several for key in each}}, depth + 1
            )
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self.value(schema[name][0], depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) else kind
        return getattr(self, f"_{kind}", self._null)(schema, depth)

    def _at(self, target: str) -> Any:
        found: Any = self._root
        for name in target.removeprefix("#").strip("/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) and name else found
        return found

    def _object(self, schema: Mapping[str, Any], depth: int) -> Any:
        properties = schema.get("properties")
        if not properties:
            return {"answer": self._string({}, depth)} if not depth else {}
        return {name: self.value(each, depth + 1) for name, each in properties.items()}

    def _array(self, schema: Mapping[str, Any], depth: int) -> Any:
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(max(1, int(schema.get("minItems", 1))))]

    def _string(self, schema: Mapping[str, Any], depth: int) -> Any:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        count, self.spare = (1, self.spare) if most is not None else (1 + self.spare, 0)
        text = "".join(next(self._words) for _ in range(count)).strip()
        while len(text) < least:
            text += next(self._words)
        return text[:most]

    def _number(self, schema: Mapping[str, Any], depth: int) -> Any:
        low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
        found = 7 if low is None else low + 1
        return found if high is None or found <= high else high

    def _integer(self, schema: Mapping[str, Any], depth: int) -> Any:
        step = int(schema.get("multipleOf", 1)) or 1
        return int(self._number(schema, depth)) // step * step

    def _boolean(self, schema: Mapping[str, Any], depth: int) -> Any:
        return len(next(self._words)) % 2 == 0

    def _null(self, schema: Mapping[str, Any], depth: int) -> Any:
        return None


def _filled(schema: Mapping[str, Any], seed: int, natural: int) -> str:
    """JSON of a schema, with as many tokens as are asked for where one of its strings can take them."""
    text = json.dumps(_Filler(schema, seed, 0).value(schema))
    lacking = min(4000, natural - len(pieces(text)))
    return json.dumps(_Filler(schema, seed, lacking).value(schema)) if lacking > 0 else text


def logprob(token: str, number: int, other: int = 0) -> float:
    """The logarithm of a probability that a token might have had; those of ``other`` tokens are smaller."""
    return round(-0.0001 * (1 + token_id(f"{token}{number}") % 9000) - 1.5 * other, 4)


def others(token: str, count: int) -> Iterator[str]:
    """The token itself, then others that it was chosen from."""
    first = token_id(token)
    yield token
    for number in range(min(count, len(WORDS)) - 1):
        yield WORDS[(first + number) % len(WORDS)]
