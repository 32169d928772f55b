"""How much sooner several worker processes are done: processor time of pure Python, or a Ray cluster of this machine.

    python benchmarks/speed/workers.py [--workers 2] [--ray]

The first work of each is not counted: it starts the workers. Beside the time on the clock, which other programs make
longer, stands what it would be on idle ones: the processor time of the busiest worker and of the process that asks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter

from infercast.forecast.plan.executors import Executor, executor_for

ITEMS, TURNS = 64, 400_000


def work(item: int) -> tuple[int, int, float]:
    """Some hundredths of a second of one processor: an answer, who gave it, and the processor time."""
    start, total = time.process_time(), item
    for number in range(TURNS):
        total = (total * 31 + number) % 1_000_003
    return total, os.getpid(), time.process_time() - start


def seconds(executor: Executor) -> tuple[float, float, list[int]]:
    """On the clock, on idle processors, and the answers."""
    list(executor.map(work, range(4 * executor.width)))
    start, own = time.perf_counter(), time.process_time()
    answers = list(executor.map(work, range(ITEMS)))
    elapsed, own = time.perf_counter() - start, time.process_time() - own
    busy: Counter[int] = Counter()
    for _, process, spent in answers:
        busy[process] += spent  # type: ignore[assignment]
    others = [spent for process, spent in busy.items() if process != os.getpid()]
    return elapsed, own + max(others, default=0.0), [answer for answer, *_ in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ray", action="store_true")
    asked = parser.parse_args()
    busy = os.getloadavg()[0]
    with executor_for(workers=1) as executor:
        clock, idle, expected = seconds(executor)
    with executor_for(ray="local") if asked.ray else executor_for(workers=asked.workers) as executor:
        clock_together, idle_together, answers = seconds(executor)
        width = executor.width
    assert answers == expected
    print(f"on the clock: {clock:.2f} s alone, {clock_together:.2f} s with {width}: {clock / clock_together:.2f}x")
    print(f"on idle processors: {idle:.2f} s, {idle_together:.2f} s: {idle / idle_together:.2f}x (load was {busy:.1f})")


if __name__ == "__main__":
    main()
