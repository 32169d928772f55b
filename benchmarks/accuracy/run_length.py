"""Whether a run that decides its own length is long enough: drawn deployments against runs twenty times as long.

    python benchmarks/accuracy/run_length.py --count 300 --out rows.jsonl       # goes on where it stopped
    python benchmarks/accuracy/run_length.py --summary rows.jsonl

Each row draws a model, a GPU, a layout, an engine, lengths and a share of what the deployment can serve, and holds what
`infercast simulate` says of it without ``-n`` against a run of another seed, twenty times as
long (up to ``--most`` requests), of which the steady part counts. Loads are shares of what a deployment finishes a
second while requests come 1.5 times as fast as `infercast` says it can serve them; it is overloaded if more and more
requests are left in the second half of the long run.
"""

from __future__ import annotations

import argparse
import json
import time
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from infercast import deploy
from infercast.errors import InfercastError
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.result import holds, odds
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import parse_slo
from infercast.forecast.system import System, system_of
from infercast.forecast.uncertainty import steady_luck
from infercast.serve.record import ServedRequests
from infercast.serve.workload.synthetic import synthetic_workload

MODELS = {
    "llama-3.2-1b": (1,), "llama-3.1-8b": (1, 2), "qwen3-14b": (1, 2), "qwen3-32b": (2, 4), "llama-3.3-70b": (4, 8),
    "qwen3-30b-a3b": (1, 2), "gpt-oss-20b": (1, 2), "gpt-oss-120b": (2, 4), "mixtral-8x7b": (2, 4),
    "gemma-3-12b": (1, 2),
}  # fmt: skip
GPUS = ("l40s", "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm")
LENGTHS = (
    {}, {}, {}, {"input_lengths": 1024, "output_lengths": 128},
    {"input_lengths": 200, "output_lengths": "uniform:50:600"},
    {"input_lengths": "lognormal:3000:0.8:16:12000", "output_lengths": "lognormal:250:0.7:4:1500"},
    {"input_lengths": "uniform:100:900", "output_lengths": "lognormal:600:0.8:4:3000"},
)  # fmt: skip
WORDS = ("stable", "filling", "overloaded")
NEAR = 0.03


def drawn(number: int, seed: int) -> dict[str, Any]:
    """A deployment and a load; one in six is beyond what can be served."""
    random = np.random.default_rng((seed, number))
    model = str(random.choice([*MODELS]))
    share = random.uniform(1.03, 1.3) if random.random() < 1 / 6 else random.uniform(0.1, 0.95)
    return {
        "model": model,
        "gpu": str(random.choice(GPUS)),
        "tensor": int(random.choice(MODELS[model])),
        "data": int(random.choice([1, 1, 1, 1, 2, 4])),
        "engine": str(random.choice(["vllm", "vllm", "sglang"])),
        "lengths": LENGTHS[int(random.integers(len(LENGTHS)))],
        "share": float(share),
        "limit": float(np.exp(random.normal(0.0, 0.25))),
    }


def served_when_full(system: System, rate: float, lengths: dict[str, Any], seed: int) -> float:
    """Requests a second that are finished while far more come."""
    load = synthetic_workload(rate=1.5 * rate, count=10_000, seed=seed + 77, **lengths)
    clients, last = system.serve(load).clients, load.requests[-1].arrival
    first = 0.6 * last
    return float(np.count_nonzero((clients.last_token > first) & (clients.last_token <= last)) / (last - first))


def left_over(clients: ServedRequests) -> float:
    """The share of requests of a run's second half by which their number in the system grew."""
    start, end = float(clients.sent_at.min()), float(clients.sent_at.max())
    half = (start + end) / 2
    late = np.count_nonzero(clients.sent_at > half)
    return float((clients.in_system_at(end) - clients.in_system_at(half)) / late)


def row_of(number: int, seed: int, most: int) -> dict[str, Any]:
    """One deployment, both ways."""
    asked = drawn(number, seed)
    try:
        deployment = deploy(
            asked["model"],
            asked["gpu"],
            tensor_parallel_size=asked["tensor"],
            data_parallel_size=asked["data"],
            engine=asked["engine"],
        )
    except InfercastError as problem:
        return {"number": number, **asked, "problem": str(problem)}
    system, lengths = system_of(deployment), asked["lengths"]
    said = most_requests_per_second(system, synthetic_workload(rate=1.0, **lengths))
    full = served_when_full(system, said, lengths, seed)
    rate = float(f"{asked['share'] * full:.4g}")
    before = time.process_time()
    ours = simulate_system(system, synthetic_workload(rate=rate, seed=number, **lengths))
    seconds = time.process_time() - before
    row = {"number": number, **asked, "said": said, "full": full, "rate": rate, "seconds": seconds}
    row |= {"word": ours.state.word, "stopped": ours.steady.stopped, "requests": len(ours.workload.requests)}
    count = min(20 * len(ours.workload.requests), most)
    load = synthetic_workload(rate=rate, count=count, seed=seed + number + 10_000, spread_out=True, **lengths)
    run = system.serve(load)
    row |= {"long_requests": count, "long_steady": False, "left": left_over(run.clients)}
    try:
        long = simulate_system(system, load, steady=True, capacity=lambda: full, run=run)
    except InfercastError:
        return row
    if ours.window is None:
        return row
    row["long_steady"] = True
    assert ours.window is not None
    assert long.window is not None
    luck = steady_luck(ours.clients, ours.workload, *ours.window, ours.steady.sketch)
    of_long = steady_luck(long.clients, long.workload, *long.window)
    assert ours.tpot is not None
    assert long.tpot is not None
    pairs = {
        "ttft": (ours.ttft.p50, long.ttft.p50, luck[1], of_long[1]),
        "tpot": (ours.tpot.p50, long.tpot.p50, luck[6], of_long[6]),
        "ttft_p99": (ours.ttft.p99, long.ttft.p99, luck[4], of_long[4]),
        "throughput": (ours.requests_per_second, long.requests_per_second, luck[-1], of_long[-1]),
        "usd": (1 / ours.output_tokens_per_second, 1 / long.output_tokens_per_second, 0.0, 0.0),
    }
    for name, (mine, theirs, half, other) in pairs.items():
        row |= {f"{name}_error": log(mine / theirs), f"{name}_luck": float(half), f"{name}_long_luck": float(other)}
    if number % 3:
        return row
    slo = parse_slo(f"ttft_p99<{1000 * long.ttft.p99 * asked['limit']:.6g}ms")
    again = simulate_system(system, synthetic_workload(rate=rate, seed=number, **lengths), slo=slo)
    row |= {"holds": holds(again, slo), "long_holds": holds(long, slo), "slo_requests": len(again.workload.requests)}
    return row | {"odds": odds(again, slo, forecast_intervals(again))}


def summary(rows: list[dict[str, Any]]) -> str:
    """What was asked, in numbers."""
    rows = [row for row in rows if "problem" not in row]
    seconds, count = (np.array([row[name] for row in rows]) for name in ("seconds", "requests"))
    off = np.abs([row["said"] / row["full"] - 1 for row in rows])
    far = [row for row in rows if abs(row["share"] - 1.0) > NEAR and not 0.5 * NEAR < row["left"] < 2 * NEAR]
    wrong = [row for row in far if (row["word"] == "overloaded") != (row["left"] > NEAR)]
    words = (f"{word} {sum(row['stopped'] == word for row in rows)}" for word in ("precise", "limit", "overloaded"))
    lines = [
        f"{len(rows)} deployments that fit",
        f"requests: median {np.median(count):,.0f}",
        f"seconds of CPU: median {np.median(seconds):.1f}, p90 {np.percentile(seconds, 90):.1f}",
        f"what can be served: off by {100 * off.mean():.1f} % on average, {100 * off.max():.1f} % at most",
        f"word right: {len(far) - len(wrong)} of {len(far)}; stopped: {', '.join(words)}",
        *(f"   wrong: {row}" for row in wrong),
    ]
    both = [row for row in rows if "ttft_error" in row]
    for name in ("ttft", "tpot", "throughput", "usd", "ttft_p99"):
        errors = np.array([row[f"{name}_error"] for row in both])
        widths = np.array([np.hypot(row[f"{name}_luck"], row[f"{name}_long_luck"]) for row in both])
        share, inside = np.mean(np.abs(errors) <= 0.03), np.mean(np.abs(errors) <= widths + 1e-3)
        lines.append(
            f"{name}: within 3 % in {100 * share:.0f} %, mean {100 * np.mean(np.abs(errors)):.2f} %, "
            f"bias {100 * np.mean(errors):+.2f} %, p90 {100 * np.percentile(np.abs(errors), 90):.2f} %; "
            f"inside the 80 % interval {100 * inside:.0f} %"
        )
    four = ("ttft", "tpot", "throughput", "usd")
    good = sum(all(abs(row[f"{name}_error"]) <= 0.03 for name in four) for row in both)
    lines.append(f"all four within 3 %: {good} of {len(both)}")
    judged = [row for row in both if "odds" in row]
    flips = [row for row in judged if row["holds"] != row["long_holds"]]
    bad = [round(row["odds"], 2) for row in flips if not 0.25 <= row["odds"] <= 0.75]
    lines.append(f"SLO verdicts that flip: {len(flips)} of {len(judged)}; their odds outside 25 to 75 %: {bad}")
    return "\n".join(lines)


def main() -> None:
    """Draw, or sum up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path("run_length.jsonl"))
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    if given.summary is None:
        done = (
            {json.loads(line)["number"] for line in given.out.read_text().splitlines()} if given.out.exists() else set()
        )
        part, parts = map(int, given.part.split("/"))
        for number in range(part, given.count, parts):
            if number not in done:
                row = row_of(number, given.seed, given.most)
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    path = given.summary or given.out
    print(summary([json.loads(line) for line in path.read_text().splitlines()]))


if __name__ == "__main__":
    main()
