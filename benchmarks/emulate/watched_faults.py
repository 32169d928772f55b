"""Faults of emulated engines, and whether `watch` names each as what it is.

    python benchmarks/emulate/watched_faults.py --count 40

Engines run on a clock without a wall: metrics are read 10 and 40 s into the load, as `infercast watch` does.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random
from typing import Any, NamedTuple

import numpy as np

import infercast
from infercast.calibration.learn import SAID, judge
from infercast.emulate.emulator import Call, Emulator
from infercast.engines.base import Deployment, engine_named
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.system import system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.synthetic import synthetic_workload

PLACES = ("qwen3-0.6b", "h200-sxm"), ("llama-3.1-8b", "h200-sxm"), ("qwen3-8b", "h100-sxm"), ("phi-4", "a100-sxm")
KINDS = ("slow_host", "slow_gpu", "queue", "cache", "flag", "none")
FLAGS: tuple[dict[str, Any], ...] = (
    {"max_num_seqs": 16}, {"gpu_memory_utilization": 0.5}, {"enable_prefix_caching": False}, {"max_num_seqs": 8},
    {"gpu_memory_utilization": 0.6},
)  # fmt: skip
INPUTS, OUTPUTS = "lognormal:500:0.5:64:2000", "lognormal:80:0.5:4:300"


class Fault(NamedTuple):
    kind: str
    model: str
    gpu: str
    factor: float
    load: float  # Of what the engine serves at most
    flag: dict[str, Any]

    @property
    def words(self) -> str:
        more = {"slow_host": f"x {self.factor:.2f}", "slow_gpu": f"x {self.factor:.2f}", "flag": str(self.flag)}
        return f"{self.kind} {more.get(self.kind, '')}, {self.model} on {self.gpu} at {self.load:.2f}"


def drawn(kind: str, number: int, random: Random) -> Fault:
    model, gpu = random.choice(PLACES[kind == "slow_gpu" :])  # the host hides a slower GPU from the smallest model
    load = random.uniform(1.3, 1.8) if kind == "queue" else random.uniform(0.3, 0.6)
    factor = random.uniform(1.5, 2.5) if kind == "slow_host" else random.uniform(1.25, 2.0)
    return Fault(kind, model, gpu, factor, load, FLAGS[number % len(FLAGS)] if kind == "flag" else {})


def metrics_of(deployment: Deployment, fault: Fault, rate: float, seed: int) -> tuple[str, str, float]:
    now = [0.0]
    emulator = Emulator(system_of(deployment), parse_lengths(OUTPUTS, ""), clock=lambda: now[0])
    if fault.kind in ("slow_host", "slow_gpu"):
        emulator.slow(0, *((1.0, fault.factor) if fault.kind == "slow_host" else (fault.factor, 1.0)))
    workload = synthetic_workload(rate=rate, count=round(40 * rate), input_lengths=INPUTS, output_lengths=1, seed=seed)
    random = np.random.default_rng(seed)
    common, requests, first, begin = random.integers(1, 1000, 2000).tolist(), [*workload.requests], "", 0.0
    while requests:
        arrival = requests[0].arrival
        now[0] = min(arrival, emulator.live.next_event)
        emulator.catch_up()
        if not first and now[0] > 10:
            first, begin = emulator.metrics_text(), now[0]
        if arrival <= now[0]:
            length = requests.pop(0).num_input
            shared = int(0.6 * length) if fault.kind == "cache" and not first else 0
            emulator.start(Call(), 0, [*common[:shared], *random.integers(1, 50_000, length - shared).tolist()], 1000)
    return first, emulator.metrics_text(), now[0] - begin


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Faults that watch has to name.")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--places", type=int, nargs="*", help="only these of the drawn ones")
    asked = parser.parse_args(words)
    random, right = Random(asked.seed), 0
    kinds = [KINDS[place % (len(KINDS) - 1)] for place in range(asked.count)] + ["none"] * (asked.count // 5)
    for number, kind in enumerate(kinds):
        fault = drawn(kind, number // (len(KINDS) - 1), random)
        if asked.only not in (None, kind) or (asked.places and number not in asked.places):
            continue
        began = time.process_time()
        expected = infercast.deploy(fault.model, fault.gpu)
        rate = fault.load * most_requests_per_second(
            system_of(expected), synthetic_workload(rate=1.0, count=200, input_lengths=INPUTS, output_lengths=OUTPUTS)
        )
        settings = engine_named("vllm").settings(fault.flag)
        real = infercast.deploy(fault.model, fault.gpu, settings) if fault.flag else expected
        found = judge(expected, *metrics_of(real, fault, rate, number), lambda _: None).deviations
        told = " | ".join(found)
        is_right = not found if kind == "none" else bool(found) and any(each in found[0] for each in SAID[kind])
        right += is_right
        print(
            f"{'ok  ' if is_right else 'MISS'} {time.process_time() - began:4.1f} s {fault.words}: {told}", flush=True
        )
    print(f"{right} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
