"""Write down what SGLang's own scheduler decides, so that ours can be held against it where there is no SGLang.

    python benchmarks/scheduler/sglang_record.py OUT.json.gz [--version 0.5.23] [--count 4] [--sglang DIR]

A few small workloads of each mode, half of them with retraction; without --sglang the wheel is fetched.
tests/serve/test_sglang_decisions.py replays the files.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import sglang_tree as tree
from sglang_cases import MODES, Case, draw
from sglang_turns import Script, turns

LONGEST, FIRST_SEED, MOST_SEEDS = 400, 1_000_000, 60


def record(modes: list[str], count: int) -> list[dict[str, Any]]:
    """Small cases of these modes with the script of their turns."""
    from sglang_scheduler import OutOfTokensError, real  # noqa: PLC0415 - imports SGLang, which `sglang_tree.use` has to have prepared

    found = []
    for mode in modes:
        kept = {True: 0, False: 0}
        for seed in range(FIRST_SEED, FIRST_SEED + MOST_SEEDS):
            case = draw(mode, seed)
            try:
                steps, retracts = script_of(case, real(case))
            except OutOfTokensError:
                continue
            if len(steps) <= LONGEST and kept[retracts] < count // 2:
                kept[retracts] += 1
                found.append({"case": case.as_dict(), "steps": steps})
            if sum(kept.values()) == count:
                break
        print(f"{mode}: {kept[True]} with retraction, {kept[False]} without", flush=True)
    return found


def script_of(case: Case, engine: Any) -> tuple[list[str], bool]:
    """The turns as text, and whether anybody gave way."""
    script, retracts = Script(), False
    for (decision,) in turns(case, engine):
        script.add(decision)
        retracts |= bool(decision[1])
    return script.lines, retracts


def main() -> None:
    """Record, and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sglang", type=Path, help="a folder with the package sglang")
    parser.add_argument("--version", default=tree.VERSION)
    parser.add_argument("--count", type=int, default=10, help="workloads of each mode")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.sglang, arguments.version), arguments.version)
    found = record([*MODES], arguments.count)
    arguments.out.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{len(found)} workloads, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
