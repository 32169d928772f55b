"""vLLM's balancers before data-parallel engines against ours, request by request, on random traffic.

    python benchmarks/scheduler/balance.py --version 0.32 [--vllm DIR] [--runs 300] [--seed 0] [--record OUT.json]

The real one is `DPLBAsyncMPClient.get_core_engine_for_request`, one client an API server; what a coordinator would
publish is made up, the same for both. tests/serve/test_router.py replays what ``--record`` wrote down.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from math import floor
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import vllm_tree as tree

from infercast.engines.vllm.versions import Rule, engine_version
from infercast.serve.fleet.router import PUBLISH_SECONDS, Engines, Loads, make_policy
from infercast.serve.workload.clients import Arrival
from infercast.serve.workload.request import Request

KEPT = 6
"""Workloads that are written down."""


def draw(version: str, seed: int) -> dict[str, Any]:
    """Engines, when each request comes, starts and ends, and how full each cache is in each publication."""
    rng = random.Random(f"balance:{seed}")
    count, num_requests = rng.choice([2, 2, 3, 4, 8]), rng.randint(5, 200)
    rate, wait, length = rng.choice([5, 50, 500]), rng.choice([0.01, 0.3, 3.0]), rng.choice([0.2, 2.0, 10.0])
    rows, now = [], 0.0
    for _ in range(num_requests):
        now += rng.choice([0.0, rng.expovariate(rate)])
        start = now + rng.choice([0.001, wait * rng.random()])
        rows.append([round(now, 6), round(start, 6), round(start + rng.expovariate(1 / length), 6)])
    usage = [[round(rng.random(), 3) for _ in range(count)] for _ in range(floor(now / PUBLISH_SECONDS) + 2)]
    publishes = rng.random() < 0.8 or engine_version(f"vllm@{version}").has(Rule.WEIGHS_CACHE)
    return {"version": version, "count": count, "requests": rows, "usage": usage, "publishes": publishes}


def ours(case: dict[str, Any]) -> Iterator[int]:
    """The engine of each request, as our balancer chooses it."""
    rows, count = case["requests"], case["count"]
    times = [Namespace(started_at=np.full(len(rows), np.nan)) for _ in range(count)]
    period = 0
    engines = Engines(
        count,
        publish_counts=case["publishes"],
        weighs_cache=engine_version(f"vllm@{case['version']}").has(Rule.WEIGHS_CACHE),
        usage=lambda engine: float(case["usage"][period][engine]),
    )
    choose, loads = make_policy("vllm", engines), Loads(count, times)
    for number, (arrival, start, end) in enumerate(rows):
        period = floor(arrival / PUBLISH_SECONDS)
        request = Request(arrival, 1, 1)
        loads.move_to(arrival)
        chosen = choose(Arrival(arrival, number, arrival, request), loads)
        times[chosen].started_at[number] = start
        loads.answered(chosen, end, number, request)
        yield chosen


def real(case: dict[str, Any]) -> Iterator[int]:
    """The same by vLLM's clients."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient  # noqa: PLC0415 - `vllm_tree.use` has to come first

    rows, count = case["requests"], case["count"]
    weighs = engine_version(f"vllm@{case['version']}").has(Rule.WEIGHS_CACHE)
    engines = [bytes([k]) for k in range(count)]
    clients = []
    for index in range(count):
        client = object.__new__(DPLBAsyncMPClient)
        client.client_count, client.client_index, client.core_engines = count, index, engines
        client.reqs_in_flight, client.engine_inflight = {}, Counter()
        client.eng_start_index = count * index // count
        client.lb_engines = [[0, 0, 0.0] if weighs else [0, 0] for _ in engines]
        clients.append(client)
    published, sent = 0, dict[int, int]()
    for number, (arrival, _, _) in enumerate(rows):
        period = floor(arrival / PUBLISH_SECONDS)
        if case["publishes"] and period > published:
            published, moment = period, period * PUBLISH_SECONDS
            for client in clients:
                client.lb_engines = [_counts(case, sent, engine, moment, weighs) for engine in range(count)]
        for client in clients:
            done = [key for key in client.reqs_in_flight if rows[int(key)][2] <= arrival]
            asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, Namespace(finished_requests=done)))
        client = clients[number % count]
        asked = Namespace(request_id=str(number), data_parallel_rank=None, pooling_params=None)
        sent[number] = engines.index(client.get_core_engine_for_request(asked))
        yield sent[number]


def _counts(case: dict[str, Any], sent: dict[int, int], engine: int, moment: float, weighs: bool) -> list[float]:
    """What a coordinator publishes of an engine."""
    there = [case["requests"][number] for number, chosen in sent.items() if chosen == engine]
    left = [row for row in there if not row[2] <= moment]
    running = sum(row[1] <= moment for row in left)
    usage = [case["usage"][floor(moment / PUBLISH_SECONDS + 0.5)][engine]] if weighs else []
    return [len(left) - running, running, *usage]


def main() -> None:
    """Compare, and print or write down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", choices=[*tree.WHEELS], default="0.32")
    parser.add_argument("--vllm", type=Path, help="a folder with the package vllm; default: the wheel's, fetched once")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a file to which some workloads and decisions are added")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.version, arguments.vllm))
    equal, kept = 0, []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        case = draw(arguments.version, seed)
        chosen = [*real(case)]
        equal += chosen == [*ours(case)]
        if len(kept) < KEPT and len(chosen) < 80:
            kept.append({**case, "chosen": chosen})
    print(f"vLLM {arguments.version}: {equal} of {arguments.runs} equal")
    if arguments.record is not None:
        before = json.loads(arguments.record.read_text()) if arguments.record.exists() else []
        arguments.record.write_text(json.dumps([*before, *kept], separators=(",", ":")) + "\n")
    sys.exit(0 if equal == arguments.runs else 1)


if __name__ == "__main__":
    main()
