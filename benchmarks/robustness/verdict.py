"""Run a command line in this process, and say whether it behaved."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

from infercast.cli.main import run

LONGEST, PATIENCE = 30.0, 40  # Seconds of the processor, and times as many by the clock


class TooLongError(BaseException):
    """Raised by the clock, and caught by nobody but us."""


@dataclass(frozen=True)
class Verdict:
    """What a command did; ``problem`` is empty where that is right."""

    words: list[str]
    code: int | None
    seconds: float
    problem: str
    details: str = ""


def judge(words: list[str], longest: float = LONGEST) -> Verdict:
    """Run one command."""
    out, err = io.StringIO(), io.StringIO()
    code, problem, details = _run(words, out, err, longest)
    seconds, problem = problem[0], problem[1] or _wrong(words, code, out.getvalue(), err.getvalue())
    return Verdict(words, code, seconds, problem, details or err.getvalue()[-2000:])


def _run(
    words: list[str], out: io.StringIO, err: io.StringIO, longest: float
) -> tuple[int | None, tuple[float, str], str]:
    """Exit code, seconds, what went wrong, and where."""
    before = sys.argv, signal.signal(signal.SIGALRM, _stop), signal.signal(signal.SIGPROF, _stop)
    sys.argv = ["infercast", *words]
    code: int | None = 0
    problem = details = ""
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            # Of the processor: other programs do not count. Who only waits is stopped by the clock, far later.
            signal.setitimer(signal.ITIMER_PROF, longest)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE * longest)
            try:
                run()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except TooLongError:
        code, problem, details = None, f"took longer than {longest:g} s", traceback.format_exc(limit=-6)
    except BaseException as bug:  # a traceback is what we look for, whatever its kind
        code, problem, details = None, f"traceback: {type(bug).__name__}", traceback.format_exc(limit=-4)
    finally:
        sys.argv = before[0]
        signal.signal(signal.SIGALRM, before[1])
        signal.signal(signal.SIGPROF, before[2])
    return code, (time.process_time() - start, problem), details


def _stop(*_: Any) -> None:
    raise TooLongError


def _wrong(words: list[str], code: int | None, out: str, err: str) -> str:
    """What is not as it should be in what was printed."""
    if code not in (0, 2):
        return f"exit code {code}"
    if "Traceback" in err or "Warning" in err:
        return "a warning or a traceback on standard error"
    if code == 2 and out:
        return "refused, and yet something on standard output"
    if code == 2 and not _is_refusal(err, "--json" in words):
        return "refused by other than one sentence"
    if code == 0 and "--json" in words and not {"--help", "-h"} & set(words):
        try:
            json.loads(out, parse_constant=_refuse)
        except ValueError:
            return "--json printed no JSON"
    return ""


def _is_refusal(err: str, as_json: bool) -> bool:
    """Whether it is one sentence, or one line of JSON with one; notes of what was left out may come before it."""
    *notes, last = err.splitlines() or [""]
    if as_json:
        try:
            last = f"infercast: {json.loads(last)['error']['message']}"
        except (ValueError, KeyError, TypeError):
            return False
    return all(line.startswith("infercast: ") for line in (*notes, last)) and "\n" not in last and len(last) > 20


def _refuse(constant: str) -> None:
    raise ValueError(constant)
