"""Errors of one release's runs that come with infercast, by file and run, as a page.

python by_release.py vllm@0.33 > ../results/vllm-0.33.md
"""

import sys
from dataclasses import replace

import numpy as np

from infercast.lab.validate.compare import validate
from infercast.lab.validate.measured import read_measured, shipped_runs

QUANTITIES = {
    "TTFT p50": "ttft_p50",
    "TTFT p99": "ttft_p99",
    "TPOT p50": "tpot_p50",
    "tokens/s": "output_tokens_per_second",
    "J/token": "joules_per_output_token",
}


def cells(runs) -> str:
    """Median, mean and p90 of absolute errors in percent, and the share of values in their 80 % intervals."""
    found = []
    for name in QUANTITIES.values():
        pairs = [pair for run in runs if (pair := getattr(run, name)) is not None]
        errors = np.array([100 * pair.ape for pair in pairs])
        inside = np.mean([bool(pair.is_inside) for pair in pairs]) if pairs else 0
        middle = f"{np.median(errors):.1f} / {errors.mean():.1f} / {np.quantile(errors, 0.9):.0f}" if pairs else ""
        found.append(f"{middle} ({100 * inside:.0f})" if pairs else "")
    return " | ".join(found)


def signed(pair) -> str:
    return "" if pair is None else f"{100 * pair.error:+.0f}{'' if pair.is_inside else ' *'}"


def main() -> None:
    engine = sys.argv[1]
    files = [read_measured(path) for path in shipped_runs(engine)]
    probed, blind = validate(files), validate([replace(file, probe=None) for file in files])
    over_http = {file.path.name for file in files if file.setup.over_http}
    columns = f"| {' | '.join(QUANTITIES)} |\n"
    print(f"# Runs of {engine}\n")
    print("Made by `benchmarks/accuracy/by_release.py`. Errors in percent: median / mean / p90, and in brackets the")
    print("share of measured values inside the 80 % interval. Hosts are as their probes say, unless noted.\n")
    print(f"| runs {columns}| --- |{' --: |' * len(QUANTITIES)}")
    for about, result in (("", probed), (", without probes", blind)):
        http = [run for run in result.runs if run.file in over_http]
        rest = [run for run in result.runs if run.file not in over_http]
        for name, runs in (("all", [*result.runs]), ("over HTTP", http), ("in process", rest)):
            print(f"| {name}{about}, {len(runs)} runs | {cells(runs)} |")
    for file in files:
        print(f"| `{file.path.name}` | {cells([run for run in probed.runs if run.file == file.path.name])} |")
    print("\nKV blocks, where the engine chose them:", end=" ")
    told = [f"{name} {100 * pair.error:+.1f} %" for name, pair in probed.kv_blocks if pair is not None]
    print(", ".join(told) + ".\n\n## Run by run\n")
    print("Signed errors in percent; * is outside the interval.\n")
    print(f"| file | run {columns}| --- | --- |{' --: |' * len(QUANTITIES)}")
    for run in probed.runs:
        errors = (signed(getattr(run, name)) for name in QUANTITIES.values())
        print(f"| {run.file} | {run.label} | {' | '.join(errors)} |")


if __name__ == "__main__":
    main()
