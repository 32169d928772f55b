"""The small questions of exhaustive.py with energy as objective: what the search takes more than the best of all.

    python benchmarks/plan/least_energy.py [NUMBER ...]

Every unit that fits is simulated with every number of replicas that is allowed, with the engine's own settings; the one
that keeps the SLO with the least joules at the wall per output token is the judge.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from exhaustive import QUESTIONS, every_candidate, question_of

from infercast.forecast.plan.evaluate import evaluate
from infercast.forecast.plan.search import plan


def main() -> None:
    """A line of a table for each question."""
    chosen = [int(word) for word in sys.argv[1:]] or range(1, len(QUESTIONS) + 1)
    print("| | model | search | J/token | s | judge | J/token | s | simulations | more |")
    print("| --: | --- | --- | --: | --: | --- | --: | --: | --: | --: |")
    for number in chosen:
        question = replace(question_of(QUESTIONS[number - 1]), objective="energy", settings=((),))
        started = time.process_time()
        found = plan(question)
        searched = time.process_time()
        rows = [evaluate(candidate, question) for candidate in every_candidate(question)]
        best = min((row for row in rows if row.holds), key=question.goal.value, default=None)
        judged = time.process_time()
        if found.winner is None or best is None:
            print(f"| {number} | {question.model} | nothing | | | | | | {len(rows)} | |", flush=True)
            continue
        mine, its = question.goal.value(found.winner), question.goal.value(best)
        more = 100.0 * (mine / its - 1.0)
        print(
            f"| {number} | {question.model} | {found.winner.candidate} | {mine:.3f} | {searched - started:.1f} "
            f"| {best.candidate} | {its:.3f} | {judged - searched:.1f} | {len(rows)} | {more:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
