"""A pasted command that starts an engine: its flags in the spelling of our options, or left out, or refused.

Some change nothing that is forecast (ports, names, parsers): they are left out, and named on standard error. Others
would change the answer and are not modelled: they are refused by name. Which is which, the engine knows.
"""

from __future__ import annotations

from collections import deque

from infercast.engines.engine import Flags
from infercast.engines.registry import engine_named
from infercast.errors import InputError, UnknownNameError


def translated(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's words with the engine's spelling made ours, and the flags that were left out.

    As to the engines ``--max_num_seqs`` is ``--max-num-seqs``.
    """
    flags = _flags(arguments)
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
        name = flags.other_names.get(name, name)
        if name in flags.not_modelled:
            raise InputError(f"--{name} is not modelled: {flags.not_modelled[name]}; leave it out to forecast without")
        if name.removeprefix("no-") in flags.switches or name in flags.values:
            left_out.append(f"--{name}")
            if name in flags.values and not equals and words:
                words.popleft()
        elif name in flags.settings:
            given = value if equals else words.popleft() if words else ""
            kept += ["--setting", f"{flags.settings[name]}={given}"]
        elif name in flags.lists and not equals:
            numbers = []
            while words and words[0].replace(",", "").isdigit():
                numbers.append(words.popleft())
            kept += [f"--{name}", ",".join(numbers)]
        else:
            kept.append(f"--{name}{equals}{value}")
    return kept, left_out


def _flags(arguments: list[str]) -> Flags:
    """Those of the engine that the words name; of one that nobody knows, the command will tell."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    named = None
    for word, after in pairs:
        if word == "--engine" or word.startswith("--engine="):
            named = word.partition("=")[2] or after
    try:
        return engine_named(named).flags
    except UnknownNameError:
        return engine_named().flags
