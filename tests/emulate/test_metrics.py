"""Metrics in Prometheus' format, under the engines' names."""

import json
import re
from pathlib import Path

import pytest

from infercast.emulate.emulator import Metrics, metrics_of

NAMES = json.loads((Path(__file__).parent.parent / "data" / "metric_names.json").read_text())
"""Names that the engines' own sources define: vLLM 0.32 and SGLang 0.5.23."""


@pytest.mark.parametrize("family", ["vllm", "sglang"])
def test_names_are_the_engines(family: str) -> None:
    table = metrics_of(family)
    assert {row["name"] for row in table["metric"]} <= {*NAMES[family]}


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
