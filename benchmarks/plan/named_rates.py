"""Draw plans, and ask `simulate` 3 % below the rate that each names and 3 % above it.

    INFERCAST_TIME_LIMIT=100000 python benchmarks/plan/named_rates.py [--count 20] [--seed 0]

"Above R requests/s it misses the SLO" is right if the command of the winner keeps the SLO with the odds that were asked
for at 0.97 R, and does not at 1.03 R. Exit code 1 if more than one in twenty is wrong.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "robustness"))

from printed import ask, option

MODELS = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "phi-4", "gemma-3-12b", "qwen3-30b-a3b")
EXPERTS = ("qwen3-30b-a3b",)  # Their replicas of one command step together
GPUS = ("l4", "l40s", "a100-sxm", "h100-sxm")
SLOS = ("ttft_p99<1s,tpot_p95<40ms", "ttft_p99<500ms", "tpot_mean<25ms,e2e_p90<10s", "ttft_p95<2s,tpot_p99<60ms")


def drawn(rng: Random) -> tuple[list[str], float, float]:
    """A plan's words without its command, its rate, and the odds that it asks for."""
    rate, odds = rng.choice([0.5, 2, 6, 15]), rng.choice([0.0, 0.5, 0.8, 0.9])
    words = [rng.choice(MODELS), "--slo", rng.choice(SLOS), "--input-len", rng.choice(["lognormal:700:1.0", "1024"])]
    return [*words, "--output-len", rng.choice(["50", "200"])], rate, odds


def keeps(words: list[str], rate: float, odds: float) -> bool:
    """What the command says of a rate."""
    found: dict[str, Any] = ask(["simulate", *words, "--rate", f"{rate:.6g}", "--allow-overload"])
    return bool(found["slo"]["holds"]) and (found.get("slo_odds") or 0.0) >= odds


def judged(rng: Random) -> tuple[str, bool] | None:
    """The winner with its rate, and whether that is right; None where no plan has one that a command stands for."""
    words, rate, odds = drawn(rng)
    gpus, start = ",".join(rng.sample(GPUS, 2)), time.process_time()
    asked = [*words, "--rate", f"{rate}", "--odds", f"{odds}", "--gpu", gpus, "--max-gpus", "4", "--workers", "1"]
    found = ask(["plan", *asked])
    seconds, winner = time.process_time() - start, found.get("winner")
    named = [each for text in found.get("changes", ()) if (each := re.match(r"Above ([\d,.]+) requests/s", text))]
    if not winner or not named or (winner["replicas"] > 1 and words[0] in EXPERTS):
        return None
    most = float(named[0][1].replace(",", ""))
    options = [word for name, value in winner["options"].items() for word in option(name, value)]
    options += ["--data-parallel-size", f"{winner['replicas']}"] if winner["replicas"] > 1 else []
    line = [*words, "--gpu", winner["gpu"], "--engine", winner["engine"], *options]
    is_right = keeps(line, 0.97 * most, odds) and not keeps(line, 1.03 * most, odds)
    return f"{shlex.join(line)} --rate {most:g} (odds {odds}, {seconds:.1f} s of the processor)", is_right


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Hold the rates that plans name against `simulate`.")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, told, wrong = Random(asked.seed), 0, 0
    while told < asked.count:
        found = judged(rng)
        if found is not None:
            told, wrong = told + 1, wrong + (not found[1])
            print("right" if found[1] else "WRONG", found[0], flush=True)
    print(f"{told} plans, {wrong} name a wrong rate")
    return int(20 * wrong > told)


if __name__ == "__main__":
    sys.exit(main())
