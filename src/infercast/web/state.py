"""A state of the page: values of the fields, read from JSON or from a URL, and written as a URL or as a command line.

A state is a plain dictionary with every field of `infercast.web.fields`, so that it travels as JSON. What is equal to
its default is left out of URLs and commands.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from infercast.engines.registry import engine_named
from infercast.errors import InputError, UnknownNameError
from infercast.web.fields import (
    BY_NAME,
    CURVE,
    FIELDS,
    NAMES,
    NUMBER,
    SIMULATE,
    SWITCH,
    WHOLE,
    Field,
)

State = dict[str, Any]

COMMANDS = {CURVE: "sweep"}
"""Questions whose command has another name."""
MOST_NAMES = 32
LONGEST_TEXT = 400
LONGEST_QUERY = 8000
TRUE, FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
DROPPED = "./config.json"
"""What stands for a dropped config in a command."""
BETWEEN = {"settings": ";"}
"""What stands between several names where a name may hold commas itself."""
OTHER_LOADS = ("concurrency", "session_rate")
"""Fields that say how much is sent in place of a rate."""


def default_of(field: Field, given: Mapping[str, Any]) -> Any:
    """What a field is where nobody says; there is no rate where something else says how requests arrive."""
    if field.name == "rate" and (given.get("arrival") == "burst" or any(given.get(name) for name in OTHER_LOADS)):
        return None
    return list(field.default) if field.kind == NAMES else field.default


def read_state(given: Mapping[str, Any]) -> State:
    """A whole state from the fields that are given; an error names the field, its value and what it may be."""
    if not isinstance(given, Mapping):
        raise InputError(f"a state must be an object of fields, not a {type(given).__name__}")
    for name in given:
        if name not in BY_NAME:
            raise UnknownNameError("field", str(name)[:80], BY_NAME)
    read = {name: _checked(BY_NAME[name], value) for name, value in given.items()}
    return {field.name: read.get(field.name, default_of(field, read)) for field in FIELDS}


def from_query(query: str) -> State:
    """The state that a URL's query says; several names have commas between them."""
    if len(query) > LONGEST_QUERY:
        raise InputError(f"a URL's query may have {LONGEST_QUERY} characters, not {len(query)}")
    try:
        pairs = parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=len(FIELDS))
    except ValueError:
        raise InputError(f"a URL's query may have {len(FIELDS)} fields at most") from None
    given: dict[str, Any] = {}
    for name, text in pairs:
        if name not in BY_NAME:
            raise UnknownNameError("field", name[:80], BY_NAME)
        if name in given:
            raise InputError(f"{name} stands in the URL twice; say it once")
        given[name] = _from_text(BY_NAME[name], text)
    return read_state(given)


def to_query(state: Mapping[str, Any]) -> str:
    """The query of the URL that `from_query` reads as the same state."""
    pairs = [(field.name, _as_text(field, state[field.name])) for field in FIELDS if _is_other(field, state)]
    return urlencode(pairs, safe=":,<=/@")


def to_command(state: Mapping[str, Any], question: str = SIMULATE, *, config: bool = False) -> str:
    """The command line that answers the same question; ``config``: of a config.json in place of a known model."""
    words = ["infercast", COMMANDS.get(question, question), DROPPED if config else state["model"]]
    engine = engine_named(state["engine"])
    for field in FIELDS:
        if question not in field.questions or field.name == "model" or _is_idle(field, state):
            continue
        value = state[field.name]
        if field.name == "settings":
            words += [word for each in value for word in (field.option, each)]
        elif field.setting and field.name not in engine.flags.options:
            words += ["--setting", f"{own_name(field.name, state['engine'])}={_as_text(field, value)}"]
        elif field.kind == SWITCH:
            on, _, off = field.option.partition("/")
            words += [on if value else off] if value or off else []
        else:
            words += [field.option, _as_text(field, value)]
    return shlex.join(words)


def own_name(name: str, engine: str) -> str:
    """What an engine calls a setting of ours: the bounds of steps and sequences have a name in each."""
    known, ours = engine_named(engine), engine_named()
    if name in known.flags.options:
        return name
    if name in ours.bounds:
        return known.bounds[ours.bounds.index(name)]
    flag = name.replace("_", "-")
    own = known.flags.called.get(flag)
    instead = f"give {own.replace('-', '_')} in settings" if own else "leave it out"
    raise InputError(f"{name} is no setting of {known.title}; {instead}")


def _is_idle(field: Field, state: Mapping[str, Any]) -> bool:
    """Whether a command is the same without a field: the command line refuses what changes nothing."""
    if field.name == "router":
        return state["router"] is None or state["data_parallel_size"] == 1
    if field.name in ("gpu", "gpus", "rates", "power_limits"):
        return not state[field.name]
    if field.name == "rate":
        return state["rate"] is None
    if field.name == "curve_requests":
        return False
    return not _is_other(field, state)


def _is_other(field: Field, state: Mapping[str, Any]) -> bool:
    return bool(state[field.name] != default_of(field, state))


def _checked(field: Field, value: Any) -> Any:
    """A value of JSON as the field has it."""
    if value is None or value == "":
        if field.kind != NAMES and (field.default is None or field.name == "rate"):
            return None
        raise InputError(f"{field.name} must be {_wanted(field)}, not empty")
    if field.kind == SWITCH:
        if not isinstance(value, bool):
            raise _wrong(field, value)
        return value
    if field.kind in (WHOLE, NUMBER):
        return _number(field, value)
    if field.kind == NAMES:
        if not isinstance(value, (list, tuple)) or len(value) > MOST_NAMES:
            raise _wrong(field, value)
        return [_text(field, each) for each in value]
    return _text(field, value)


def _number(field: Field, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _wrong(field, value)
    if field.kind == WHOLE and value != int(value):
        raise _wrong(field, value)
    if (field.low is not None and value < field.low) or (field.high is not None and value > field.high):
        raise _wrong(field, value)
    return int(value) if field.kind == WHOLE else float(value)


def _text(field: Field, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_TEXT or not value.isprintable():
        raise _wrong(field, value)
    return value


def _from_text(field: Field, text: str) -> Any:
    """What the text of a URL stands for."""
    if text == "":
        return [] if field.kind == NAMES else None
    if field.kind == SWITCH:
        if text.lower() not in (*TRUE, *FALSE):
            raise _wrong(field, text)
        return text.lower() in TRUE
    if field.kind == NAMES:
        return text.split(BETWEEN.get(field.name, ","))
    if field.kind not in (WHOLE, NUMBER):
        return text
    try:
        return int(text) if field.kind == WHOLE else float(text)
    except ValueError:
        raise _wrong(field, text) from None


def _as_text(field: Field, value: Any) -> str:
    if value is None:
        return ""
    if field.kind == SWITCH:
        return "on" if value else "off"
    if field.kind == NAMES:
        return BETWEEN.get(field.name, ",").join(value)
    return f"{value:.12g}" if field.kind == NUMBER else str(value)


def _wanted(field: Field) -> str:
    if field.kind == SWITCH:
        return "true or false"
    if field.kind == NAMES:
        return f"a list of at most {MOST_NAMES} texts"
    if field.kind not in (WHOLE, NUMBER):
        return f"a text of at most {LONGEST_TEXT} characters on one line"
    what = "a whole number" if field.kind == WHOLE else "a number"
    return what if field.low is None else f"{what} from {field.low:g} to {field.high:g}"


def _wrong(field: Field, value: Any) -> InputError:
    shown = repr(value)
    return InputError(f"{field.name} must be {_wanted(field)}, not {shown[:60]}{'...' if len(shown) > 60 else ''}")
