"""Seconds of drawn questions over all commands, and how good their answers are against runs twenty times as long.

    python benchmarks/speed/drawn_questions.py [--count 300] [--seed 0] [--processor-time]
    python benchmarks/speed/drawn_questions.py --against 20 [--count 60]

The first prints the 50th and 95th percentile and the longest of first and whole answers, by command; a first answer is
that of the page without intervals. With ``--processor-time`` the clock of time limits is the processor time of one
core, for machines that are busy with other things. The second compares answers of ``simulate`` within the usual time
with longer runs: how many medians, rates and costs are within 3 %, how many p99 inside their interval of luck, and how
many say the same word.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

import infercast
from infercast.cli import main as cli
from infercast.errors import InfercastError
from infercast.forecast import parallel, progress
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.steady import LATE
from infercast.forecast.system import system_of
from infercast.forecast.uncertainty import steady_luck
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.web.answers import answer

PLACES = (
    *(("llama-3.1-8b", "h100-sxm", 1), ("llama-3.1-8b", "l40s", 1), ("qwen2.5-7b", "a100-sxm-80gb", 1)),
    *(("qwen3-32b", "h200-sxm", 1), ("qwen3-32b", "h100-sxm", 2), ("llama-3.1-70b", "h100-sxm", 4)),
    *(("gpt-oss-120b", "h100-sxm", 1), ("qwen3-30b-a3b", "h100-sxm", 1), ("gemma-3-27b", "h200-sxm", 1)),
    *(("deepseek-v3", "h200-sxm", 8), ("qwen2.5-0.5b", "l4", 1)),
)
COMMANDS = {
    **{"simulate": 12, "sweep": 4, "layouts": 2, "explain-command": 2, "speculate": 1, "energy": 1, "capacity": 1},
    **{"disaggregate": 2, "plan": 3},
}  # How often each is asked, relative to each other
LOADS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.2)  # Shares of what can be served
SLO = "ttft_p95<2s,tpot_p95<80ms"
LIMIT = 10.0


def capacities() -> Callable[[str, str, int], float]:
    known: dict[tuple[str, str, int], float] = {}

    def of(model: str, gpu: str, size: int) -> float:
        if (place := (model, gpu, size)) not in known:
            system = system_of(infercast.deploy(model, gpu, tensor_parallel_size=size))
            known[place] = most_requests_per_second(system, synthetic_workload(rate=1.0))
        return known[place]

    return of


def questions(count: int, seed: int) -> Iterator[list[str]]:
    draw, most = random.Random(seed), capacities()
    for _ in range(count):
        (command,) = draw.choices([*COMMANDS], [*COMMANDS.values()])
        model, gpu, size = draw.choice(PLACES)
        rate = f"{draw.choice(LOADS) * most(model, gpu, size):.2g}"
        sized = [f"--tensor-parallel-size={size}"]
        yield {
            "simulate": [command, model, "--gpu", gpu, *sized, "--rate", rate, "--allow-overload"],
            "sweep": [command, model, "--gpu", gpu, *sized, "--rates", f"{float(rate) / 8:.2g}:{rate}:7"],
            "layouts": [command, model, "--gpu", gpu, "--rate", rate],
            "explain-command": [command, f"vllm serve {model} -tp {size}", "--gpu", gpu, "--rate", rate],
            "speculate": [command, model, "--gpu", gpu, *sized, "--speculative-config",
                          '{"method":"ngram","num_speculative_tokens":3}'],
            "energy": [command, model, "--gpu", gpu, *sized, "--rate", rate],
            "capacity": [command, model, "--gpu", gpu, *sized, "--rate", rate, "--slo", SLO],
            "disaggregate": [command, model, "--prefill-gpu", gpu, "--decode-gpu", gpu, f"--prefill-tp={size}",
                             f"--decode-tp={size}", "--rate", rate, "--allow-overload"],
            "plan": [command, model, "--gpu", gpu, "--rate", rate, "--slo", SLO],
        }[command]  # fmt: skip


def first_answer(words: list[str]) -> None:
    """What the page shows until the whole answer is there."""
    state = dict(zip(["model", "gpu"], [words[1], words[3]], strict=True))
    answer("simulate", {"state": {**state, "tensor_parallel_size": int(words[4].partition("=")[2]),
                                  "rate": float(words[6])}, "intervals": False})  # fmt: skip


def asked(words: list[str]) -> int:
    """The whole answer of a command, of which nothing is kept."""
    sys.argv = ["infercast", *words, "--no-cache", "--time-limit", f"{LIMIT:g}"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            cli.run()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def spread(seconds: list[float]) -> str:
    p50, p95 = np.percentile(seconds, (50, 95))
    return f"{len(seconds):4} questions, p50 {p50:6.2f} s, p95 {p95:6.2f} s, longest {max(seconds):6.2f} s"


def measure(count: int, seed: int, clock: Callable[[], float]) -> None:
    whole, first = defaultdict[str, list[float]](list), list[float]()
    refused = 0
    for words in questions(count, seed):
        if words[0] == "simulate":
            start = clock()
            with contextlib.suppress(InfercastError):
                first_answer(words)
            first.append(clock() - start)
        start = clock()
        refused += asked(words) != 0
        whole[words[0]].append(clock() - start)
        print(f"{whole[words[0]][-1]:7.2f} s  {' '.join(words)}", flush=True)
    every = [seconds for each in whole.values() for seconds in each]
    for command, seconds in sorted(whole.items()):
        print(f"{command:16} {spread(seconds)}")
    print(f"{'all':16} {spread(every)}; {refused} refused, {sum(each > LIMIT + 1 for each in every)} beyond their time")
    if first:
        print(f"{'first answers':16} {spread(first)}")


def near(one: float | None, other: float | None) -> bool:
    return one is other or (one is not None and other is not None and abs(one / other - 1.0) <= 0.03)


def luck_of_p99(made: Forecast) -> float:
    begin, end = made.window or made.steady_window
    return float(steady_luck(made.clients, made.workload, begin, end, made.steady.sketch)[4])


def compare(count: int, seed: int, times: int) -> None:
    kept, counts = defaultdict[str, list[bool]](list), list[int]()
    late, drawn = 0, (each for each in questions(10**9, seed) if each[0] == "simulate")
    for _, words in zip(range(count), drawn, strict=False):
        model, gpu, size, rate = words[1], words[3], int(words[4].partition("=")[2]), float(words[6])
        ask = {"gpu": gpu, "tensor_parallel_size": size, "rate": rate}
        made = infercast.simulate(model, time_limit=LIMIT / 2, **ask)
        number = min(times * len(made.workload.requests), 100_000)
        long = infercast.simulate(model, num_requests=number, seed=1, **ask)
        if long.steady.reached:
            long = infercast.simulate(model, num_requests=number, seed=1, steady=True, **ask)
        counts.append(len(made.workload.requests))
        late += made.steady.stopped == LATE
        kept["word"].append(made.state.word == long.state.word)
        print(f"{model} on {gpu} at {rate:g}/s: {len(made.workload.requests)} requests, {made.steady.stopped}, "
              f"{made.state.word} and {long.state.word}, TTFT p50 {made.ttft.p50:.4g} and {long.ttft.p50:.4g}",
              flush=True)  # fmt: skip
        if not (made.state.is_steady and long.state.is_steady and made.steady.reached):
            continue
        kept["TTFT p50"].append(near(made.ttft.p50, long.ttft.p50))
        kept["TPOT p50"].append(near(made.tpot and made.tpot.p50, long.tpot and long.tpot.p50))
        kept["throughput"].append(near(made.output_tokens_per_second, long.output_tokens_per_second))
        costs = [each.cost and each.cost.per_million_output_tokens for each in (made, long)]
        kept["cost"].append(near(*costs))
        kept["TTFT p99 in its luck"].append(abs(np.log(made.ttft.p99 / long.ttft.p99)) <= luck_of_p99(made))
    for name, held in kept.items():
        print(f"{name:22} {sum(held)} of {len(held)}")
    print(f"{late} of {count} were cut by their time; {np.mean(counts):,.0f} requests on average")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--against", type=int, metavar="TIMES", help="compare with runs so many times as long")
    options.add_argument("--processor-time", action="store_true", help="one core, and its own time as the clock")
    given = options.parse_args()
    clock: Callable[[], float] = time.monotonic
    if given.processor_time:
        clock = progress.clock = parallel.clock = time.process_time
        parallel.may_fork = lambda: False
    if given.against is None:
        measure(given.count, given.seed, clock)
    else:
        compare(given.count, given.seed, given.against)


if __name__ == "__main__":
    main()
