"""A rule of an autoscaler in a test: a fixture serves an engine, and the rule reads its metrics as in a cluster."""

import asyncio
import time
from collections.abc import Iterator
from math import ceil

import httpx
import pytest

from infercast.calibration.learn import fetch
from infercast.calibration.readers import parse_metrics
from infercast.emulate.server import emulator
from infercast.engines.base import engine_named


@pytest.fixture
def endpoint() -> Iterator[str]:
    settings = engine_named("vllm").settings({"max_num_seqs": 4})
    with emulator("llama-3.1-8b", gpu="h200-sxm", settings=settings, speed=10) as url:
        yield url


def replicas_for(url: str, requests_each: int = 8) -> int:
    """The rule: so many requests for each replica, running or waiting."""
    values = parse_metrics(fetch(url))
    load = sum(
        value
        for (name, _), value in values.items()
        if name in ("vllm:num_requests_running", "vllm:num_requests_waiting")
    )
    return max(1, ceil(load / requests_each))


def test_a_rule_adds_replicas_in_a_burst_and_takes_them_away(endpoint: str) -> None:
    async def burst() -> list[int]:
        document = {"prompt": [1] * 200, "max_tokens": 500, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=endpoint, timeout=60) as client:
            asked = [asyncio.create_task(client.post("/v1/completions", json=document)) for _ in range(24)]
            wanted = []
            while not all(each.done() for each in asked):
                wanted.append(await asyncio.to_thread(replicas_for, endpoint))
                await asyncio.sleep(0.02)
            assert all(each.result().status_code == 200 for each in asked)
            return wanted

    assert replicas_for(endpoint) == 1
    assert max(asyncio.run(burst())) in (2, 3)  # 24 requests, some of which may have come and gone
    end = time.monotonic() + 10
    while replicas_for(endpoint) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert replicas_for(endpoint) == 1
