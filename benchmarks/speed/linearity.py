"""Processor seconds against the number of requests, replicas and candidates, drawn as docs/images/speed.svg.

    python benchmarks/speed/linearity.py [--requests 1000,...] [--replicas 1,...] [--settings 4,...] [--json FILE]

Requests as in serving.py, on one engine; of several replicas each gets a hundred. A plan has 64 candidates for every
value of a setting. Every run is a process of its own.
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
SETTINGS = """
import sys
from infercast.forecast.plan.question import AXES, Question, setting_axis
from infercast.forecast.plan.search import plan
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload
lengths = {"input_lengths": "lognormal:700:0.9:16:6000", "output_lengths": "lognormal:180:0.8:4:999"}
axis = setting_axis("max_num_seqs", tuple(range(64, 64 + int(sys.argv[1]))))
load, slo = synthetic_workload(rate=20, count=300, **lengths), parse_slo("ttft_p99<1s,tpot_p95<40ms")
where = {"gpus": ("l40s", "h100-sxm"), "prices": (1.05, 3.29), "engines": ("vllm@0.32",)}
found = plan(Question("llama-3.1-8b", load, slo, **where, settings=((),), axes=(*AXES, axis)))
assert found.num_candidates == int(sys.argv[2]) * int(sys.argv[1])
"""
OF_SETTING = 64  # Candidates of each value


def seconds_of(program: str, count: int, each: int) -> float:
    """User and system seconds of a run on so many replicas, or of a plan with so many values of a setting."""
    words = [sys.executable, "-c", program, str(count), str(each)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(words, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the run with {count} failed")
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
    figure, panels = plt.subplots(1, len(series), figsize=(10, 3.2), layout="constrained")
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
    parser.add_argument("--settings", default="1,10,100,1600")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    known = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    by_requests, by_replicas = known.get("requests", {}), known.get("replicas (100 requests each)", {})
    for count in asked.requests.split(","):
        by_requests[count] = by_requests.get(count) or measure(int(count), "vllm")["processor_s"]
    for count in asked.replicas.split(","):
        by_replicas[count] = by_replicas.get(count) or seconds_of(REPLICAS, int(count), EACH)
    by_candidates = known.get("candidates of a plan", {})
    for value in asked.settings.split(","):
        count = str(OF_SETTING * int(value))
        by_candidates[count] = by_candidates.get(count) or seconds_of(SETTINGS, int(value), OF_SETTING)
    series = {"requests": by_requests, "replicas (100 requests each)": by_replicas}
    series["candidates of a plan"] = by_candidates
    print(json.dumps(series))
    if asked.json:
        asked.json.write_text(json.dumps(series) + "\n", encoding="utf-8")
    draw(series, OUT)


if __name__ == "__main__":
    main()
