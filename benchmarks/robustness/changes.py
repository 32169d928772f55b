"""Draw deployments, apply the change that each answer advises, simulate it in full, and compare with what was said.

    python benchmarks/robustness/changes.py --count 200                     gains as said and as simulated
    python benchmarks/robustness/changes.py --count 40 --brute              and every other single change
    python benchmarks/robustness/changes.py --count 200 --out benchmarks/results/changes.md

A change is as good as its word if the full run moves within 3 points of what was said, or inside its interval. With
``--brute`` every single change of the same price or less is tried on all requests of the run; a miss is one that is
worth 1.2 times as much (of logarithms), also where answers are a token longer or shorter: equal requests in a closed
loop fall into step with each other or not by any small delay. Draws are the same for a ``--seed``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from math import log
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import infercast
from infercast.engines.base import engine_named
from infercast.errors import InfercastError
from infercast.forecast.diagnosis.changes import GPUS, changes_of
from infercast.forecast.diagnosis.diagnose import (
    WORTH,
    Remedy,
    RunDiagnosis,
    diagnose_run,
    is_enough,
    is_fair,
    try_change,
)
from infercast.forecast.diagnosis.trials import CAPACITY, Trials
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.slo import parse_slo
from infercast.forecast.system import System, system_of, two_pools
from infercast.lazy_classes import replace
from infercast.serve import Workload
from infercast.serve.workload.classes import with_adapters
from infercast.serve.workload.request import Adapters
from infercast.serve.workload.synthetic import session_workload, synthetic_workload

POINTS = 0.03  # What is said may be off by this much of the value before
TIMES = 1.2  # ... and another change may be worth this many times as much (of logarithms)
PLAIN = (
    ("qwen3-0.6b", "l4"), ("qwen3-8b", "l40s"), ("llama-3.1-8b", "a100-sxm"), ("llama-3.1-8b", "h100-sxm"),
    ("qwen3-14b", "h200-sxm"), ("gemma-3-12b", "h100-sxm"), ("phi-4", "a100-sxm"), ("qwen3-30b-a3b", "h200-sxm"),
)  # fmt: skip
KINDS = ("plain", "closed", "pipeline", "pools", "adapters", "replicas", "drafts", "offload", "sessions", "slo")


class Case(NamedTuple):
    kind: str
    words: str
    system: System
    workload: Workload
    slo: str | None


class Row(NamedTuple):
    kind: str
    words: str
    said: str  # The change, or nothing
    of: str  # What it makes better
    ratio: float
    ends: tuple[float, float]
    simulated: float
    better: str = ""  # Another change that is worth much more

    @property
    def told(self) -> str:
        said, low, high, full = (f"{each - 1:+.1%}" for each in (self.ratio, *self.ends, self.simulated))
        return f"{self.said or 'none'} {self.of} {said} ({low} to {high}), in full {full} {self.better}"

    @property
    def holds(self) -> bool:
        low, high = self.ends
        return not self.said or abs(self.simulated - self.ratio) <= POINTS or low <= self.simulated <= high


def draws(seed: int) -> Iterator[Case]:
    """Cases without end; those that an engine refuses are left out."""
    random = Random(seed)
    while True:
        for kind in KINDS:
            try:
                yield _case(kind, random)
            except InfercastError:
                continue


LENGTHS = ("256", "lognormal:700:0.9:16:4000", "2000"), ("32", "lognormal:180:0.8:4:1000", "300")
LOADS = ("ttft_p99<400ms", "tpot_p95<20ms", "ttft_p99<1s,tpot_p95<30ms", "e2e_p90<4s")


def _case(kind: str, random: Random) -> Case:
    model, gpu = random.choice(PLAIN)
    engine = random.choice(("vllm", "vllm", "sglang")) if kind in ("plain", "closed", "slo", "replicas") else "vllm"
    options, settings, router = _options(kind, engine, random)
    chosen = engine_named(engine)
    deployment = infercast.deploy(model, gpu, chosen.settings(settings), **options)
    if kind == "pools":
        decode = infercast.deploy(model, gpu, chosen.settings(settings), tensor_parallel_size=random.choice((1, 2)))
        system = two_pools(deployment, decode, instances=(random.choice((1, 2)), 1))
    else:
        system = system_of(deployment, router)
    workload, told = _load(kind, system, random)
    slo = random.choice(LOADS) if kind == "slo" else None
    more = " ".join(f"{name}={value}" for name, value in {**options, **settings}.items() if name != "engine")
    return Case(kind, " ".join(f"{model} {gpu} {engine} {more} {router or ''} {told} {slo or ''}".split()), system,
                workload, slo)  # fmt: skip


def _options(kind: str, engine: str, random: Random) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Options of `deploy`, settings of the engine, and the load balancer."""
    options: dict[str, Any] = {"engine": engine}
    settings: dict[str, Any] = {}
    if kind == "pipeline":
        options["pipeline_parallel_size"] = random.choice((2, 4))
    if kind == "replicas":
        options["data_parallel_size"] = random.choice((2, 4, 8))
    if kind == "adapters":
        settings |= {"enable_lora": True, "max_loras": random.choice((1, 2, 4))}
    if kind == "drafts":
        config = {"method": "ngram", "num_speculative_tokens": random.choice((2, 4))}
        settings |= {"speculative_config": json.dumps(config), "acceptance": "0.6"}
    if kind == "offload":
        settings |= {"kv_offloading_size": 16.0, "enable_prefix_caching": True, "gpu_memory_utilization": 0.8}
    if kind in ("plain", "slo") and engine == "vllm" and random.random() < 0.4:
        settings |= {"max_num_seqs": random.choice((4, 8, 16, 32))}
    if kind in ("plain", "closed") and engine == "vllm" and random.random() < 0.2:
        settings |= {"gpu_memory_utilization": 0.6}
    return options, settings, random.choice((None, "round_robin", "random")) if kind == "replicas" else None


def _load(kind: str, system: System, random: Random) -> tuple[Workload, str]:
    inputs, outputs = (random.choice(each) for each in LENGTHS)
    lengths: dict[str, Any] = {"input_lengths": inputs, "output_lengths": outputs}
    count, load = random.choice((300, 600)), random.choice((0.3, 0.6, 0.8))
    if kind == "closed" or (kind == "pipeline" and random.random() < 0.5):
        clients = random.choice((4, 16, 64, 150))
        workload = synthetic_workload(concurrency=clients, count=max(300, 3 * clients), **lengths)
        return workload, f"{clients} clients {inputs}/{outputs}"
    rate = load * most_requests_per_second(system, synthetic_workload(rate=1.0, count=200, **lengths))
    if kind in ("sessions", "offload"):
        rate = float(f"{0.1 * rate:.2g}")
        turns = {"turns": "uniform:2:8", "turn_lengths": "lognormal:120:0.8:4:2000", "think": "exponential:5"}
        workload = session_workload(session_rate=rate, count=count, **turns, **lengths)
        return workload, f"{rate:g} sessions/s {inputs}/{outputs}"
    rate = float(f"{rate:.2g}")
    workload = synthetic_workload(rate=rate, count=count, **lengths)
    if kind == "adapters":
        workload = with_adapters(workload, Adapters(random.choice((8, 32)), 1.0, 1.0), seed=0)
    return workload, f"{rate:g}/s {inputs}/{outputs}"


def forecast_of(system: System, case: Case) -> Forecast:
    slo = None if case.slo is None else parse_slo(case.slo)
    found = simulate_system(system, case.workload, slo=slo)
    return found if slo is None else found.promised(slo)


def judged(case: Case, *, brute: bool) -> Row:
    """What an answer says, and what its change does in full."""
    before = forecast_of(case.system, case)
    found = diagnose_run(before, forecast_intervals(before))
    remedy = found.remedy
    better = _better(found) if brute else ""
    if better:
        other = forecast_of(case.system, _with_uneven_answers(case))
        better = _better(diagnose_run(other, forecast_intervals(other)))
    if remedy is None:
        return Row(case.kind, case.words, "", found.aim.name, 1.0, (1.0, 1.0), 1.0, better)
    gain = remedy.gains[0]
    known = Trials(before, found.aim)
    if found.aim.quantity == CAPACITY:
        simulated = most_requests_per_second(remedy.system, before.workload) / known.value(found.aim)
    else:
        after = forecast_of(remedy.system, case)
        simulated = Trials(after, found.aim).value(found.aim) / known.value(found.aim)
    return Row(case.kind, case.words, remedy.words, found.aim.name, gain.ratio, gain.ends, simulated, better)


def _with_uneven_answers(case: Case) -> Case:
    """The case with answers a token longer or shorter."""
    random = Random(0)
    requests = [
        replace(each, num_output=max(1, each.num_output + random.choice((-1, 0, 1)))) for each in case.workload.requests
    ]
    return case._replace(workload=replace(case.workload, requests=tuple(requests)))


def _better(found: RunDiagnosis) -> str:
    """A change of the same price or less that is worth much more on all requests of the run."""
    known = Trials(found.forecast, found.aim)
    known.whole()
    now = None if found.remedy is None else try_change(known, found.remedy.change)
    least = WORTH if now is None else max(WORTH, TIMES * now.gain)
    most = GPUS if now is None else now.change.cost
    enough = now is not None and is_enough(now, known)
    if found.is_kept:
        return ""
    best: Remedy | None = None
    for change in changes_of(found.forecast):
        if change.cost <= most and (other := try_change(known, change)) is not None and is_fair(other, known):
            cheaper = is_enough(other, known) and (not enough or change.cost < most) and found.aim.limit is not None
            is_better = other.gain > least and not (enough and not is_enough(other, known))
            if (is_better or (cheaper and other.gain > WORTH)) and (best is None or other.gain > best.gain):
                best = other
    return "" if best is None else f"{best.words} ({best.gain:.2f} for {0.0 if now is None else now.gain:.2f})"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hold advised changes against full simulations.")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one of the kinds of deployments")
    parser.add_argument("--brute", action="store_true", help="try every other single change, too")
    parser.add_argument("--out", type=Path, help="a Markdown table of all rows")
    asked = parser.parse_args(words)
    rows: list[Row] = []
    for case in draws(asked.seed):
        if asked.only and case.kind != asked.only:
            continue
        began = time.process_time()
        row = judged(case, brute=asked.brute)
        rows.append(row)
        if asked.out:
            asked.out.write_text(_table(rows), encoding="utf-8")
        mark = "ok  " if row.holds and not row.better else "MISS"
        print(f"{mark} {time.process_time() - began:5.1f} s {row.kind}: {row.words}: {row.told}", flush=True)
        if len(rows) >= asked.count:
            break
    told = [row for row in rows if row.said]
    kept, missed = sum(row.holds for row in told), sum(bool(row.better) for row in rows)
    print(f"{len(rows)} deployments, {len(told)} changes; as said {kept} of {len(told)}; much better ones {missed}")
    return int(kept < 0.95 * len(told))


def _table(rows: list[Row]) -> str:
    told = [row for row in rows if row.said]
    off = [abs(log(row.simulated / row.ratio)) for row in told] or [0.0]
    head = (
        "# Changes as advised and as simulated\n\n`benchmarks/robustness/changes.py` draws deployments and applies the "
        f"change that each answer advises. {sum(row.holds for row in told)} of {len(told)} changes of {len(rows)} "
        f"deployments are within 3 points or the interval; the median is {sorted(off)[len(off) // 2]:.1%} off.\n\n"
        "| kind | deployment | change | of | said | interval | in full | as said | much better |\n"
        "| --- | --- | --- | --- | --: | --: | --: | --- | --- |\n"
    )
    lines = []
    for row in rows:
        said, low, high, full = (f"{each - 1:+.1%}" for each in (row.ratio, *row.ends, row.simulated))
        cells = (row.kind, row.words, row.said or "none", row.of, said, f"{low} to {high}", full,
                 "yes" if row.holds else "no", row.better)  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return head + "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
