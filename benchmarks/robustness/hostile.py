"""Run a thousand hostile command lines and report tracebacks, hangs and anything else than one sentence.

    python benchmarks/robustness/hostile.py [--count 1000] [--seed 0] [--processes 2] [--slow 5]
        [--plain] [--json]

Commands run in this process and its forks, each for at most 30 seconds. Exit code 1 if one misbehaved.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

from commands import hostile_commands, plain_commands
from verdict import Verdict, judge

MOST_MEMORY = 8 << 30


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run hostile command lines and report what misbehaves.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slow", type=float, default=5.0, metavar="SECONDS", help="also list what takes longer")
    parser.add_argument("--json", action="store_true", help="ask every command for JSON, which holds no nan")
    parser.add_argument("--plain", action="store_true", help="commands as people type them")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawn = plain_commands if asked.plain else hostile_commands
        commands = list(drawn(Path(folder), asked.count, asked.seed))
        if asked.json:
            commands = [words if "--json" in words or "--format" in words else [*words, "--json"] for words in commands]
        os.chdir(folder)  # a command that writes beside itself writes there
        context = multiprocessing.get_context("fork")
        with context.Pool(asked.processes, _limit, maxtasksperchild=100) as pool:
            verdicts = list(pool.imap_unordered(judge, commands, chunksize=4))
        report(verdicts, folder, asked.slow)
    return int(any(verdict.problem for verdict in verdicts))


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def report(verdicts: list[Verdict], folder: str, slow: float) -> None:
    """What misbehaved, one of each kind in full, then counts."""
    told: set[tuple[str, str]] = set()
    for verdict in sorted(verdicts, key=lambda each: (each.problem, each.words)):
        last = verdict.details.strip().splitlines()[-1:] or [""]
        if verdict.problem:
            print(f"{verdict.problem}: infercast {_shown(verdict, folder)}")
            if (verdict.problem, last[0][:60]) not in told:
                print("    " + verdict.details.strip().replace("\n", "\n    "))
            told.add((verdict.problem, last[0][:60]))
    for verdict in sorted(verdicts, key=lambda each: -each.seconds):
        if verdict.seconds > slow:
            print(f"{verdict.seconds:.1f} s: infercast {_shown(verdict, folder)}")
    print(f"\n{len(verdicts)} commands: {dict(Counter(verdict.code for verdict in verdicts))} by exit code")
    print(f"misbehaved: {dict(Counter(verdict.problem for verdict in verdicts if verdict.problem))}")


def _shown(verdict: Verdict, folder: str) -> str:
    text = shlex.join(verdict.words).replace(f"{folder}/", "")
    return text if len(text) < 400 else f"{text[:400]}..."


if __name__ == "__main__":
    sys.exit(main())
