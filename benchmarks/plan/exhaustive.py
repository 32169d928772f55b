"""Ten small questions, each answered by the search and by simulating every candidate: what the search costs too much.

    python benchmarks/plan/exhaustive.py [NUMBER ...]

Every unit that fits is simulated with every number of replicas that is allowed, from the cheapest up, until the whole
price level of the first that keeps the SLO has been looked at: no bound, no estimate and no short run is asked. The
cheapest is the judge.
"""

from __future__ import annotations

import sys
import time
from itertools import groupby
from typing import NamedTuple

from infercast.errors import InfercastError
from infercast.forecast.cost import price_of
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.evaluate import evaluate
from infercast.forecast.plan.question import Question, deployed
from infercast.forecast.plan.search import plan
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload

COUNT = 300
"""Requests of each question, so that thousands of runs take minutes."""


class Asked(NamedTuple):
    """A question in a few words."""

    model: str
    gpus: str
    most: int
    rate: float
    inputs: str
    outputs: str
    slo: str
    weights: tuple[str | None, ...] = (None,)


QUESTIONS = (
    Asked("llama-3.1-8b", "l40s,h100-sxm", 4, 8, "512", "128", "ttft_p99<1s,tpot_p95<40ms"),
    Asked("llama-3.1-8b", "l4,a10,l40s", 6, 4, "lognormal:700:0.9:16:6000", "lognormal:180:0.8:4:999", "tpot_p95<60ms"),
    Asked("llama-3.1-8b", "a100-sxm,h100-sxm", 4, 30, "2000", "100", "ttft_p99<800ms,tpot_mean<30ms"),
    Asked("qwen3-32b", "a100-sxm,h100-sxm", 4, 4, "lognormal:1000:0.7:16:6000", "200", "ttft_p95<500ms,tpot_p95<35ms"),
    Asked("qwen3-32b", "l40s,h200-sxm", 4, 3, "1024", "256", "ttft_p99<2s,tpot_p95<50ms", (None, "fp8")),
    Asked("qwen3-30b-a3b", "a100-sxm,h100-sxm", 4, 12, "1500", "150", "ttft_p99<1s,tpot_p95<30ms"),
    Asked("llama-3.3-70b", "h100-sxm,b200-sxm", 4, 3, "1024", "128", "ttft_p99<1s,tpot_p95<40ms", ("fp8",)),
    Asked("gpt-oss-20b", "l40s,h100-sxm", 3, 20, "700", "200", "e2e_p95<3s"),
    Asked("mistral-small-24b", "l40s,a100-sxm", 6, 5, "3000", "100", "ttft_p90<1s,tpot_p90<60ms", (None, "fp8")),
    Asked("qwen3-8b", "a10,l40s,rtx-4090", 6, 10, "uniform:99:2000", "uniform:20:300", "ttft_p99<1.5s,tpot_p99<60ms"),
)


def question_of(asked: Asked) -> Question:
    """The whole question."""
    gpus = tuple(asked.gpus.split(","))
    found = [price_of(gpu) for gpu in gpus]
    workload = synthetic_workload(
        rate=asked.rate, count=COUNT, input_lengths=asked.inputs, output_lengths=asked.outputs
    )
    return Question(
        asked.model,
        workload,
        parse_slo(asked.slo),
        gpus,
        ("vllm@0.25",),
        prices=tuple(None if each is None else each.per_hour for each in found),
        max_gpus=asked.most,
        quantizations=asked.weights,
    )


def every_candidate(question: Question) -> list[Candidate]:
    """All that fit, the cheapest first; settings that are the engine's own choice anyway come once."""
    kept: dict[object, Candidate] = {}
    for unit in question.units():
        try:
            settings = deployed(question.shared, unit).settings
        except InfercastError:
            continue
        kept.setdefault((unit.stem, settings), unit)
    all_of_them = [
        unit.times(count)
        for unit in kept.values()
        for count in range(1, question.max_gpus // unit.layout.gpus + 1)
        if question.allows(unit.times(count))
    ]
    return sorted(all_of_them, key=lambda each: (question.cost(each), str(each)))


def judge(question: Question) -> tuple[Candidate | None, int]:
    """The cheapest that keeps the SLO (of equals with most headroom), and how many simulations that took."""
    count = 0
    for _, group in groupby(every_candidate(question), key=question.cost):
        rows = [evaluate(candidate, question) for candidate in group]
        count += len(rows)
        held = [row for row in rows if row.holds]
        if held:
            return max(held, key=lambda row: row.headroom or 0.0).candidate, count
    return None, count


def main() -> None:
    """A line of a table for each question."""
    chosen = [int(word) for word in sys.argv[1:]] or range(1, len(QUESTIONS) + 1)
    print("| | model | search | $/h | s | judge | $/h | s | simulations | dearer |")
    print("| --: | --- | --- | --: | --: | --- | --: | --: | --: | --: |")
    for number in chosen:
        question = question_of(QUESTIONS[number - 1])
        started = time.process_time()
        found = plan(question)
        searched = time.process_time()
        best, count = judge(question)
        judged = time.process_time()
        mine = None if found.winner is None else found.winner.candidate
        costs = [0.0 if each is None else question.cost(each) or 0.0 for each in (mine, best)]
        dearer = f"{100 * (costs[0] / costs[1] - 1):.1f} %" if costs[1] else "-"
        print(
            f"| {number} | {question.model} | {mine} | {costs[0]:.2f} | {searched - started:.1f} | {best} "
            f"| {costs[1]:.2f} | {judged - searched:.1f} | {count} | {dearer} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
