"""Errors under load where the speed of each engine's host is known from a log of its steps, and where it is not.

    python benchmarks/accuracy/known_hosts.py

Of the measured runs that come with infercast, eight engines have a step log (measurements/h200-sxm/serving). What a
step of one CUDA graph takes to launch and to sample there sets the bundled host's speed for that engine; nothing else
is changed. ``BUNDLED`` milliseconds are what the bundled host stands for: one number, chosen with these runs in sight.
An engine under vLLM's older runner divides its work otherwise, so it takes the mean of the others on its machine.
"""

import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from infercast.bundled import DATA
from infercast.lab.validate.compare import RunComparison, validate
from infercast.lab.validate.measured import read_measured, shipped_runs

STEPS = Path(__file__).parents[2] / "measurements/h200-sxm/serving/steps.parquet"
BUNDLED = 2.15
OLDER_RUNNER = {"qwen3-30b-a3b__again": ("llama-3.1-8b__small", "gemma-2-9b", "qwen3-0.6b__small")}
QUANTITIES = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")
MOST_ROWS = 256


def graph_milliseconds() -> dict[str, float]:
    """What steps of one graph take to launch and to sample on each engine, in the mean."""
    steps = pd.read_parquet(STEPS)
    chosen = steps[(steps.prompts == 0) & (steps.tokens <= MOST_ROWS)]
    means = ((chosen.execute_us + chosen.sample_us) / 1e3).groupby(chosen.engine).mean().to_dict()
    for engine, others in OLDER_RUNNER.items():
        means[engine] = float(np.mean([means[other] for other in others]))
    return means


def loaded_runs(path: Path, host: Path | None) -> list[RunComparison]:
    """Its runs with arrivals over time."""
    return [run for run in validate([read_measured(path)], host=host).runs if run.kind != "static"]


def print_medians(title: str, runs: list[RunComparison]) -> None:
    errors = [[value.ape for run in runs if (value := getattr(run, name)) is not None] for name in QUANTITIES]
    print(f"{title:34} {len(runs):3} " + " ".join(f"{np.median(each):7.1%}" for each in errors))


def main() -> None:
    bundled = (DATA / "engines/vllm/host.toml").read_text(encoding="utf-8")
    milliseconds = graph_milliseconds()
    known, unknown, without_log = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for path in shipped_runs():
            engine, plain = path.name.removesuffix(".json.gz"), loaded_runs(path, None)
            if engine not in milliseconds:
                without_log += plain
                continue
            unknown += plain
            host = Path(folder) / f"{engine}.toml"
            speed = BUNDLED / milliseconds[engine]
            host.write_text(re.sub(r"(?<=single_thread_speed = )[\d.]+", f"{speed:.3f}", bundled), encoding="utf-8")
            known += loaded_runs(path, host)
            print(f"{engine:34} {milliseconds[engine]:.2f} ms, speed {speed:.2f}")
    print(f"{'median absolute error under load':34} runs  " + "  ".join(QUANTITIES))
    print_medians("with a log, bundled host", unknown)
    print_medians("with a log, its own speed", known)
    print_medians("without a log", without_log)
    print_medians("all, bundled host", unknown + without_log)
    print_medians("all, speeds where known", known + without_log)


if __name__ == "__main__":
    main()
