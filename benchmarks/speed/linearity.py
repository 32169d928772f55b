"""Processor seconds against the number of requests and of replicas, measured and drawn as docs/images/speed.svg.

    python benchmarks/speed/linearity.py [--requests 1000,...] [--replicas 1,...] [--json FILE]

Requests as in serving.py, on one engine; of several replicas each gets a hundred. Every run is a process of its own.
``--json`` keeps the numbers, and draws those that it has already.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
from serving import measure

mpl.use("svg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parents[2] / "docs" / "images" / "speed.svg"
EACH = 100
REPLICAS = """
import sys, infercast
count = int(sys.argv[1])
lengths = {"input_lengths": "lognormal:700:0.9:16:8000", "output_lengths": "lognormal:180:0.8:4:1000"}
load = infercast.synthetic_workload(rate=12 * count, count=int(sys.argv[2]) * count, **lengths)
infercast.simulate(infercast.deploy("llama-3.1-8b", "h200-sxm", data_parallel_size=count), load)
"""


def seconds_of(replicas: int) -> float:
    """User and system seconds of a run on so many replicas."""
    words = [sys.executable, "-c", REPLICAS, str(replicas), str(EACH)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(words, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the run on {replicas} replicas failed")
    return usage.ru_utime + usage.ru_stime


def draw(series: dict[str, dict[str, float]], path: Path) -> None:
    """Each on two logarithmic axes, beside a line of slope one through its last point."""
    plt.rcParams |= {
        "svg.hashsalt": "infercast",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    figure, panels = plt.subplots(1, len(series), figsize=(8, 3.2), layout="constrained")
    for panel, (name, found) in zip(panels, series.items(), strict=True):
        counts, seconds = [int(each) for each in found], [*found.values()]
        panel.plot(counts, [seconds[-1] * each / counts[-1] for each in counts], color="#888888", lw=0.8, ls="--")
        panel.plot(counts, seconds, "o-", color="#1f6fb4", ms=4.5, lw=1.2)
        panel.set(xscale="log", yscale="log", xlabel=name, ylim=(0.3, 2 * max(seconds)))
    panels[0].set_ylabel("processor seconds (dashed: linear)")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure what is not known yet, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", default="1000,10000,100000,1000000")
    parser.add_argument("--replicas", default="1,4,16,64,256")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    known = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    by_requests, by_replicas = known.get("requests", {}), known.get("replicas (100 requests each)", {})
    for count in asked.requests.split(","):
        by_requests[count] = by_requests.get(count) or measure(int(count), "vllm")["processor_s"]
    for count in asked.replicas.split(","):
        by_replicas[count] = by_replicas.get(count) or seconds_of(int(count))
    series = {"requests": by_requests, "replicas (100 requests each)": by_replicas}
    print(json.dumps(series))
    if asked.json:
        asked.json.write_text(json.dumps(series) + "\n", encoding="utf-8")
    draw(series, OUT)


if __name__ == "__main__":
    main()
