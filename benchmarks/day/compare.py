"""The stepped day beside a simulation of every request: share of requests and minutes within the SLO.

    python compare.py [TRACE.csv ...]

Each row is one fleet under waves of 20 minutes, or an hour of a trace. The load is that of the mean, as a share of
what the fleet serves at most; waves reach 1.8 times as much.
"""

import sys
import time
from dataclasses import replace

import numpy as np

import infercast
from infercast.forecast.autoscaling import (
    LoadCurve,
    Traffic,
    fixed,
    learn_curve,
    learn_service,
    made_up_day,
    run_fleet,
    traffic_of,
)
from infercast.forecast.day import chance_out
from infercast.forecast.slo import Slo, attainment, parse_slo
from infercast.forecast.system import replicas_of, system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.synthetic import scaled
from infercast.serve.workload.traces import read_trace

STEP, SECONDS = 10.0, 2400.0
INPUTS = parse_lengths("lognormal:700:0.9:16:8000", "inputs")
OUTPUTS = parse_lengths("lognormal:180:0.8:4:1000", "outputs")
CASES = (
    ("llama-3.1-8b", "l40s", {}, "ttft_p99<2s,tpot_p95<60ms", 4),
    ("llama-3.3-70b", "h100-sxm", {"tensor_parallel_size": 4, "quantization": "fp8"}, "ttft_p99<1s,tpot_p95<50ms", 2),
    ("qwen3-30b-a3b", "h100-sxm", {}, "ttft_p99<500ms,tpot_p95<40ms", 1),
)
LOADS = (0.3, 0.4, 0.5, 0.6)


def waves(rate: float) -> Traffic:
    day = made_up_day(rate, "flat", INPUTS, OUTPUTS, duration=SECONDS)
    places = np.linspace(0.0, 1.0, 10_001)
    passed = places - 0.8 * np.sin(4 * np.pi * places) / (4 * np.pi)
    return replace(day, arrivals=np.interp(day.arrivals / SECONDS, passed, places) * SECONDS)


def minutes_out(traffic: Traffic, served, slo: Slo) -> int:
    tpot = np.full(served.sent_at.size, np.nan)
    tpot[served.num_output > 1] = served.tpot
    values = {"ttft": served.ttft, "tpot": tpot, "e2e": served.end_to_end}
    out = 0
    for minute in np.unique(traffic.places):
        inside = traffic.places == minute
        out += any(
            np.nanpercentile(values[limit.quantity][inside], limit.percentile) >= limit.seconds for limit in slo.limits
        )
    return out


def compare(name: str, deployment, traffic: Traffic, curve: LoadCurve, slo: Slo, count: int) -> None:
    service = learn_service(system_of(deployment), traffic, deployment.settings.max_model_len)
    weights = service.of(traffic.inputs, traffic.outputs)
    steps = replace(traffic, window=STEP)
    began = time.process_time()
    done = run_fleet({1: curve}, steps.load(weights / weights.mean()), fixed(count))
    stepped = float((done.attained * steps.counts).sum() / steps.counts.sum())
    places = (np.arange(steps.num_windows) * STEP // 60.0).astype(int)
    beyond = [np.bincount(places, column * steps.counts) / np.maximum(1, traffic.counts) for column in done.beyond.T]
    out = chance_out(slo, traffic.counts, np.stack(beyond, axis=1)).sum()
    quick, began = time.process_time() - began, time.process_time()
    served = replicas_of(deployment, count).serve(traffic.between(0.0, np.inf)).clients
    slow = time.process_time() - began
    kept = attainment(served, slo)
    share = traffic.arrivals.size / traffic.arrivals[-1] / curve.full_rate / count
    print(
        f"| {name} | {count} | {share:.2f} | {100 * kept:.1f} | {100 * stepped:.1f} "
        f"| {minutes_out(traffic, served, slo)} | {out:.1f} "
        f"| {traffic.num_windows} | {slow:.1f} s | {quick:.2f} s |",
        flush=True,
    )


def main() -> None:
    print(
        "| fleet | replicas | load | simulated % | stepped % | minutes out | stepped | of | simulated in | stepped in |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    for model, gpu, options, text, count in CASES:
        slo, deployment = parse_slo(text), infercast.deploy(model, gpu, **options)
        curve = learn_curve(replicas_of(deployment, count), waves(2.0), slo, count)
        for load in LOADS:
            compare(f"{model}, {gpu}", deployment, waves(load * curve.full_rate * count), curve, slo, count)
        for path in sys.argv[1:]:
            hour = read_trace(path)
            curve_of_trace = learn_curve(replicas_of(deployment, count), traffic_of(hour), slo, count)
            for load in LOADS[1::2]:
                trace = traffic_of(scaled(hour, rate=load * curve_of_trace.full_rate * count))
                compare(f"{model}, {gpu}, trace", deployment, trace, curve_of_trace, slo, count)


if __name__ == "__main__":
    main()
