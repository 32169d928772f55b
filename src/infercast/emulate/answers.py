"""What answers say: words, JSON by a schema, a call of a tool; cut where a client's stops cut them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Any, ClassVar

from infercast.emulate.prompts import WORDS, Rule, Vocabulary, text_of_call, token_id
from infercast.errors import InputError

DEEPEST = 12  # Levels of a schema that are filled
RULE = Rule()


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
    pattern: str | None = None  # A regular expression that it has to match
    words: tuple[str, ...] = ()  # Of which it is made; none: of all
    banned: frozenset[str] = frozenset()
    cache_salt: str = ""  # Only prompts with the same one share their cache
    prompt: Sequence[int] = ()  # Where something is told of its tokens ...
    prompt_logprobs: int | None = None  # ... as many for each ...
    returns_ids: bool = False  # ... or they themselves, and those of the answer
    echoes: str = ""  # Text before it ...
    is_silent: bool = False  # ... and nothing else

    @property
    def tells_of_prompt(self) -> bool:
        return self.returns_ids or self.prompt_logprobs is not None


@dataclass(slots=True)
class GeneratedText:
    """An answer as the engine writes it."""

    tokens: list[str]
    reason: str  # Why it ends
    shown: list[str] | None = None  # What a client reads of each token, where that is another text
    stop_reason: str | int | None = None


def answer_words(seed: int, count: int, words: Sequence[str] = WORDS) -> list[str]:
    """The words of an answer, each one token with the space before it."""
    step, first = 1 + seed % 58 | 1, seed // 59
    return [words[(first + number * step) % len(words)] for number in range(count)]


def generate_text(
    wanted: Wanted, seed: int, natural: int, most: int, vocabulary: Vocabulary = RULE
) -> GeneratedText:  # fmt: skip
    """``natural``: tokens after which it ends by itself, unless what it has to hold needs more or less."""
    if wanted.schema is None and not wanted.choices and wanted.pattern is None:
        words = [each for each in wanted.words or vocabulary.words if each not in wanted.banned]
        tokens = answer_words(seed, min(most, natural), words or vocabulary.words)
        found = GeneratedText(tokens, "length" if len(tokens) >= most else "stop")
    else:
        if wanted.choices:
            text = wanted.choices[seed % len(wanted.choices)]
        elif wanted.pattern is not None:
            text = text_of_pattern(wanted.pattern)
        else:
            text = _filled(wanted.schema or {}, seed, natural, vocabulary)
        before = "" if wanted.tool is None else text_of_call(wanted.tool, "").removesuffix("}")
        whole = text if wanted.tool is None else text_of_call(wanted.tool, text)
        tokens = vocabulary.pieces(whole)
        found = GeneratedText(tokens[:most], "stop" if len(tokens) <= most else "length")
        if wanted.tool is not None:
            found.shown = _between(found.tokens, len(before), len(whole) - 1)
            found.reason = "tool_calls" if len(tokens) <= most else "length"
    if wanted.stops or wanted.stop_ids:
        _stop(found, wanted, vocabulary)
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


def _stop(answer: GeneratedText, wanted: Wanted, vocabulary: Vocabulary) -> None:
    """End it with the first stop, which its text leaves out."""
    longest = max(map(len, wanted.stops), default=0)
    text = ""
    for number, token in enumerate(answer.tokens, start=1):
        before, text = len(text), text + token
        if number < wanted.min_tokens:
            continue
        since = max(0, before - longest + 1)
        hits = [(at, stop) for stop in wanted.stops if (at := text.find(stop, since)) >= 0]
        is_stop_token = bool(wanted.stop_ids) and vocabulary.id_of(token) in wanted.stop_ids
        if not hits and not is_stop_token:
            continue
        end, reason = min(hits) if hits else (before, vocabulary.id_of(token))
        kept = end + len(str(reason)) if hits and wanted.keeps_stop else end
        answer.tokens = answer.tokens[:number]
        answer.shown = _between(answer.tokens, 0, kept)
        answer.reason, answer.stop_reason = "stop", reason
        return


class _Filler:
    """Values of a schema; the first string without a bound takes up the words that are left over."""

    FORMATS: ClassVar[Mapping[str, str]] = {
        "date": "2026-05-17", "time": "09:30:00Z", "date-time": "2026-05-17T09:30:00Z", "duration": "PT5M",
        "email": "her@example.com", "uri": "https://example.com/she", "hostname": "example.com", "ipv4": "192.0.2.7",
        "ipv6": "2001:db8::7", "uuid": "6f1c3a52-8b1e-4f0a-9c27-3d5e8a9b7c11",
    }  # fmt: skip

    def __init__(self, root: Mapping[str, Any], seed: int, spare: int, words: Sequence[str]) -> None:
        self._root, self._words, self.spare, self._room = root, cycle(answer_words(seed, 4096, words)), spare, 50_000
        self._turn = 0  # Of an item that may be none of those before it

    def value(self, schema: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - a case each
        self._room -= 1 + int(schema.get("minLength", 0)) // 8 if isinstance(schema, Mapping) else 1
        if self._room < 0:
            raise ValueError("it asks for too much")
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return None
        if isinstance(target := schema.get("$ref"), str):
            return self.value(self._at(target), depth + 1)
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        if schema.get("enum"):
            return schema["enum"][(self._turn + len(next(self._words))) % len(schema["enum"])]
        if isinstance(several := schema.get("allOf"), list):
            return self.value(self._merged(schema, *several), depth + 1)
        for name in ("anyOf", "oneOf"):
            if schema.get(name):  # deep down the last one, which ends what refers to itself
                return self.value(self._merged(schema, schema[name][-1 if depth > DEEPEST // 2 else 0]), depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) else kind
        return getattr(self, f"_{kind}", self._null)(schema, depth)

    def _merged(self, schema: Mapping[str, Any], *others: Any) -> dict[str, Any]:
        found = {key: each for key, each in schema.items() if key not in ("allOf", "anyOf", "oneOf")}
        for other in others:
            more = self._at(other["$ref"]) if "$ref" in other else other
            both = {key: {**found.get(key, {}), **more[key]} for key in ("properties", "$defs") if key in more}
            found |= {**more, **both, "required": [*found.get("required", ()), *more.get("required", ())]}
        return found

    def _at(self, target: str) -> Any:
        found: Any = self._root
        for name in target.removeprefix("#").strip("/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) and name else found
        return found

    def _object(self, schema: Mapping[str, Any], depth: int) -> Any:
        known, more = schema.get("properties") or {}, schema.get("additionalProperties", True)
        required = [each for each in schema.get("required", ()) if each not in known]
        given = [each for each in known if depth <= DEEPEST // 2 or each in schema.get("required", ())]
        names = [*given, *required, *(["answer"] if not known and not depth and more else [])]
        lacking = int(schema.get("minProperties", 0)) - len(names)
        names += [f"key_{number}" for number in range(lacking)]
        others = more if isinstance(more, Mapping) else {"type": "string"}
        return {name: self.value(known.get(name, others), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> Any:
        first, least = schema.get("prefixItems", ()), int(schema.get("minItems", 0))
        count = min(int(schema.get("maxItems", 1 << 16)), max(least, len(first), int(depth <= DEEPEST // 2)))
        found = []
        for number in range(count):
            self._turn = number if schema.get("uniqueItems") else 0
            found.append(self.value(first[number] if number < len(first) else schema.get("items", {}), depth + 1))
        self._turn = 0
        return found

    def _string(self, schema: Mapping[str, Any], depth: int) -> Any:
        if "pattern" in schema:
            return text_of_pattern(schema["pattern"])
        if schema.get("format") in self.FORMATS:
            return self.FORMATS[schema["format"]]
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        count, self.spare = (1, self.spare) if most is not None else (1 + self.spare, 0)
        text = "".join(next(self._words) for _ in range(count)).strip()
        while len(text) < least:
            text += next(self._words)
        return text[:most]

    def _number(self, schema: Mapping[str, Any], depth: int, *, is_whole: bool = False) -> Any:
        names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        least, above, most, below = (None if schema.get(each) is None else Fraction(schema[each]) for each in names)
        low = max((each for each in (least, above) if each is not None), default=None)
        high = min((each for each in (most, below) if each is not None), default=None)
        step = Fraction(str(schema.get("multipleOf", int(is_whole))))
        step = Fraction(step.numerator) if is_whole else step
        start = low if low is not None else Fraction(7) if high is None else min(Fraction(7), high)
        by = step or (Fraction(1) if low is None or high is None else (high - low) / 2)
        tried = [(start // step * step if step else start) + (self._turn + turn) * by for turn in (1, 2, 0, -1)]
        fits = (
            each for each in tried
            if (low is None or each >= low) and each != above and (high is None or each <= high) and each != below
        )  # fmt: skip
        found = next(fits, start)
        return int(found) if is_whole or found.denominator == 1 else float(found)

    def _integer(self, schema: Mapping[str, Any], depth: int) -> Any:
        return self._number(schema, depth, is_whole=True)

    def _boolean(self, schema: Mapping[str, Any], depth: int) -> Any:
        return (self._turn + len(next(self._words))) % 2 == 0

    def _null(self, schema: Mapping[str, Any], depth: int) -> Any:
        return None


def _filled(schema: Mapping[str, Any], seed: int, natural: int, vocabulary: Vocabulary) -> str:
    """JSON of a schema, with as many tokens as are asked for where one of its strings can take them."""

    def text(spare: int) -> str:
        return json.dumps(_Filler(schema, seed, spare, vocabulary.words).value(schema), ensure_ascii=False)

    try:
        short = text(0)
        lacking = min(4000, natural - len(vocabulary.pieces(short)))
        return text(lacking) if lacking > 0 else short
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as problem:
        raise InputError(f"the schema cannot be answered: {problem}") from None


def text_of_pattern(pattern: str) -> str:
    """A short text that a regular expression matches."""
    try:
        found = "".join(_matching(re._parser.parse(pattern)))  # type: ignore[attr-defined]
        if re.search(pattern, found) is None:
            raise ValueError("it looks around, which is not emulated")
    except (re.error, ValueError, RecursionError, OverflowError, TypeError) as problem:
        raise InputError(f"the pattern {str(pattern)[:60]!r} cannot be answered: {problem}") from None
    return found


def _matching(parsed: Any) -> Iterator[str]:
    """Texts for the parts of a parsed expression; one character for a class, repeated as seldom as may be."""
    for kind, given in parsed:
        name = str(kind)
        if name == "LITERAL":
            yield chr(given)
        elif name in ("ANY", "NOT_LITERAL", "IN"):
            one = re._compiler.compile(type(parsed)(parsed.state, [(kind, given)]))  # type: ignore[attr-defined]
            yield next(each for each in map(chr, (*range(97, 127), *range(32, 97))) if one.fullmatch(each))
        elif name in ("SUBPATTERN", "BRANCH"):
            yield from _matching(given[3] if name == "SUBPATTERN" else given[1][0])
        elif "REPEAT" in name:
            least, most, inner = given
            yield from [*_matching(inner)] * min(4096, max(least, min(1, int(most))))


def logprob(token: str, number: int, other: int = 0) -> float:
    """The logarithm of a probability that a token might have had; those of ``other`` tokens are smaller."""
    return round(-0.0001 * (1 + token_id(f"{token}{number}") % 9000) - 1.5 * other, 4)


def others(token: str, count: int) -> Iterator[str]:
    """The token itself, then others that it was chosen from."""
    first = token_id(token)
    yield token
    for number in range(min(count, len(WORDS)) - 1):
        yield WORDS[(first + number) % len(WORDS)]
