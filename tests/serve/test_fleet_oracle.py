"""Engines behind routers against reference engines: what looks ahead must not see what it could not know."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from infercast.serve.fleet.pool import Pool, simulate_fleet
from infercast.serve.fleet.router import POLICIES
from infercast.serve.fleet.two_pools import Handover, Link, simulate_disaggregated
from infercast.serve.loop import Replica
from infercast.serve.workload.request import Workload


def engines_of(replica: Replica, count: int) -> tuple[Replica, ...]:
    """Equal engines, each of which remembers for itself what it has met."""
    return tuple(replace(replica, first_uses=copy.deepcopy(replica.first_uses)) for _ in range(count))


def fleet(replica: Replica, workload: Workload, seed: int) -> tuple[Pool, Workload]:
    rng = Random(f"fleet {seed}")
    lockstep = rng.random() < 0.2
    shared = (lambda tokens: 0.003 * tokens) if lockstep and rng.random() < 0.5 else None
    return Pool(engines_of(replica, rng.randint(2, 4)), rng.choice([*POLICIES]), lockstep, shared), workload


@pytest.mark.parametrize(("kind", "count"), [("small", 120), ("tree", 60), ("pipeline", 25), ("crowd", 25)])
def test_every_engine_of_random_fleets(scenario: Any, facts: Any, reference_fleet: Any, kind: str, count: int) -> None:
    for seed in range(count):
        expected = [facts(record) for record in reference_fleet(*fleet(*scenario(kind, seed), seed))]
        served = [facts(record) for record in simulate_fleet(*fleet(*scenario(kind, seed), seed))]
        assert served == expected, (kind, seed)


def two_pools(replica: Replica, workload: Workload, seed: int) -> Handover:
    rng = Random(f"pools {seed}")
    prefill, decode = (Pool(engines_of(replica, rng.randint(1, 3)), rng.choice([*POLICIES])) for _ in range(2))
    link = Link(rng.choice([100.0, 1e9]), rng.choice([100.0, 1e9]), rng.choice([0.0, 0.1]))
    return simulate_disaggregated(prefill, decode, link, lambda tokens: 10.0 * tokens, workload)


@pytest.mark.parametrize(("kind", "count"), [("small", 60), ("crowd", 12)])
def test_two_pools_of_plain_engines(
    scenario: Any, facts: Any, reference_engine: Any, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    def run(seed: int) -> list[Any]:
        replica, workload = scenario(kind, seed)
        longest = replica.max_model_len
        assert longest is not None
        whole = replica.kv_shape.most_blocks(longest, longest)  # prompts arrive at once, before their windows
        done = two_pools(replace(replica, num_blocks=max(replica.num_blocks, whole)), workload, seed)
        wire = [times.tobytes() for times in (done.ready, done.began, done.received)]
        return [wire, *(facts(record) for record in (*done.prefill, *done.decode))]

    quick = [run(seed) for seed in range(count)]
    monkeypatch.setattr(
        "infercast.serve.simulation.loop_of",
        lambda replica, clients, record, **_: reference_engine(replica, clients, record),
    )
    for seed, served in enumerate(quick):
        assert served == run(seed), (kind, seed)
