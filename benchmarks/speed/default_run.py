"""How long the default run takes, beside what starting Python and importing numpy cost on the same machine.

python benchmarks/speed/default_run.py
"""

import json
import os
import statistics
import subprocess
import sys
import time

RUNS = 5
SIMULATE = ["-m", "infercast", "simulate", "llama-3.1-8b", "--gpu", "h200-sxm", "--rate", "12", "--json"]
COMMANDS = {
    "python starts": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import infercast": ["-c", "import infercast"],
    "import all of it": ["-c", "import infercast; infercast.deploy, infercast.simulate"],
    "infercast --version": ["-m", "infercast", "--version"],
    "simulate, 1,000 requests": SIMULATE,
    "simulate, 5,000 requests": [*SIMULATE, "--num-requests", "5000"],
}


def median_seconds(arguments: list[str]) -> float:
    times = []
    # As installed: with compiled files, which some machines are told not to write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


seconds = {name: median_seconds(arguments) for name, arguments in COMMANDS.items()}
base = seconds["import numpy"]
for name, value in seconds.items():
    print(f"{name:28} {value:7.3f} s {value / base:8.1f} x import numpy")
print(json.dumps({name: round(value, 4) for name, value in seconds.items()}))
