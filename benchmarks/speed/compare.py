"""Run two revisions side by side and print how much processor time each takes, and their ratio.

    python benchmarks/speed/compare.py OLD [NEW] [--only TEXT] [--times 5] [--traces FOLDER]

Revisions are anything git knows; without NEW it is the working tree. Each revision is checked out into a folder of its
own, and runs take turns: old, new, old, new, so that a machine that slows down does so for both. The median of user
and system seconds of whole processes counts, with compiled files as after an install. A run that a revision does not
know is left out. ``--traces`` holds the files that Azure and Mooncake published, under their own names.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LLAMA = "llama-3.1-8b --gpu h200-sxm"
SLO = "--slo ttft_p99<1s,tpot_p95<40ms"
LARGE = "--gpu a100-sxm,h100-sxm,h200-sxm,b200-sxm,l40s --max-gpus 16 --quantization any --workers 1"
RUNS = {
    "start": "--version",
    "default": f"simulate {LLAMA} --rate 12",
    "1,000 requests": f"simulate {LLAMA} --rate 12 -n 1000",
    "5,000 requests": f"simulate {LLAMA} --rate 12 -n 5000",
    "SGLang, 5,000": f"simulate {LLAMA} --rate 12 -n 5000 --engine sglang",
    "prefixes, 5,000": f"simulate {LLAMA} --rate 12 -n 5000 --prefix-len 2048 --prefix-groups 8",
    "8 replicas, 20,000": f"simulate {LLAMA} --rate 96 -n 20000 --data-parallel-size 8",
    "experts, 64 clients": "simulate qwen3-30b-a3b --gpu h100-sxm --concurrency 64 -n 2000",
    "estimate": "estimate gemm --m 4096 --n 14336 --k 4096 --dtype bf16 --gpu h200-sxm",
    "sweep": f"sweep {LLAMA} --rates 4,8,12,16 -n 500",
    "plan 8B": f"plan llama-3.1-8b --rate 20 {SLO} --gpu h100-sxm,h200-sxm --workers 1",
    "plan 70B": f"plan llama-3.3-70b --rate 20 {SLO} {LARGE}",
}
TRACES = {
    "Azure conversations": ("AzureLLMInferenceTrace_conv.csv", f"simulate {LLAMA} --trace"),
    "Mooncake conversations": ("conversation_trace.jsonl", f"simulate {LLAMA} --trace"),
    "Mooncake synthetic": ("synthetic_trace.jsonl", f"simulate {LLAMA} --trace"),
}


def check_out(revision: str, folder: Path) -> Path:
    """The source of a revision, compiled; the working tree where none is named."""
    source = ROOT / "src"
    if revision:
        folder.mkdir()
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        source = folder / "src"
    compileall.compile_dir(source, quiet=1)
    return source


def seconds(source: Path, command: str) -> float | None:
    """Processor seconds of one run; None if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}  # all of the work
    words = [sys.executable, "-m", "infercast", *command.split()]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, env={**environment, "PYTHONPATH": str(source)}, **pipes)
    _, status, usage = os.wait4(process.pid, 0)
    return None if status else usage.ru_utime + usage.ru_stime


def compare(sources: list[Path], command: str, times: int) -> list[float] | None:
    """Medians of each, taken in turns; None if either cannot run it."""
    found: list[list[float]] = [[] for _ in sources]
    for _ in range(times):
        for source, values in zip(sources, found, strict=True):
            spent = seconds(source, command)
            if spent is None:
                return None
            values.append(spent)
    return [statistics.median(values) for values in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--traces", type=Path, help="a folder of traces to replay as well")
    asked = parser.parse_args()
    runs = dict(RUNS)
    if asked.traces is not None:
        files = {path.name: path for path in asked.traces.rglob("*")}
        runs |= {name: f"{command} {files[file]}" for name, (file, command) in TRACES.items() if file in files}
    with tempfile.TemporaryDirectory() as folder:
        sources = [check_out(name, Path(folder, side)) for name, side in ((asked.old, "old"), (asked.new, "new"))]
        print(f"{'processor seconds':24} {asked.old[:12]:>12} {asked.new[:12] or 'here':>12} {'new/old':>8}")
        for name, command in runs.items():
            if asked.only in name:
                medians = compare(sources, command, asked.times)
                shown = (
                    "not known to both"
                    if medians is None
                    else "{:12.2f} {:12.2f} {:8.2f}".format(*medians, medians[1] / medians[0])
                )
                print(f"{name:24} {shown}", flush=True)


if __name__ == "__main__":
    main()
