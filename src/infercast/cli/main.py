"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import gc
import os
import sys

from infercast import __version__
from infercast.cli import vllm_flags
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
        if first in vllm_flags.COMMANDS:
            arguments, left_out = vllm_flags.without_vllm_flags(arguments)
            if left_out:
                print(f"infercast: no forecast depends on {', '.join(left_out)}; left out", file=sys.stderr)
        app = make_app(first if first in COMMANDS else None)
        gc.freeze()
        gc.enable()
        app(arguments, prog_name="infercast")
    except InfercastError as problem:
        print(f"infercast: {problem}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as problem:
        print(f"infercast: not enough memory for this: {problem or 'ask for less'}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
