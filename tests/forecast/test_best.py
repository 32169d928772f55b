"""The best possible throughput is a bound."""

from typing import Any

import pytest

import infercast

LOAD: dict[str, Any] = {"num_requests": 60, "input_len": 300, "output_len": 40}
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("qwen2.5-0.5b", "l4", {}),
    "roofline": ("llama-3.1-8b", "h200-sxm", {"predictor": "roofline"}),
    "long answers": ("llama-3.1-8b", "h100-sxm", {"input_len": 16, "output_len": 400}),
    "tensor parallel": ("llama-3.1-8b", "a100-sxm", {"tensor_parallel_size": 2}),
    "replicas": ("qwen2.5-0.5b", "l40s", {"data_parallel_size": 2}),
    "pipeline": ("qwen2.5-0.5b", "l4", {"pipeline_parallel_size": 2, "predictor": "roofline"}),
    "experts and windows": ("gpt-oss-20b", "h100-sxm", {}),
    "shared prefix": ("qwen2.5-0.5b", "l4", {"prefix_len": 2000, "input_len": 20}),
    "drafts": ("llama-3.1-8b", "h200-sxm", {"speculative_config": DRAFTS, "acceptance": "0.9"}),
    "vectors": ("bge-m3", "l4", {"output_len": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_no_run_does_more(name: str) -> None:
    model, gpu, options = CASES[name]
    for load in ({"concurrency": 60}, {"rate": 1.0}):
        run = infercast.simulate(model, gpu=gpu, **LOAD | load | options)
        best = run.best
        assert best is not None
        assert 0.0 < best.share <= 1.0
        assert best.share == pytest.approx(run.output_tokens_per_second / best.output_tokens_per_second)
        assert max(best.busy.values()) == best.busy[best.limited_by] == 1.0


def test_what_limits_follows_the_work() -> None:
    prompts = infercast.simulate("llama-3.1-8b", gpu="h200-sxm", rate=1, num_requests=20, input_len=2000, output_len=2)
    answers = infercast.simulate("llama-3.1-8b", gpu="h200-sxm", rate=1, num_requests=20, input_len=2, output_len=2000)
    assert prompts.best is not None
    assert prompts.best.limited_by == "tensor"
    # 16 billion operations a token, nothing else: 2,000 x 16e9 / 989e12 seconds a prompt, and attention.
    assert prompts.best.requests_per_second == pytest.approx(989e12 / (2000 * 2 * 7e9), rel=0.1)
    assert answers.best is not None
    assert answers.best.limited_by == "dram"


def test_twice_the_replicas_could_do_twice_as_much() -> None:
    one, two = (
        infercast.simulate("qwen2.5-0.5b", gpu="l4", concurrency=8, data_parallel_size=count, **LOAD).best
        for count in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert two.output_tokens_per_second == pytest.approx(2 * one.output_tokens_per_second, rel=1e-6)


def test_of_two_pools_the_slower_one_limits() -> None:
    run = infercast.simulate("qwen2.5-0.5b", gpu="l4", prefill_gpu="h100-sxm", concurrency=8, **LOAD)
    assert run.best is not None
    assert run.best.role == "decode"
    assert 0.0 < run.best.share <= 1.0
