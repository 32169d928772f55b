"""How long the default run takes, beside what starting Python and importing numpy cost on the same machine.

Processor seconds of whole processes, which other work on the machine disturbs less than a clock.

python benchmarks/speed/default_run.py
"""

import json
import os
import resource
import statistics
import subprocess
import sys

RUNS = 5
SIMULATE = ["-m", "infercast", "simulate", "llama-3.1-8b", "--gpu", "h200-sxm", "--rate", "12", "--json"]
COMMANDS = {
    "python starts": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import infercast": ["-c", "import infercast"],
    "import all of it": ["-c", "import infercast; infercast.deploy, infercast.simulate"],
    "infercast --version": ["-m", "infercast", "--version"],
    "infercast --help": ["-m", "infercast", "--help"],
    "simulate, 10 requests": [*SIMULATE, "--num-requests", "10"],
    "simulate, 1,000 requests": SIMULATE,
    "simulate, 5,000 requests": [*SIMULATE, "--num-requests", "5000"],
}


def spent_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def median_seconds(arguments: list[str]) -> float:
    times = []
    # As installed: with compiled files, which some machines are told not to write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}  # all of the work
    for _ in range(RUNS):
        start = spent_by_children()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        times.append(spent_by_children() - start)
    return statistics.median(times)


seconds = {name: median_seconds(arguments) for name, arguments in COMMANDS.items()}
base = seconds["import numpy"]
for name, value in seconds.items():
    print(f"{name:28} {value:7.3f} s {value / base:8.1f} x import numpy")
print(json.dumps({name: round(value, 4) for name, value in seconds.items()}))
