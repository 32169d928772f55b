"""Metrics in Prometheus' format, under the engines' names."""

import json
import re
from math import inf
from pathlib import Path

import httpx
import pytest

from infercast.emulate.answers import Wanted
from infercast.emulate.emulator import Call, Emulator, Metrics, metrics_of
from infercast.emulate.server import emulator
from infercast.engines.base import engine_named
from infercast.forecast.deploy import deploy
from infercast.forecast.system import system_of
from infercast.serve.workload.distributions import parse_lengths

NAMES = json.loads((Path(__file__).parent.parent / "data" / "metric_names.json").read_text())
"""Names that the engines' own sources define, vLLM 0.33 and SGLang 0.5.23, and which of them need no option."""


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_names_are_the_engines(family: str) -> None:
    table = metrics_of(family)
    assert {row["name"] for row in table["metric"]} <= {*NAMES[family]}


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_none_is_missing_that_needs_no_option(family: str) -> None:
    shown = re.findall(rf"^# TYPE ({family}:\w+)", metrics_page(family), re.MULTILINE)
    stems = {each.removesuffix("_total") for each in shown}
    assert {each.removesuffix("_total") for each in NAMES[f"{family} always"]} <= stems


def metrics_page(family: str) -> str:
    with emulator("qwen3-0.6b", "h200-sxm", engine=family, speed=20) as url:
        httpx.post(f"{url}/v1/completions", json={"prompt": "a", "structured_outputs": {"regex": "a"}, "regex": "a"})
        return httpx.get(f"{url}/metrics").text


def test_requests_are_preempted_as_often_as_the_engine_says() -> None:
    now = [0.0]
    deployment = deploy("llama-3.1-8b", "l4", engine_named("vllm").settings({"max_model_len": 8192}))
    emulated = Emulator(system_of(deployment), parse_lengths("20", ""), clock=lambda: now[0])
    for number in range(40):
        emulated.start(Call(), 0, [number] * 1500, 1200, Wanted(ignore_eos=True))
    while emulated.live.next_event < inf:
        now[0] = emulated.live.next_event
        emulated.catch_up()
    text = emulated.metrics_text()
    total, each = (
        float(re.search(rf"^vllm:{name}\S* (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("num_preemptions_total", "request_num_preemptions_sum")
    )
    assert total == each > 0


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_every_line_is_of_the_format(family: str) -> None:
    metrics = Metrics(family, 'a "model"', 2, 4096)
    metrics.engines[1].observe("ttft", 0.3)
    metrics.engines[1].observe("ttft", 1e9)
    names = {row["value"] for row in metrics_of(family)["metric"]}
    gauges = dict.fromkeys(
        [*names, "block_size", "num_gpu_blocks", "enable_prefix_caching", "gpu_memory_utilization"], 1.0
    )
    text = metrics.text([gauges, gauges], {"infercast:lag_seconds": ("Late.", 0.5)})
    line = re.compile(r'[a-z_]+:\w+\{([a-z_]+="(?:[^"\\]|\\.)*",?)+\} -?[\d.e+-]+|infercast:lag_seconds 0.5')
    lines = [each for each in text.splitlines() if not each.startswith("#")]
    assert all(line.fullmatch(each) for each in lines)
    assert len(lines) == len({*lines})
    counts = [int(each.rpartition(" ")[2]) for each in lines if "time_to_first_token_seconds_bucket" in each]
    assert counts[-1] == 2
    assert counts[-2] == 1
