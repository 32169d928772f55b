"""vLLM's real scheduler against ours, decision by decision, on random workloads.

    python benchmarks/scheduler/compare.py [--version 0.32] [--mode all|all-pairs|async|...] [--runs 200] [--seed 0]

Needs what vLLM imports (torch on a CPU is enough), best in its own environment; see benchmarks/results/schedulers.md.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import client_cases
import drafting_cases
import flag_cases
import pair_cases
import scheduling_cases
import vllm_tree as tree
from our_scheduler import EndlessError, Ours, turns
from scheduling_cases import Case

CASES = (scheduling_cases, drafting_cases, pair_cases, flag_cases, client_cases)
MODES = {mode: cases for cases in CASES for mode in cases.MODES}
WHAT = ("tokens", "preempted", "free blocks", "loads or images", "stores", "copies waited for")


def draw(version: str, mode: str, seed: int) -> Case:
    """The case of a seed."""
    case: Case = MODES[mode].draw(version, mode, seed)
    return case


def first_difference(case: Case) -> tuple[str | None, int, int]:
    """Where the two part, if they do; steps and preemptions up to there."""
    from offload_engines import OursOffloading, real_offloading  # noqa: PLC0415 - the same
    from vllm_scheduler import Real  # noqa: PLC0415 - imports vLLM, which `vllm_tree.use` has to have prepared

    steps = preemptions = 0
    try:
        engines = (real_offloading, OursOffloading) if case.tier_blocks else (Real, Ours)
        for real, ours in turns(case, *[engine(case) for engine in engines]):
            steps += 1
            preemptions += len(real[1])
            if real != ours:
                parts = [what for what, one, other in zip(WHAT, real, ours, strict=False) if one != other]
                return f"{', '.join(parts)} in step {steps}: vLLM {real}, ours {ours}", steps, preemptions
    except EndlessError:
        # Both agree that nobody gets on: in vLLM 0.25 the first in the queue may need blocks that others behind hold.
        return None, steps, preemptions
    except Exception:
        return traceback.format_exc(limit=-4), steps, preemptions
    return None, steps, preemptions


def run(version: str, mode: str, runs: int, seed: int, show: int) -> dict[str, Any]:
    """Many workloads of one mode."""
    row: dict[str, Any] = {"mode": mode, "equal": 0, "runs": runs, "steps": 0, "preempting": 0}
    started = time.perf_counter()
    for number in range(seed, seed + runs):
        different, steps, preemptions = first_difference(draw(version, mode, number))
        row["steps"] += steps
        row["preempting"] += preemptions > 0
        row["equal"] += different is None
        if different is not None and show > 0:
            show -= 1
            print(f"{mode}, seed {number}: {different}", file=sys.stderr)
    return {**row, "seconds": time.perf_counter() - started}


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", choices=[*tree.WHEELS], default="0.25")
    parser.add_argument("--vllm", type=Path, help="a folder with the package vllm; default: the wheel's, fetched once")
    parser.add_argument(
        "--mode", choices=["all", "all-drafts", "all-pairs", "all-flags", "all-clients", *MODES], default="all"
    )
    parser.add_argument("--runs", type=int, default=200, help="workloads of each mode")
    parser.add_argument("--seed", type=int, default=0, help="number of the first workload")
    parser.add_argument("--show", type=int, default=1, help="differences of each mode to print")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.version, arguments.vllm))
    groups = {"all": MODES, "all-drafts": drafting_cases.MODES, "all-pairs": pair_cases.MODES}
    groups |= {"all-flags": flag_cases.MODES, "all-clients": client_cases.MODES}
    modes = [*groups.get(arguments.mode, [arguments.mode])]
    print(f"vLLM {arguments.version}, workloads from {arguments.seed} on")
    print(f"{'mode':<18} {'equal':>6} {'of':>6} {'steps':>9} {'with preemption':>16}")
    all_equal = True
    for mode in modes:
        if not scheduling_cases.is_run(mode, arguments.version):
            continue
        row = run(arguments.version, mode, arguments.runs, arguments.seed, arguments.show)
        all_equal &= row["equal"] == row["runs"]
        print(
            f"{mode:<18} {row['equal']:>6,} {row['runs']:>6,} {row['steps']:>9,} {row['preempting']:>16,}", flush=True
        )
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
