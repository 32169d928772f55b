"""Random engines and workloads, the reference engine, and what a run leaves behind in a form that can be compared."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.serve.fleet.pool import Pool
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.step import StepTimer
from infercast.serve.workload.request import Workload

Scenario = tuple[Replica, Workload]


def _load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name(name)))


@pytest.fixture(scope="session")
def scenario() -> Callable[[str, int], Scenario]:
    """The scenario of a kind (one of ``KINDS`` in scenarios.py) and a seed, made anew each time."""
    kinds = _load("scenarios.py")["KINDS"]
    return lambda kind, seed: kinds[kind](seed)


@pytest.fixture(scope="session")
def timer() -> StepTimer:
    """Step times that depend on the batch and on its contexts."""
    timer: StepTimer = _load("scenarios.py")["batch_timer"]
    return timer


@pytest.fixture(scope="session")
def reference_cache() -> Any:
    """The module of the cache block by block."""
    return _load("reference_cache.py")


@pytest.fixture(scope="session")
def reference_engine() -> Any:
    """The class of the reference engine."""
    return _load("reference_engine.py")["Engine"]


@pytest.fixture(scope="session")
def reference() -> Callable[[Replica, Workload], Record]:
    """The reference engine's simulation."""
    simulate: Callable[[Replica, Workload], Record] = _load("reference_engine.py")["simulate"]
    return simulate


@pytest.fixture(scope="session")
def reference_fleet() -> Callable[[Pool, Workload], list[Record]]:
    """The simulation of several reference engines."""
    simulate: Callable[[Pool, Workload], list[Record]] = _load("reference_fleet.py")["simulate_fleet"]
    return simulate


@pytest.fixture(scope="session")
def facts() -> Callable[[Record], dict[str, Any]]:
    """Everything a record holds, exact to the bit."""

    def take(record: Record) -> dict[str, Any]:
        arrays = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached")
        result: dict[str, Any] = {name: getattr(record, name).tobytes() for name in arrays}
        gaps, counts = record.gaps
        result["gaps"] = np.repeat(gaps, counts).tobytes()
        result["num_preemptions"] = record.num_preemptions
        for name in ("running", "waiting", "kv_usage"):
            gauge = getattr(record, name)
            result[name] = (float(gauge.area).hex(), float(gauge.peak).hex())
        for phase, totals in record.phases.items():
            result[phase] = (
                (totals.steps, totals.tokens, totals.sequences, totals.context, totals.sampled),
                totals.seconds.hex(),
                ([seconds.hex() for seconds in totals.varying], totals.rows, totals.slowed),
            )
        return result

    return take
