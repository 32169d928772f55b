"""Pipelines of whole deployments: what one request gains (nothing), and which versions overlap which stages."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from infercast import deploy, simulate
from infercast.engines.base import engine_named
from infercast.serve.workload.synthetic import synthetic_workload

MODELS = [
    ("qwen3-0.6b", 1), ("llama-3.1-8b", 1), ("gemma-3-12b", 2), ("deepseek-v2-lite", 1), ("qwen3-30b-a3b", 1),
    ("gpt-oss-20b", 1), ("deepseek-r1", 8),
]  # fmt: skip


def forecast(model, stages, tensor=1, engine="vllm@0.25", **workload):
    asked = {"concurrency": 1, "count": 2, "input_lengths": 1024, "output_lengths": 12, **workload}
    deployment = deploy(
        model,
        "h200-sxm",
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        network="infiniband-ndr",
        predictor="roofline",
        engine=engine,
        host=engine_named("vllm@0.25").default_host(),  # so that releases differ by their rules alone
    )
    return simulate(deployment, synthetic_workload(**asked))


@pytest.mark.parametrize("engine", ["vllm@0.25", "vllm@0.32"])
@pytest.mark.parametrize(("model", "tensor"), MODELS)
def test_a_lone_request_gains_nothing_from_more_stages(model, tensor, engine):
    runs = [forecast(model, stages, tensor, engine) for stages in (1, 2, 4)]
    for fewer, more in pairwise(runs):
        assert more.ttft.p50 >= fewer.ttft.p50
        assert more.tpot.p50 >= fewer.tpot.p50


def test_short_prompts_gain_nothing_either():
    runs = [forecast("qwen3-0.6b", stages, input_lengths=16) for stages in (1, 2, 4)]
    assert runs[0].ttft.p50 <= runs[1].ttft.p50 <= runs[2].ttft.p50


@cache
def busy(model, engine, stages=2):
    load = {"concurrency": 64, "count": 192, "output_lengths": 64}
    return forecast(model, stages, engine=engine, **load).output_tokens_per_second


def test_stages_with_experts_overlap_from_the_v2_runner_on():
    one_after_the_other, overlapped = (busy("qwen3-30b-a3b", engine) for engine in ("vllm@0.25", "vllm@0.32"))
    assert overlapped > 1.2 * one_after_the_other


def test_stages_without_experts_overlap_in_both_versions():
    assert busy("llama-3.1-8b", "vllm@0.25") == busy("llama-3.1-8b", "vllm@0.32")
    assert busy("llama-3.1-8b", "vllm@0.25") > 1.3 * busy("llama-3.1-8b", "vllm@0.25", stages=1)
