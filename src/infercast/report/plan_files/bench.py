"""A script that runs the engine's own benchmark around the chosen point and prints the forecast beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from infercast.engines.words import Commands
from infercast.forecast.plan.checks import Check
from infercast.units import MILLI

HEAD = """#!/usr/bin/env bash
# {title}
# Measures a running deployment at several rates, and prints the forecast beside what it measured.
# Usage: bash bench.sh [BASE_URL]   (default http://localhost:{port})
# Prompts and answers are as long as those of the plan's question are on average, and so is the forecast.
# BASE_URL is that of the load balancer before the replicas, or of the one server.
set -euo pipefail
MODEL="${{MODEL:-{model}}}"
BASE_URL="${{1:-http://localhost:{port}}}"
RESULTS="${{RESULTS:-bench-results}}"
mkdir -p "$RESULTS"
"""
RUN = """
echo "== {rate:g} requests/s, {requests} requests of {num_input} + {num_output} tokens"
{bench} --base-url "$BASE_URL" --model "$MODEL" --dataset-name random --random-input-len {num_input} \\
  --random-output-len {num_output} --request-rate {rate:g} --num-prompts {requests} --seed 0 \\
  {flags}
"""
COMPARE = """
python3 - "$RESULTS" <<'END'
import json, pathlib, sys

FORECASTS = json.loads('''{forecasts}''')
print(f"{{'':>24}}{{'forecast':>12}}{{'80 % interval':>22}}{{'measured':>12}}{{'error':>9}}")
for rate, rows in FORECASTS.items():
    written = (pathlib.Path(sys.argv[1]) / f"rate-{{rate}}.json").read_text()
    measured = json.loads(written.splitlines()[-1])
    print(f"{{rate}} requests/s")
    for name, forecast, low, high, key in rows:
        found = measured.get(key)
        beside = f"{{found:>12.1f}}{{100 * (forecast / found - 1):>+8.0f}}%" if found else f"{{'-':>12}}"
        within = "" if not found or low <= found <= high else "  outside"
        print(f"{{name:>24}}{{forecast:>12.1f}}{{f'{{low:.1f}} to {{high:.1f}}':>22}}{{beside}}{{within}}")
END
"""
KEYS = {"p50": "median", "p99": "p99", "mean": "mean"}
"""As the benchmark names them."""


def bench_script(checks: Sequence[Check], commands: Commands, model: str, title: str) -> str:
    """``bench.sh``."""
    bench = shlex.join(commands.bench)
    text = HEAD.format(title=title, port=commands.port, model=model)
    for check in checks:
        values = {name: getattr(check, name) for name in ("rate", "requests", "num_input", "num_output")}
        name = f"rate-{check.rate:g}.json"
        text += RUN.format(bench=bench, flags=commands.bench_flags.format(name=name), **values)
    forecasts = {f"{check.rate:g}": _rows(check, commands.bench_end_to_end) for check in checks}
    return text + COMPARE.format(forecasts=json.dumps(forecasts))


def _rows(check: Check, end_to_end: str) -> list[tuple[str, float, float, float, str]]:
    """Name, forecast, the ends of its interval, and the benchmark's key."""
    forecast, intervals = check.forecast, check.intervals
    rows = []
    for name, values, band in (
        ("ttft", forecast.ttft, intervals.ttft),
        ("tpot", forecast.tpot, intervals.tpot),
        (end_to_end, forecast.end_to_end, intervals.end_to_end),
    ):
        if values is None or band is None:
            continue
        for which, key in KEYS.items():
            ends = (getattr(each, which) / MILLI for each in (values, band.low, band.high))
            middle, low, high = (round(each, 3) for each in ends)
            rows.append((f"{name} {which} ms", middle, low, high, f"{key}_{name}_ms"))
    rates = (forecast.output_tokens_per_second, *intervals.output_tokens_per_second)
    middle, low, high = (round(check.times * each, 1) for each in rates)
    rows.append(("output tokens/s", middle, low, high, "output_throughput"))
    return rows
