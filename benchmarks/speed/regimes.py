"""How long each kind of run takes: whole processes, processor seconds, the best of a few.

Every regime asks something else of the simulation: plain requests, prompts that share beginnings, caches that run full,
long contexts, windows, several replicas, two pools. The default run is the command with its tables and intervals, all
others are `infercast.simulate` from Python. Traces are read from files; without them their rows are left out.

    python benchmarks/speed/regimes.py [--runs 3] [--only preempt,long] [--azure conv.csv]
        [--mooncake conversation.jsonl] [--mooncake-synthetic synthetic.jsonl] [--json FILE]
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LLAMA = 'deploy("llama-3.1-8b", "h200-sxm")'
EIGHT = 'deploy("llama-3.1-8b", "h200-sxm", data_parallel_size=8)'
TRACE = "read_trace(sys.argv[1])"
PLAIN = 'input_lengths="lognormal:700:0.9:16:8000", output_lengths="lognormal:180:0.8:4:1000"'

TALK = (
    f'session_workload(rate=12, count=20000, turns="uniform:2:10", {PLAIN}, turn_lengths="lognormal:120:0.8:4:4000", '
    "prefix_length=500, prefix_groups=4)"
)


class Regime(NamedTuple):
    """One row of the table: what is called, in the words of the public API."""

    name: str
    title: str
    call: str
    trace: str = ""
    """The option of this script that names its trace."""


def synthetic(rate: float, count: int, lengths: str = PLAIN) -> str:
    """A workload by its rate, at the lengths of the default run unless others are given."""
    return f"synthetic_workload(rate={rate}, count={count}, {lengths})"


REGIMES = (
    Regime("default", "default run, 1,000 requests, command line", ""),
    Regime("plain", "5,000 plain requests", f"simulate({LLAMA}, {synthetic(12, 5000)})"),
    Regime("azure", "Azure's conversations", f"simulate({LLAMA}, {TRACE})", "azure"),
    Regime("mooncake", "Mooncake's conversations", f"simulate({LLAMA}, {TRACE})", "mooncake"),
    Regime(
        "mooncake8",
        "the same on 8 replicas, prefix_aware",
        f'simulate({EIGHT}, {TRACE}, "prefix_aware")',
        "mooncake",
    ),
    Regime(
        "synthetic",
        "Mooncake's synthetic requests, up to 135,000 tokens, qwen3-4b-2507",
        f'simulate(deploy("qwen3-4b-2507", "h200-sxm"), {TRACE})',
        "mooncake_synthetic",
    ),
    Regime(
        "preempt",
        "5,000 of 1,000 + 4,000 tokens at 20/s: the cache is full",
        f"simulate({LLAMA}, {synthetic(20, 5000, 'input_lengths=1000, output_lengths=4000')})",
    ),
    Regime(
        "long",
        "2,000 of about 32,000 tokens",
        f"simulate({LLAMA}, "
        + synthetic(2, 2000, 'input_lengths="lognormal:32000:0.2:1000:100000", output_lengths=200')
        + ")",
    ),
    Regime(
        "prefix",
        "20,000 that share five beginnings of 2,048 tokens",
        f"simulate({LLAMA}, "
        + synthetic(12, 20000, "input_lengths=2500, output_lengths=150, prefix_length=2048, prefix_groups=5")
        + ")",
    ),
    Regime(
        "sessions",
        "20,000 turns of sessions of 2 to 10, 4 system prompts",
        f"simulate({LLAMA}, {TALK})",
    ),
    Regime(
        "sessions8",
        "the same at eight times the rate on 8 replicas, llm_d",
        f'simulate({EIGHT}, {TALK.replace("rate=12", "rate=96")}, "llm_d")',
    ),
    Regime("replicas", "20,000 on 8 replicas", f"simulate({EIGHT}, {synthetic(96, 20000)})"),
    Regime(
        "pools",
        "20,000 on 2 prefill and 2 decode engines",
        f"simulate({LLAMA}, {synthetic(24, 20000)}, prefill={LLAMA}, prefill_instances=2, decode_instances=2)",
    ),
    Regime("windows", "5,000 of gemma-3-27b", f'simulate(deploy("gemma-3-27b", "h200-sxm"), {synthetic(3, 5000)})'),
)
DEFAULT_RUN = ["-m", "infercast", "simulate", "llama-3.1-8b", "--gpu", "h200-sxm", "--rate", "12"]


def processor_seconds(arguments: list[str]) -> float:
    """User and system time of one process, start-up included."""
    # As installed: with compiled files, which some machines are told not to write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}  # all of the work
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"python {' '.join(arguments)} failed with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def chosen(names: str) -> Iterable[Regime]:
    """The regimes that were asked for by name."""
    wanted = set(names.split(",")) if names else {regime.name for regime in REGIMES}
    if unknown := wanted - {regime.name for regime in REGIMES}:
        sys.exit(f"unknown regimes {sorted(unknown)}; known: {', '.join(regime.name for regime in REGIMES)}")
    return (regime for regime in REGIMES if regime.name in wanted)


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="names of regimes, with commas")
    for name in ("azure", "mooncake", "mooncake-synthetic"):
        parser.add_argument(f"--{name}", metavar="FILE", default="", help="a trace to replay")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    seconds: dict[str, float] = {}
    for regime in chosen(arguments.only):
        trace = getattr(arguments, regime.trace) if regime.trace else ""
        if regime.trace and not Path(trace).is_file():
            option = regime.trace.replace("_", "-")
            print(f"{regime.name:10} left out: its trace is not there (--{option} FILE)")
            continue
        words = ["-c", f"import sys; from infercast import *; {regime.call}", trace] if regime.call else DEFAULT_RUN
        seconds[regime.name] = min(processor_seconds(words) for _ in range(arguments.runs))
        print(f"{regime.name:10} {seconds[regime.name]:7.2f} s  {regime.title}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
