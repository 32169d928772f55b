"""Draw deployments with their loads, and hold the identities that every forecast of them must keep.

    python benchmarks/robustness/identities.py [--count 200] [--seed 0]

Little's law, parts that add up to wholes, shares from 0 to 1, power within its limit, intervals with a width around
their numbers, and nothing that JSON cannot hold: of pipelines, pools, adapters, replicas, drafts, offloading, sessions,
closed loops and both engines. Exit code 1 if one identity breaks.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from printed import ask

DENSE = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "gemma-3-4b", "phi-4")
SPARSE = ("qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3-next-80b-a3b")
GPUS = ("h100-sxm", "h200-sxm", "a100-sxm", "l40s", "b200-sxm", "mi300x", "rtx-pro-6000")
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
EAGLE = '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 2}'
EXACT, STEADY = 1e-6, 0.02
"""How far two sides of an identity may be apart: of all requests of a run, and of a steady part of it."""


def draw(rng: Random) -> list[str]:
    """A command: a deployment of one of the kinds, and its load."""
    model = rng.choice(DENSE + DENSE + SPARSE)
    gpu = rng.choice(GPUS)
    load = rng.choice(
        (
            ["--rate", f"{rng.choice((0.2, 2, 5, 20))}"],
            ["--concurrency", f"{rng.choice((1, 7, 48, 200))}"],
            ["--arrival", "burst"],
            ["--rate", f"{rng.choice((4, 12))}", "--arrival", "gamma", "--burstiness", "0.3"],
        )
    )
    lengths = rng.choice(
        (
            ["--input-len", "600", "--output-len", "40"],
            ["--input-len", "lognormal:900:0.8:16:6000", "--output-len", "60"],
            ["--input-len", "uniform:20:2000", "--output-len", "uniform:1:80"],
            ["--output-len", "1"],
        )
    )
    count = [] if rng.random() < 0.15 and load[0] != "--arrival" else ["-n", f"{rng.choice((30, 120, 300))}"]
    words = ["simulate", model, "--gpu", gpu, *load, *lengths, *count, "--max-model-len", "8k", "--allow-overload"]
    kinds = (
        [],
        ["-pp", f"{rng.choice((2, 4))}"],
        ["-dp", f"{rng.choice((2, 5))}", "--router", rng.choice(("round_robin", "least_loaded", "vllm"))],
        ["-tp", "2", "-pp", "2", "-dp", "2"],
        ["--enable-lora", "--adapters", "12", "--setting", f"max_loras={rng.choice((2, 16))}"],
        ["--speculative-config", NGRAM, "--acceptance", rng.choice(("0.2", "0.7"))],
        ["--kv-offloading-size", "8", "--turns", "4", "--num-gpu-blocks-override", "2048"],
        ["--turns", "3", "--think", "2"],
        ["--max-num-seqs", f"{rng.choice((1, 8, 32))}"],
        ["--num-gpu-blocks-override", "600"],
        ["--power-limit", f"{rng.choice((250, 300, 330))}"],
        ["--prefix-len", "512"],
        ["--slo", "ttft_p99<500ms,tpot_p95<30ms"],
    )
    kind = rng.choice(kinds)
    words += kind if rng.random() < 0.8 else [*kind, *rng.choice(kinds[:4])]
    if rng.random() < 0.3:
        words = ["--context-length" if word == "--max-model-len" else word for word in words]
        words = ["--max-running-requests" if word == "--max-num-seqs" else word for word in words]
        words += ["--engine", "sglang"]
    if rng.random() < 0.15:
        words = ["disaggregate", model, "--prefill-gpu", gpu, "--decode-gpu", gpu, *load, *lengths, *count]
        words += ["--max-model-len", "8k", "--allow-overload", "--prefill-engines", f"{rng.choice((1, 2))}"]
    elif rng.random() < 0.1:
        words = ["simulate", "llama-3.1-8b", "--gpu", gpu, *load, *lengths, *count, "--allow-overload"]
        words += ["--speculative-config", EAGLE, "--acceptance", "0.6", "--max-model-len", "8k"]
    elif rng.random() < 0.08:
        words = ["simulate", "bge-m3", "--gpu", gpu, "--rate", "6", "-n", "200"]
    extra = rng.random()
    if words[0] == "simulate" and extra < 0.15:
        return [*words, "--breakdown"]
    what_if = rng.choice(("dram_bandwidth=1.5x", "host_speed=2x", "max_num_seqs=4", "quantization=fp8"))
    return [*words, "--what-if", what_if] if words[0] == "simulate" and extra > 0.85 else words


class Checks:
    """Identities that do not hold, by name."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def same(self, name: str, one: float, other: float, within: float = EXACT) -> None:
        if not abs(one - other) <= within * max(abs(one), abs(other), 1e-9):
            self.broken.append(f"{name}: {one:.9g} is not {other:.9g}")

    def holds(self, name: str, holds: bool, *values: Any) -> None:
        if not holds:
            self.broken.append(f"{name}: {values}")

    def share(self, name: str, value: float | None) -> None:
        self.holds(f"{name} is a share", value is None or -1e-9 <= value <= 1 + 1e-9, value)


def broken(found: dict[str, Any], words: list[str]) -> list[str]:
    """What does not hold in an answer; nothing of a refusal."""
    checks = Checks()
    for path, value in numbers(found):
        checks.holds(f"{path} is a number", math.isfinite(value), value)
    if "breakdown" in found:
        _breakdown(checks, found["breakdown"], found.get("forecast", found))
    for forecast in forecasts(found):
        _forecast(checks, forecast, words)
    if "explained" in found:
        _what_if(checks, found)
    return checks.broken


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from numbers(each, f"{path}.{name}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from numbers(each, f"{path}[{place}]")
    elif isinstance(value, float):
        yield path, value


def forecasts(found: Any) -> Iterator[dict[str, Any]]:
    """Every forecast in an answer, however deep."""
    if isinstance(found, dict):
        if "running" in found and "ttft_ms" in found and "engines" in found:
            yield found
            return
        for each in found.values():
            yield from forecasts(each)
    elif isinstance(found, list):
        for each in found:
            yield from forecasts(each)


def _forecast(checks: Checks, found: dict[str, Any], words: list[str]) -> None:
    _stays(checks, found, words)
    _pools(checks, found)
    _latencies(checks, found)
    _phases(checks, found)
    _energy(checks, found)
    _money(checks, found)
    rate = found["requests_per_s"]
    checks.same("tokens per GPU", found["output_tokens_per_s_per_gpu"] * found["gpus"], found["output_tokens_per_s"])
    if (told := found.get("diagnosis")) is not None:
        checks.share("causes together", sum(each["share"] for each in told["causes"]))
    for name in ("slo_attainment", "slo_odds"):
        checks.share(name, found[name])
    if found["slo_attainment"] is not None:
        checks.same("goodput", found["goodput_requests_per_s"], found["slo_attainment"] * rate)
    if (drafts := found["speculation"]) is not None:
        checks.holds("accepted <= drafted", drafts["accepted_tokens_per_s"] <= drafts["drafted_tokens_per_s"], drafts)
    if (sessions := found.get("sessions")) is not None:
        checks.share("waiting in sessions", sessions["waiting_share"])
        checks.share("found in sessions", sessions["prefix_hit_rate"])


def _stays(checks: Checks, found: dict[str, Any], words: list[str]) -> None:
    """Little's law, of everyone who was sent and has no last token yet."""
    steady, link = found["steady_only"], found["link"]
    rate, there = found["requests_per_s"], found["running"]["mean"] + found["waiting"]["mean"]
    within = STEADY if steady else EXACT
    if link is not None:
        there += rate * (link["wait_ms"]["mean"] + link["transfer_ms"]["mean"]) / 1e3
        within = max(within, 1e-3)
        parts = sum(link[f"{name}_ms"]["mean"] for name in ("prompt", "wait", "transfer", "first_step"))
        checks.share("link in use", link["use"])
        if not steady:
            checks.same("TTFT by parts", parts, found["ttft_ms"]["mean"])
    checks.same("running + waiting = rate x time", there, rate * found["end_to_end_ms"]["mean"] / 1e3, within)
    clients = int(words[words.index("--concurrency") + 1]) if "--concurrency" in words else 0
    if clients and steady and not link and "--turns" not in words:
        checks.same("running + waiting = clients", there, clients)


def _pools(checks: Checks, found: dict[str, Any]) -> None:
    for owner in (found, *found["pools"]):
        for level in ("running", "waiting", "kv_usage"):
            mean, peak = owner[level]["mean"], owner[level]["peak"]
            checks.holds(f"{level} on average <= peak", mean <= peak + 1e-9, mean, peak)
        checks.share("kv_usage", owner["kv_usage"]["peak"])
        for name in ("prefix_hit_rate", "tier_hit_rate"):
            checks.share(name, owner[name])
    for pool in found["pools"]:
        engines = [each for each in found["engines"] if each["pool"] == pool["role"]]
        checks.same("engines' running", sum(each["running"] for each in engines), pool["running"]["mean"])
        checks.same("engines' requests", sum(each["requests"] for each in engines), found["workload"]["requests"])
        checks.same("engines' preemptions", sum(each["preemptions"] for each in engines), pool["preemptions"])
        own = pool["deployment"]
        seats = own.get("max_num_seqs", own.get("max_running_requests")) * len(engines)
        checks.holds("running <= seats", pool["running"]["peak"] <= seats, pool["running"], seats)
    for engine in found["engines"]:
        for name in ("busy", "kv_peak", "prefix_hit_rate"):
            checks.share(f"engine's {name}", engine[name])


def _latencies(checks: Checks, found: dict[str, Any]) -> None:
    for name in ("ttft_ms", "tpot_ms", "inter_token_ms", "end_to_end_ms"):
        values, intervals = found[name], found.get(f"{name}_interval")
        if values is None:
            continue
        ranked = [values[each] for each in ("p50", "p90", "p95", "p99")]
        checks.holds(f"{name} in order", ranked == sorted(ranked), ranked)
        for each, (low, high) in (intervals or {}).items():
            checks.holds(f"{name} {each} in its interval", low <= values[each] * (1 + 1e-9) <= high * (1 + 2e-9),
                         values[each], low, high)  # fmt: skip
            checks.holds(f"{name} {each} has an interval", low < high, low, high)
    for name in ("output_tokens_per_s", "requests_per_s"):
        if (ends := found.get(f"{name}_interval")) is not None:
            checks.holds(
                f"{name} in its interval", ends[0] < ends[1] and ends[0] <= found[name] <= ends[1], found[name], ends
            )


def _phases(checks: Checks, found: dict[str, Any]) -> None:
    stages = {pool["role"]: pool["deployment"]["pipeline_parallel_size"] for pool in found["pools"]}
    for phase in found["phases"]:
        families = phase["families"]
        checks.same("families' shares", sum(each["share"] for each in families), 1.0)
        checks.same("families' seconds", sum(each["seconds"] for each in families), phase["gpu_seconds"])
        for each in families:
            checks.same("kernels' seconds", sum(each["kernels"].values()), each["seconds"])
        whole = stages[phase["pool"]] * phase["seconds"]
        parts = phase["gpu_seconds"] + phase["host_bound_seconds"]
        checks.holds("GPU and waiting fill the steps", parts >= whole * (1 - EXACT), parts, whole)


def _energy(checks: Checks, found: dict[str, Any]) -> None:
    energy = found["energy"]
    if energy is None:
        return
    limit, mean = energy["limit_watts_per_gpu"], found["watts_per_gpu"]
    checks.holds("average power <= its limit", mean <= limit * (1 + 1e-9), mean, limit)
    checks.holds(
        "average power <= peak", mean <= found["peak_watts_per_gpu"] * (1 + 1e-9), mean, found["peak_watts_per_gpu"]
    )
    for phase in energy["phases"]:
        checks.holds("power in steps <= its limit", phase["watts_per_gpu"] <= limit * (1 + 1e-9), phase, limit)
    checks.same("joules by part", sum(each["joules"] for each in energy["parts"]), energy["joules"])
    checks.same("shares of joules", sum(each["share"] for each in energy["parts"]), 1.0)
    rate = found["output_tokens_per_s"]
    checks.same("watts = joules of a token x tokens/s", mean * found["gpus"], found["joules_per_output_token"] * rate,
                EXACT if found["steady_only"] else 1e-4)  # fmt: skip
    checks.holds("the wall draws more", found["wall_watts"] >= mean * found["gpus"] * (1 - 1e-9), found["wall_watts"])


def _money(checks: Checks, found: dict[str, Any]) -> None:
    if found.get("usd_per_hour") is None:
        return
    hour = found["usd_per_hour"] / 3600
    checks.same("$ of a request x rate", found["usd_per_request"] * found["requests_per_s"], hour)
    checks.same(
        "$ of a token x rate", found["usd_per_million_output_tokens"] * found["output_tokens_per_s"] / 1e6, hour
    )


def _breakdown(checks: Checks, found: dict[str, Any], forecast: dict[str, Any]) -> None:
    seconds = sum(sum(each["seconds"].values()) for each in found["kernels"])
    parts = seconds + sum(found["host_seconds"].values()) + found["idle_seconds"]
    checks.same("parts of a run", parts, found["side_by_side"] * found["duration_s"])
    for name in ("ttft", "tpot"):
        if found[name] is not None and not forecast["steady_only"] and forecast["link"] is None:
            checks.same(f"parts of {name}", sum(found[name]["mean_ms"].values()), forecast[f"{name}_ms"]["mean"])
            for part, value in found[name]["mean_ms"].items():
                checks.holds(f"{name}: {part} is not negative", value >= -1e-6 * forecast[f"{name}_ms"]["mean"], value)


def _what_if(checks: Checks, found: dict[str, Any]) -> None:
    first, second = list(forecasts(found))[:2]
    for name, rows in found["explained"].items():
        change = sum(each["after_us"] - each["before_us"] for each in rows) / 1e3
        if not first["steady_only"] and not second["steady_only"] and first[f"{name}_ms"] and second[f"{name}_ms"]:
            checks.same(f"reasons of {name}", first[f"{name}_ms"]["mean"] + change, second[f"{name}_ms"]["mean"])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Hold identities of drawn forecasts.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, wrong, answered, number = Random(asked.seed), 0, 0, 0
    start = time.monotonic()
    while answered < asked.count:
        number += 1
        words = draw(rng)
        found = ask(words)
        if not found:
            continue
        answered += 1
        if said := broken(found, words):
            wrong += 1
            print(f"infercast {shlex.join(words)}\n  " + "\n  ".join(said[:6]), flush=True)
        if answered % 20 == 0:
            print(f"{answered} answered of {number} drawn, {wrong} break, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{answered} answered of {number} drawn, {wrong} break an identity")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
