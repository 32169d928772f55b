"""Defaults of releases before those whose rules are known in full."""

from __future__ import annotations

import pytest

from infercast.engines.base import engine_named
from infercast.forecast.deploy import load_model

ENGINE = engine_named("vllm@0.25")


@pytest.mark.parametrize(
    ("version", "settings", "options"),
    [
        ((0, 10, 2), {"gpu_memory_utilization": 0.9, "async_scheduling": False, "cudagraph_mode": "piecewise"}, False),
        ((0, 11, 0), {"gpu_memory_utilization": 0.9, "async_scheduling": False}, False),
        ((0, 14, 0), {"gpu_memory_utilization": 0.9}, False),
        ((0, 19, 0), {"gpu_memory_utilization": 0.9}, None),
        ((0, 20, 0), {}, None),
        ((), {}, None),
    ],
)
def test_what_a_release_did_by_default(
    version: tuple[int, ...], settings: dict[str, object], options: bool | None
) -> None:
    found, others = ENGINE.before(version, load_model("qwen3-8b"))
    assert found == settings
    assert others.get("fuse_allreduce_rms") is options


def test_the_first_engine_computed_prompts_first() -> None:
    found, _ = ENGINE.before((0, 6, 5), load_model("qwen3-8b"))
    assert not found["enable_chunked_prefill"]
    assert found["max_num_seqs"] == 256
    assert ENGINE.settings(found).prompts_first
