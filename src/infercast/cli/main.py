"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import gc
import os
import sys

from infercast import __version__
from infercast.cli.commands import COMMANDS
from infercast.errors import InfercastError


def run() -> None:
    """The console script: an error of ours is one sentence and exit code 2, anything else is a bug."""
    # Matrices are small here, and a pool of threads that waits for large ones keeps a core busy while Python starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(__version__)
        return
    gc.disable()  # what is loaded now stays: looking for garbage among it takes a tenth of a short run
    from infercast.cli.app import make_app  # noqa: PLC0415 - typer takes longer to load than a version to print

    try:
        first = next((word for word in arguments if word != "--"), "")
        app = make_app(first if first in COMMANDS else None)
        gc.freeze()
        gc.enable()
        app()
    except InfercastError as problem:
        print(f"infercast: {one_line(problem)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as problem:
        print(f"infercast: not enough memory for this: {problem or 'ask for less'}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
    except OSError as problem:
        # A full disk, a name too long, a folder that may not be read: the machine's no, not a bug.
        where = "" if problem.filename is None else f"{problem.filename}: "
        print(f"infercast: {one_line(f'{where}{problem.strerror or problem}')}", file=sys.stderr)
        sys.exit(2)


def one_line(problem: object) -> str:
    """A sentence, also where it quotes what spans several lines."""
    return str(problem).replace("\r", " ").replace("\n", " ")
