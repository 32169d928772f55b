"""Simulated requests a second against the length of the run, peak memory, and how both grow.

Every run is a process of its own, started anew, so that start-up and memory are counted; the same Poisson workload
(about 700 input and 180 output tokens, 12 requests a second, llama-3.1-8b on one H200) at each length. What a request,
a further one and a step cost is processor time.

    python benchmarks/speed/serving.py [--lengths 1000,10000,100000,1000000] [--engine sglang] [--trace azure.csv]
        [--json FILE]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

WIDTHS = (10, 11, 9, 9, 11, 14, 9, 10)
LENGTHS = "1000,5000,10000,100000,1000000"
RUN = """
import json, sys, time
started = time.process_time()
import infercast
length, trace, engine = int(sys.argv[1]), sys.argv[2], sys.argv[3]
deployment = infercast.deploy("llama-3.1-8b", "h200-sxm", engine=engine)
if trace:
    workload = infercast.read_trace(trace)
else:
    lengths = {"input_lengths": "lognormal:700:0.9:16:8000", "output_lengths": "lognormal:180:0.8:4:1000"}
    workload = infercast.synthetic_workload(rate=12, count=length, **lengths)
ready = time.process_time()
forecast = infercast.simulate(deployment, workload)
ended = time.process_time()
steps = sum(phase.steps for phase in forecast.phases)
print(json.dumps({"requests": len(workload.requests), "steps": steps, "simulated_s": forecast.duration,
                  "prepare_s": ready - started, "simulate_s": ended - ready}))
"""


def measure(length: int, engine: str, trace: str = "") -> dict[str, float]:
    """One run in a process of its own; wall seconds in all, and peak memory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(length), trace, engine], stdout=subprocess.PIPE, text=True, env=environment
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the run of {length} requests failed")
    wall, processor = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    return {**json.loads(output), "wall_s": wall, "processor_s": processor, "peak_mib": usage.ru_maxrss / 1024}


def show(rows: list[dict[str, float]]) -> None:
    """A table of runs; the first is what others grow from."""
    names = zip(
        ("requests", "steps", "wall", "processor", "a request", "a further one", "a step", "memory"),
        WIDTHS,
        strict=True,
    )
    print(" ".join(f"{name:>{width}}" for name, width in names))
    before = None
    for row in rows:
        further = ""
        if before is not None and row["requests"] > before["requests"]:
            seconds = (row["processor_s"] - before["processor_s"]) / (row["requests"] - before["requests"])
            further = f"{1e6 * seconds:.0f} us"
        each, step = (1e6 * row["processor_s"] / row[name] for name in ("requests", "steps"))
        cells = (
            f"{row['requests']:,}", f"{row['steps']:,}", f"{row['wall_s']:.2f} s", f"{row['processor_s']:.2f} s",
            f"{each:.0f} us", further, f"{step:.1f} us", f"{row['peak_mib']:.0f} MiB",
        )  # fmt: skip
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
        before = row


def main() -> None:
    """Parse the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--trace", default="", help="a trace to replay as well")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engine = arguments.engine
    measure(10, engine)  # compiles and caches whatever is not yet
    rows = [measure(int(length), engine) for length in arguments.lengths.split(",")]
    show(rows)
    if len(rows) > 1:
        first, last = (row["simulate_s"] / row["requests"] for row in (rows[-2], rows[-1]))
        print(f"simulating alone, the last costs {last / first:.2f} times as much a request as the one before")
    replayed = measure(0, engine, arguments.trace) if arguments.trace else None
    if replayed:
        print("the trace:")
        show([replayed])
    if arguments.json:
        arguments.json.write_text(json.dumps({"runs": rows, "trace": replayed}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
