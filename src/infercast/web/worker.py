"""A process that answers questions: lines of JSON in and out, of which the first character says what it is."""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

from infercast.errors import DoesNotFitError, InfercastError
from infercast.units import json_text

ANSWER, ERROR, SAYS = b"A", b"E", b"S"
MOST_BYTES = 6 * 2**30  # Address space of a worker: a question that needs more is an error; the machine stays usable


def reply_to(name: str, document: Mapping[str, Any], tell: Any) -> tuple[bytes, dict[str, Any]]:
    from infercast.web.answers import answer  # noqa: PLC0415 - what is wrong with a worker's start is told, too

    try:
        return ANSWER, answer(name, document, tell)
    except InfercastError as problem:
        found = {"error": {"type": type(problem).__name__, "message": str(problem)}}
        if isinstance(problem, DoesNotFitError):
            found |= {"memory": _memory(document)}
        return ERROR, found
    except MemoryError:
        return ERROR, {"error": {"type": "MemoryError", "message": "not enough memory for this; ask for less"}}
    except RecursionError:
        return ERROR, {"error": {"type": "InputError", "message": "nested too deeply"}}
    except Exception:
        traceback.print_exc()
        return ERROR, {"error": {"type": "InternalError", "message": "this is a bug; the server's log has the details"}}


def _memory(document: Mapping[str, Any]) -> Any:
    """How full the memory would be of what does not fit."""
    from infercast.web.answers import answer  # noqa: PLC0415 - as above

    try:
        return answer("memory", document)["memory"]
    except InfercastError:
        return None


def line_of(kind: bytes, found: Any) -> bytes:
    return kind + json_text(found, separators=(",", ":")).encode() + b"\n"


def limit_memory() -> None:
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _listen(source: BinaryIO, asked: queue.Queue[bytes]) -> None:
    """Pass on lines; the end of them is the end of the server, and of whatever is being answered."""
    for line in source:
        asked.put(line)
    os._exit(0)


def main() -> None:
    limit_memory()
    gc.disable()  # what is loaded now stays
    from infercast.web import answers  # noqa: PLC0415, F401 - before the first question comes

    gc.freeze()
    gc.set_threshold(50_000)  # a simulation makes much and hardly any cycles
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its workers
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    asked: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, asked), daemon=True).start()

    def send(kind: bytes, found: Any) -> None:
        out.write(line_of(kind, found))
        out.flush()

    while True:
        question = json.loads(asked.get())
        send(*reply_to(question["name"], question["document"], lambda words: send(SAYS, words)))


if __name__ == "__main__":
    main()
