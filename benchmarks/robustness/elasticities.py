"""Elasticities of drawn deployments against finite differences of `simulate`: ``python elasticities.py [COUNT]``.

Each number is moved by hand, with the same step and with half of it; the first must agree within 2 %, the second says
how much the curve bends and the schedule matters.
"""

import random
import sys
from functools import partial
from math import log
from statistics import median

import infercast
from infercast.forecast.deploy import deploy_changed, parse_changes
from infercast.forecast.elasticities import Elasticities, HardwareStep, elasticities, results_of
from infercast.forecast.sweep import point_of

MODELS = ("llama-3.1-8b", "qwen2.5-0.5b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b-it", "mistral-7b")
GPUS = ("h200-sxm", "h100-sxm", "l40s", "a100-sxm", "b200-sxm", "rtx-4090")
SHOWN = ("ttft_mean", "tpot_mean", "output_tokens_per_s", "joules_per_output_token")
WITHIN = 0.02


def main() -> int:
    draw, worst, bent = random.Random(7), 0.0, []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        model, gpu, tensor = draw.choice(MODELS), draw.choice(GPUS), draw.choice((1, 1, 2))
        load = draw.choice(({"rate": draw.choice((1.0, 4.0))}, {"concurrency": draw.choice((4, 32))}))
        options = {"tensor_parallel_size": tensor, "max_model_len": 8192}
        try:
            found = elasticities(model, gpu, num_requests=120, **load, **options)
        except infercast.DoesNotFitError:
            continue
        for row in draw.sample(found.rows, 3):
            same, half = (differences(model, gpu, options, found, scaled(row.step, share)) for share in (1.0, 0.5))
            off = max(abs(row.brings[name] - same[name]) for name in SHOWN)
            worst = max(worst, off)
            bent.append(max(abs(row.brings[name] - half[name]) for name in SHOWN))
            known = " ".join(f"{name} {row.brings[name]:+.3f}" for name in SHOWN)
            print(
                f"{model} {gpu} x{tensor} {load}: {row.step.name}: {known}; off {off:.4f}, half a step {bent[-1]:.3f}"
            )
    print(f"largest difference {worst:.4f}, with half the step {median(bent):.4f} in the median")
    return int(worst > WITHIN)


def scaled(step: HardwareStep, share: float) -> HardwareStep:
    """With a part of the step; multiprocessors are whole."""
    low, high = (1.0 + share * (each - 1.0) for each in (step.low, step.high))
    if step.name == "sms":
        low, high = (round(step.now * each) / step.now for each in (low, high))
    return step._replace(low=low, high=high)


def differences(model: str, gpu: str, options: dict, found: Elasticities, step: HardwareStep) -> dict[str, float]:
    """By `simulate` on deployments that are changed one by one."""
    results = []
    for factor in (step.low, step.high):
        value = f"{step.now * factor!r}" if step.name in ("sms", "power_limit_w") else f"{factor!r}x"
        changes = parse_changes(f"{step.name}={value}")
        asked = partial(infercast.deploy, model, gpu, None, **options)
        changed = asked() if factor == 1.0 else deploy_changed(asked, changes)
        run = infercast.simulate(changed, found.forecast.workload)
        results.append(results_of(point_of("", None, run, None)))
    low, high = results
    return {name: log(high[name] / low[name]) / log(step.high / step.low) for name in SHOWN}


if __name__ == "__main__":
    sys.exit(main())
