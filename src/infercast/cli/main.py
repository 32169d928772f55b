"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NoReturn

from infercast import __version__
from infercast.cli import kept
from infercast.errors import InfercastError
from infercast.units import json_text

VARIABLE = "_INFERCAST_COMPLETE"  # set by a shell's completion script, which then runs the program itself


def main() -> None:
    """The console script: `run`, and an end that takes nothing apart, since the system frees all of it at once."""
    code = 1

    def leave() -> None:
        with contextlib.suppress(Exception):  # streams that are closed, or gone: Python has its ways
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    gc.disable()  # what is loaded now stays: looking for garbage among it takes a tenth of a short run
    atexit.register(leave)  # the first, so that it is called after all others
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


def run() -> None:
    """An error of ours is one sentence and exit code 2, anything else is a bug."""
    # Matrices are small here, and a pool of threads that waits for large ones keeps a core busy while Python starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(__version__)
        return
    as_json = "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    try:
        try:
            _answer(arguments)
        finally:
            sys.stdout.flush()  # here, and not when Python ends: a full disk is an error like others
    except InfercastError as problem:
        _fail(type(problem).__name__, str(problem), as_json, problem.details)
    except MemoryError as problem:
        _fail("MemoryError", f"not enough memory for this: {problem or 'ask for less'}", as_json)
    except KeyboardInterrupt:
        sys.exit(130)  # as shells and typer have it
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
    except OSError as problem:
        # A full disk, a name too long, a folder that may not be read: the machine's no, not a bug.
        with contextlib.suppress(OSError):  # what could not be written is not tried again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = "the answer cannot be written" if problem.filename is None else f"{problem.filename} cannot be used"
        _fail("OSError", f"{what}: {problem.strerror or problem}", as_json)


def _begin_to_search(arguments: list[str]) -> None:
    """Tell at once: a plan takes a second to load, and minutes to search."""
    import signal  # noqa: PLC0415 - others do without

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # It, too, gives the best so far
    if sys.stderr.isatty() and not {"-h", "--help"} & {*arguments}:
        print("infercast: searching; Ctrl-C gives the best so far", file=sys.stderr, flush=True)


def _answer(arguments: list[str]) -> None:
    place = kept.place_of(arguments)
    if place is not None and (known := kept.find(place)) is not None:
        for remark in known.notes:
            print(f"infercast: {remark}", file=sys.stderr)
        sys.stdout.write(known.text)
        return
    if arguments[:1] == ["plan"]:
        _begin_to_search(arguments)
    from infercast.cli.commands import COMMANDS, OLD_NAMES  # noqa: PLC0415 - a version is there before

    first = next((word for word in arguments if word != "--"), "")
    if first in OLD_NAMES:
        new = OLD_NAMES[first]
        print(f"infercast: the command {first} is {new} now; 1.0 drops the old name", file=sys.stderr)
        arguments = [new if word == first else word for word in arguments]
        first = new
    about, remarks = COMMANDS.get(first), list[str]()
    if about is not None and about.engine_flags:
        from infercast.cli.options import translated  # noqa: PLC0415 - other commands need no engine

        arguments, remarks = translated(arguments, about.load().options())
        for remark in remarks:
            print(f"infercast: {remark}", file=sys.stderr)
    call = None if about is None or VARIABLE in os.environ or arguments[0] != first else _plain(about.load(), arguments)
    if call is None:
        from infercast.cli import app  # noqa: PLC0415 - typer takes a while to load

        completing = VARIABLE in os.environ
        if completing:
            first = app.command_to_complete()
        call = partial(app.make_app(first if first in COMMANDS else None, completing=completing), arguments)
    if not gc.isenabled():  # in a process of its own: where answers follow each other, each is garbage for the next
        gc.freeze()
        gc.set_threshold(500_000)  # a simulation, or a trace that is read, makes much and hardly any cycles
        gc.enable()
    with kept.keeping_tables(arguments):
        if place is None:
            sys.exit(call() or 0)
        with kept.copied() as printed:
            try:
                code = call() or 0
            except SystemExit as end:
                code = end.code or 0
    from infercast.forecast.progress import was_cut  # noqa: PLC0415 - loaded by now

    if code == 0 and not was_cut():
        kept.keep(place, remarks, "".join(printed))
    sys.exit(code)


def _plain(command: Callable[..., Any], arguments: Sequence[str]) -> Callable[[], Any] | None:
    if not hasattr(command, "options"):
        return None
    from infercast.cli.options import plain_call  # noqa: PLC0415 - as above

    given = plain_call(command.options(), arguments[1:])
    return None if given is None else partial(command, **given)


def _fail(kind: str, sentence: str, as_json: bool, details: Mapping[str, object] = MappingProxyType({})) -> NoReturn:
    """Say what is wrong on standard error, in the form that was asked for, and end with code 2."""
    sentence = sentence.replace("\r", " ").replace("\n", " ")  # it may quote what spans several lines
    error = {"type": kind, "message": sentence, **details}
    print(json_text({"error": error}) if as_json else f"infercast: {sentence}", file=sys.stderr)
    sys.exit(2)
