"""An engine's own flags on the command line of infercast.

Some change nothing that is forecast (ports, names, parsers): they are left out, and named on standard error. Others
would change the answer and are not modelled: they are refused by name. Which is which, the engine knows.
"""

from __future__ import annotations

from collections import deque

from infercast.engines.base import FAMILIES, Engine, engine_named, flags_by_name
from infercast.engines.settings import Flags
from infercast.errors import InputError


def translated(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's words with the engine's spelling made ours, and the flags that were left out.

    As to the engines ``--max_num_seqs`` is ``--max-num-seqs``.
    """
    named = _named(arguments)
    engine = _engine(named)
    kept: list[str] = []
    left_out: list[str] = []
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("--") or word == "--":
            kept.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-")
        if not _leave_out(name, bool(equals), words, engine.flags, left_out):
            kept += _kept(name, value if equals else None, words, engine, named)
    return kept, left_out


def _leave_out(name: str, has_value: bool, words: deque[str], flags: Flags, left_out: list[str]) -> bool:
    """Whether a flag changes nothing; the word behind it goes with it."""
    if name.removeprefix("no-") not in flags.switches and name not in flags.values:
        return False
    left_out.append(f"--{name}")
    if name in flags.values and not has_value and words:
        words.popleft()
    return True


def _kept(name: str, value: str | None, words: deque[str], engine: Engine, named: list[str]) -> list[str]:
    """A flag that counts, as an option of ours or as a setting of the engine."""
    flags = engine.flags
    if name in flags.not_modelled:
        raise InputError(f"--{name} is not modelled: {flags.not_modelled[name]}; leave it out to forecast without")
    setting = flags.settings.get(name)
    switch = flags.settings.get(name.removeprefix("no-"), "")
    if setting is None and value is None and engine.setting_types.get(switch) is bool:
        return ["--setting", f"{switch}=off"]
    name = flags.other_names.get(name, name)
    if value is None and (setting or name) in _lists(flags):
        numbers = []
        while words and words[0].replace(",", "").isdigit():
            numbers.append(words.popleft())
        value = ",".join(numbers)
        if setting is None:
            return [f"--{name}", value]
    if setting is not None:
        if value is None:
            value = "on" if engine.setting_types.get(setting) is bool else words.popleft() if words else ""
        return ["--setting", f"{setting}={value}"]
    _refuse_foreign(name, engine, named)
    return [f"--{name}" if value is None else f"--{name}={value}"]


def _lists(flags: Flags) -> set[str]:
    """Names of options, or of settings, that take several values."""
    return {flags.settings.get(name, name) for name in flags.lists}


def _refuse_foreign(name: str, engine: Engine, named: list[str]) -> None:
    """Refuse a flag that another engine has and this one has not."""
    for family in FAMILIES:
        if family != engine.family and name in flags_by_name(family):
            other = engine_named(family)
            own = engine.flags.called.get(name)
            called = f"{engine.title} calls it --{own}" if own else f"{engine.title} has no such flag"
            if any(each.partition("@")[0] == other.family for each in named):
                raise InputError(
                    f"--{name} is a flag of {other.title}, and flags are for the engine that is named first; {called}"
                )
            raise InputError(f"--{name} is a flag of {other.title}: add --engine {other.family}; {called}")


def _named(arguments: list[str]) -> list[str]:
    """The engines that the words name, with commas between them."""
    named = ""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--engine" or word.startswith("--engine="):
            named = word.partition("=")[2] or after
    return [part.strip() for part in named.split(",") if part.strip()]


def _engine(named: list[str]) -> Engine:
    """The engine that the flags are for: the first named; an unknown one is the command's to refuse."""
    try:
        return engine_named(named[0] if named else None)
    except InputError:
        return engine_named()
