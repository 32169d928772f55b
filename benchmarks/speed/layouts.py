"""How long a sweep of layouts takes, beside what importing numpy costs on the same machine.

python benchmarks/speed/layouts.py
"""

import os
import statistics
import subprocess
import sys
import time

RUNS = 3
KINDS = ("a100-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm")
SWEEP = ["-m", "infercast", "layouts", "llama-3.3-70b", "--quantization", "fp8", "--gpus", "1,2,3,4,5,6,7,8"]
COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "70B on 1 to 8 GPUs of five kinds": [*SWEEP, *(word for kind in KINDS for word in ("--gpu", kind))],
}


def median_seconds(arguments: list[str]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        environment = os.environ | {"INFERCAST_CACHE": "off", "INFERCAST_TIME_LIMIT": "100000"}  # all of the work
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


seconds = {name: median_seconds(arguments) for name, arguments in COMMANDS.items()}
for name, value in seconds.items():
    print(f"{name:34} {value:7.3f} s {value / seconds['import numpy']:8.1f} x import numpy")
