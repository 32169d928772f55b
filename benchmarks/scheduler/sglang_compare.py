"""SGLang's own scheduler against ours, decision by decision, on random workloads.

    python benchmarks/scheduler/sglang_compare.py [--version 0.5.23] [--mode all|overlap|...] [--runs 300] [--seed 0]

Needs torch on a CPU and a few small packages, best in an environment of its own; see benchmarks/results/schedulers.md.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import sglang_tree as tree
from our_prefill_first import ours
from sglang_cases import MODES, Case, draw
from sglang_turns import turns

WHAT = ("tokens", "retracted", "free tokens", "evictable tokens")


def first_difference(case: Case, version: str = tree.VERSION) -> tuple[str | None, int, int, bool]:
    """Where the two part, if they do; steps and retractions up to there, and whether SGLang gave up."""
    from sglang_scheduler import OutOfTokensError, real  # noqa: PLC0415 - imports SGLang, see `sglang_tree.use`

    steps = retractions = 0
    try:
        for theirs, own in turns(case, real(case), ours(case, version)):
            steps += 1
            retractions += len(theirs[1])
            if theirs != own:
                parts = [what for what, one, other in zip(WHAT, theirs, own, strict=True) if one != other]
                return f"{', '.join(parts)} in step {steps}: SGLang {theirs}, ours {own}", steps, retractions, False
    except OutOfTokensError:
        return None, steps, retractions, True
    except Exception:
        return traceback.format_exc(limit=-4), steps, retractions, False
    return None, steps, retractions, False


def run(mode: str, version: str, runs: int, seed: int, show: int) -> dict[str, Any]:
    """Many workloads of one mode."""
    row: dict[str, Any] = {"mode": mode, "equal": 0, "runs": runs, "steps": 0, "retracting": 0, "given up": 0}
    started = time.perf_counter()
    for number in range(seed, seed + runs):
        different, steps, retractions, gave_up = first_difference(draw(mode, number), version)
        row["steps"] += steps
        row["retracting"] += retractions > 0
        row["given up"] += gave_up
        row["equal"] += different is None
        if different is not None and show > 0:
            show -= 1
            print(f"{mode}, seed {number}: {different}", file=sys.stderr)
    return {**row, "seconds": time.perf_counter() - started}


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, help="a folder with the package; default: the wheel's, fetched once")
    parser.add_argument("--version", default=tree.VERSION)
    parser.add_argument("--mode", choices=["all", *MODES], default="all")
    parser.add_argument("--runs", type=int, default=300, help="workloads of each mode")
    parser.add_argument("--seed", type=int, default=0, help="number of the first workload")
    parser.add_argument("--show", type=int, default=1, help="differences of each mode to print")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.sglang, arguments.version), arguments.version)
    modes = [*MODES] if arguments.mode == "all" else [arguments.mode]
    print(f"SGLang {arguments.version}, workloads from {arguments.seed} on")
    print(f"{'mode':<18} {'equal':>6} {'of':>6} {'steps':>9} {'with retraction':>16} {'SGLang gave up':>15}")
    all_equal = True
    for mode in modes:
        row = run(mode, arguments.version, arguments.runs, arguments.seed, arguments.show)
        all_equal &= row["equal"] == row["runs"]
        counts = f"{row['equal']:>6,} {row['runs']:>6,} {row['steps']:>9,}"
        print(f"{mode:<18} {counts} {row['retracting']:>16,} {row['given up']:>15,}", flush=True)
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
