"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NoReturn

from infercast import __version__
from infercast.errors import InfercastError


def run() -> None:
    """The console script: an error of ours is one sentence and exit code 2, anything else is a bug."""
    # Matrices are small here, and a pool of threads that waits for large ones keeps a core busy while Python starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(__version__)
        return
    as_json = asks_for_json(arguments)
    try:
        try:
            _answer(arguments)
        finally:
            sys.stdout.flush()  # here, and not when Python ends: a full disk is an error like others
    except InfercastError as problem:
        _fail(type(problem).__name__, str(problem), as_json, problem.details)
    except MemoryError as problem:
        _fail("MemoryError", f"not enough memory for this: {problem or 'ask for less'}", as_json)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
    except OSError as problem:
        # A full disk, a name too long, a folder that may not be read: the machine's no, not a bug.
        with contextlib.suppress(OSError):  # what could not be written is not tried again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = "the answer cannot be written" if problem.filename is None else f"{problem.filename} cannot be used"
        _fail("OSError", f"{what}: {problem.strerror or problem}", as_json)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON, too: asked of the bare words, since they may be what is wrong."""
    pairs = pairwise(arguments)
    return "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairs


def _answer(arguments: list[str]) -> None:
    # At once: a plan takes a second to load, and minutes to search.
    if arguments[:1] == ["plan"] and sys.stderr.isatty() and not {"-h", "--help"} & {*arguments}:
        print("infercast: searching; Ctrl-C gives the best so far", file=sys.stderr, flush=True)
    gc.disable()  # what is loaded now stays: looking for garbage among it takes a tenth of a short run
    from infercast.cli import app as commands  # noqa: PLC0415 - typer takes longer to load than a version to print

    first = next((word for word in arguments if word != "--"), "")
    if first in commands.OLD_NAMES:
        new = commands.OLD_NAMES[first]
        print(f"infercast: the command {first} is {new} now; 1.0 drops the old name", file=sys.stderr)
        arguments = [new if word == first else word for word in arguments]
        first = new
    if first in commands.COMMANDS and commands.COMMANDS[first].engine_flags:
        from infercast.cli.options import translated  # noqa: PLC0415 - other commands need no engine

        arguments, remarks = translated(arguments, commands.COMMANDS[first].own)
        for remark in remarks:
            print(f"infercast: {remark}", file=sys.stderr)
    completing = commands.VARIABLE in os.environ
    if completing:
        first = commands.command_to_complete()
    app = commands.make_app(first if first in commands.COMMANDS else None, completing=completing)
    gc.freeze()
    gc.set_threshold(50_000)  # a simulation makes much and hardly any cycles
    gc.enable()
    app(arguments)


def _fail(kind: str, sentence: str, as_json: bool, details: Mapping[str, object] = MappingProxyType({})) -> NoReturn:
    """Say what is wrong on standard error, in the form that was asked for, and end with code 2."""
    sentence = sentence.replace("\r", " ").replace("\n", " ")  # it may quote what spans several lines
    error = {"type": kind, "message": sentence, **details}
    print(json.dumps({"error": error}) if as_json else f"infercast: {sentence}", file=sys.stderr)
    sys.exit(2)
