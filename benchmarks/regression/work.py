"""Count the work of eight standard runs, without a clock, and say what grew since work.txt was written.

    python benchmarks/regression/work.py               what changed; exit code 1 if anything grew by more than 3 %
    python benchmarks/regression/work.py --write       and make it what is expected from now on
    python benchmarks/regression/work.py --only plan   only runs whose command contains this

Each command runs in a fresh process, one worker. Counted are infercast's modules that it loads, the simulations it
runs, the Python functions of infercast it calls (comprehensions apart, which newer Pythons do not call, and the
reading of data files, which the first run compiles), and the most memory that is allocated at once (as `tracemalloc`
sees it: it differs between Python releases, so it is compared only on the release that work.txt was written with).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType

EXPECTED = Path(__file__).with_name("work.txt")
ALLOWED = 0.03
"""The share by which a count may grow."""
LLAMA = "llama-3.1-8b --gpu h200-sxm"
COMMANDS = {
    "default": f"simulate {LLAMA} --rate 12",
    "sglang": f"simulate {LLAMA} --rate 12 --engine sglang -n 150",
    "prefixes": f"simulate {LLAMA} --rate 16 --prefix-len 2048 --prefix-groups 8 -n 150",
    "replicas": f"simulate {LLAMA} --rate 60 --data-parallel-size 8 -n 200",
    "pools": "disaggregate llama-3.1-8b --prefill-gpu h100-sxm --decode-gpu h200-sxm --rate 12 -n 100",
    "experts": "simulate qwen3-30b-a3b --gpu h100-sxm --concurrency 32 -n 100",
    "plan": f"plan {LLAMA} --max-gpus 1 --rate 4 --slo ttft_p99<1s,tpot_p95<40ms --workers 1 -n 60 --json",
    "estimate": "estimate gemm --m 4096 --n 14336 --k 4096 --dtype bf16 --gpu h200-sxm",
}
SERVE = os.path.join("infercast", "serve", "")
INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
Counts = dict[str, int]


def python() -> str:
    """The release that allocations are compared on."""
    return "{}.{}".format(*sys.version_info)


def count(command: str, *, memory: bool) -> Counts:
    """Run a command in this process, which must be a fresh one, and count; memory makes it slow, so it is asked for."""
    times: dict[CodeType, int] = {}

    def called(frame: FrameType, _: str, __: object) -> None:
        times[frame.f_code] = times.get(frame.f_code, 0) + 1

    sys.argv = ["infercast", *command.split()]
    if memory:
        tracemalloc.start()
    else:
        sys.settrace(called)  # of calls alone: what it returns would be told of lines
    from infercast.cli import main  # noqa: PLC0415 - loading it is a part of the work

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main.run()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{command}: {errors.getvalue()}") from ended
        finally:
            sys.settrace(None)
    if memory:
        return {"peak_kib": tracemalloc.get_traced_memory()[1] // 1024}
    ours = {code: number for code, number in times.items() if f"{os.sep}infercast{os.sep}" in code.co_filename}
    own = {code: number for code, number in ours.items() if not code.co_filename.endswith("bundled.py")}
    simulations = [code for code in own if code.co_name.startswith("simulate") and SERVE in code.co_filename]
    return {
        "modules": sum(name.partition(".")[0] == "infercast" for name in sys.modules),
        "calls": sum(number for code, number in own.items() if code.co_name not in INLINED),
        "simulations": sum(own[code] for code in simulations),
    }


def counted(command: str, *, memory: bool) -> Counts:
    """The same in a process of its own, as repeatable as Python makes it."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}  # all of the work, on any machine
    words = [sys.executable, __file__, "--count", command, *(["--memory"] if memory else [])]
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout))


def measure(commands: Mapping[str, str], *, memory: bool) -> dict[str, Counts]:
    """Counts of each run."""
    found = {}
    for name, command in commands.items():
        print(f"counting {name} ...", file=sys.stderr, flush=True)
        found[name] = counted(command, memory=False) | (counted(command, memory=True) if memory else {})
    return found


def read_expected(path: Path = EXPECTED) -> tuple[str, dict[str, Counts]]:
    """The Python release, and counts of each run."""
    release, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines]
    return release, {name: {each.split("=")[0]: int(each.split("=")[1]) for each in counts} for name, *counts in rows}


def write_expected(found: Mapping[str, Counts], path: Path = EXPECTED) -> None:
    """One run a line, below the Python release."""
    rows = [" ".join([name, *(f"{key}={value}" for key, value in counts.items())]) for name, counts in found.items()]
    path.write_text("\n".join([python(), *rows, ""]), encoding="utf-8")


def changes(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> list[tuple[str, str, int, int, float]]:
    """Run, what is counted, before, now, and the share by which it grew, the largest first."""
    rows = [
        (run, key, was, now[run][key], now[run][key] / was - 1 if was else float(now[run][key] > 0))
        for run, counts in before.items()
        if run in now
        for key, was in counts.items()
        if key in now[run]
    ]
    return sorted(rows, key=lambda row: -row[4])


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Say which standard runs do more work than work.txt says.")
    parser.add_argument("--write", action="store_true", help="write what is counted now to work.txt")
    parser.add_argument("--only", metavar="TEXT", default="", help="only runs whose command contains this")
    parser.add_argument("--count", metavar="COMMAND", help="count one command in this process and print JSON")
    parser.add_argument("--memory", action="store_true", help="with --count: the most memory instead of calls")
    asked = parser.parse_args(words)
    if asked.count:
        print(json.dumps(count(asked.count, memory=asked.memory)))
        return 0
    if asked.write and asked.only:
        parser.error("--write writes all runs; leave out --only")
    commands = {name: command for name, command in COMMANDS.items() if asked.only in f"{name} {command}"}
    release, before = read_expected() if EXPECTED.exists() else (python(), {})
    now = measure(commands, memory=asked.write or release == python())
    rows = changes(before, now)
    for run, key, was, found, grown in rows:
        print(f"{run:10} {key:12} {was:>12,} {found:>12,} {100 * grown:+7.1f} %")
    if asked.write:
        write_expected(now)
        return 0
    return int(any(grown > ALLOWED for *_, grown in rows))


if __name__ == "__main__":
    sys.exit(main())
