"""Watts of a few dozen kernels, each run on and on until the board's power has settled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import numpy as np

from infercast.measure.case import Case
from infercast.measure.device import State
from infercast.measure.rows import COOL_SECONDS, Bench, Watch
from infercast.measure.table import Store

TABLE = "power"
SECONDS = 0.7
SETTLE_SECONDS = 0.2
"""How long power and clock take to follow a kernel."""
EACH = 6
"""Kernels of a family."""
LEAST_US = 100.0
"""A shorter kernel is over before the CPU has launched the next one, and the GPU would be measured waiting."""


def measure_power(cases: Sequence[Case], store: Store, bench: Bench, monitor: Watch, deadline: float) -> int:
    """Rows of ``power.parquet`` into the store, as many as there is time for; returns how many came new."""
    if monitor.since(0.0) == State():
        return 0  # nobody can look at the board
    done, added = store.done(), 0
    for case, seconds in power_cases(cases, {row["key"]: row["latency_us"] for row in store.rows()}):
        key = f"{TABLE} {case.key}"
        if key in done:
            continue
        if time.monotonic() + SECONDS + COOL_SECONDS > deadline:
            break
        monitor.wait_until_cool(COOL_SECONDS)
        try:
            launch = bench.build(case)
            start = time.monotonic()
            each = bench.repeat_for(launch, SECONDS, seconds)
        except Exception:
            continue  # it ran once, but memory may be short by now; other kernels tell as much
        state = monitor.since(start + SETTLE_SECONDS)
        row = {"key": key, "table": TABLE, "gpu": store.folder.name, "family": case.family}
        row |= {"shape": json.dumps(case.shape, sort_keys=True)}
        store.append([row | {"watts": state.watts, "sm_mhz": state.sm_mhz, "latency_us": round(1e6 * each, 3)}])
        added += 1
    return added


def power_cases(cases: Sequence[Case], latencies: dict[str, float]) -> Iterator[tuple[Case, float]]:
    """Of each family some measured cases from light to heavy, with their seconds."""
    long = [(case, latencies[case.key]) for case in cases if latencies.get(case.key, 0.0) >= LEAST_US]
    for family in dict.fromkeys(case.family for case, _ in long):
        own = [(case, microseconds) for case, microseconds in long if case.family == family]
        own.sort(key=lambda pair: (pair[0].flops / pair[1], pair[0].key))
        places = np.unique(np.linspace(0, len(own) - 1, EACH).round().astype(int))
        yield from ((own[place][0], 1e-6 * own[place][1]) for place in places)
