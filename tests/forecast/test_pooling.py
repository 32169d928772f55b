"""Models that give a vector or a score for each prompt: encoders, and decoders that pool."""

import json
from pathlib import Path

import numpy as np
import pytest

from infercast import deploy, simulate
from infercast.engines.base import engine_named
from infercast.errors import InputError, UnsupportedModelError
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape, step_calls
from infercast.forecast.simulate import most_requests_per_second
from infercast.forecast.system import system_of, two_pools
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls
from infercast.models.read import read_model
from infercast.report.deployment import serve_command
from infercast.serve.workload.synthetic import synthetic_workload

SHAPES = json.loads(Path(__file__).parents[1].joinpath("data/published_shapes.json").read_text())
BERT, MODERN = ({**SHAPES[name]["config"], "torch_dtype": "float16"} for name in ("bert-large", "modernbert-large"))


@pytest.fixture(scope="module")
def bert():
    return deploy(BERT, "h200-sxm")


def test_an_encoder_keeps_nothing(bert):
    assert (bert.memory.kv_bytes, bert.memory.kv.token_bytes) == (0, 0.0)
    assert bert.memory.most_sequences(512, 512) >= bert.settings.max_num_seqs
    assert (bert.settings.enable_prefix_caching, bert.settings.max_model_len) == (False, 512)
    assert bert.memory.weights == pytest.approx(2 * SHAPES["bert-large"]["parameters"], rel=0.01)


def test_its_step_has_neither_cache_nor_head(bert):
    names = {call.name for call in step_calls(bert, prefill_shape(512)).all}
    assert not names & {"kv_write", "lm_head", "sampling", "rope"}
    assert {"attention", "pooling", "up_proj"} <= names


def test_every_token_of_a_prompt_sees_all_others():
    queries = np.array([512, 128, 64])
    (call,) = attention_calls(read_model(BERT), ParallelLayout(), queries, queries)
    assert call.count == 24
    assert float(call.op.flops) == pytest.approx(4 * 1024 * float((queries**2).sum()))


def test_or_those_in_its_window():
    queries = np.array([1024])
    pairs = {
        call.count: float(call.op.flops)
        for call in attention_calls(read_model(MODERN), ParallelLayout(), queries, queries)
    }
    assert pairs == {10: pytest.approx(4 * 1024 * 1024**2), 18: pytest.approx(4 * 1024 * 1024 * 128)}


def test_a_request_is_one_pass_whatever_answers_were_asked_for(bert):
    load = {"rate": 50, "count": 200, "input_lengths": 256, "seed": 3}
    one, many = (simulate(bert, synthetic_workload(output_lengths=each, **load)) for each in (1, 100))
    assert np.array_equal(one.clients.end_to_end, many.clients.end_to_end)
    assert np.array_equal(one.clients.end_to_end, one.clients.ttft)
    assert one.requests_per_second == one.output_tokens_per_second


def test_as_fast_as_its_steps_at_most(bert):
    capacity = most_requests_per_second(system_of(bert), synthetic_workload(rate=1, count=50, input_lengths=512))
    step = estimate_step(bert, prefill_shape(512)).seconds
    assert 1 / step < capacity < 16 / step


def test_a_whole_prompt_may_be_as_long_as_the_positions(bert):
    run = simulate(bert, synthetic_workload(rate=1, count=3, input_lengths=512, output_lengths=1))
    assert run.clients.ttft.size == 3


def test_it_never_decodes(bert):
    with pytest.raises(InputError, match="gives no tokens and computes prompts whole"):
        estimate_step(bert, decode_shape(4, 100))


def test_a_decoder_pools_without_its_head():
    plain, pooling = (deploy("qwen3-8b", "h200-sxm", runner=runner) for runner in ("auto", "pooling"))
    assert plain.memory.weights - pooling.memory.weights == pytest.approx(2 * 151936 * 4096)
    assert pooling.memory.num_blocks > plain.memory.num_blocks > 0
    assert serve_command(pooling) == f"{serve_command(plain)} --runner pooling"
    assert deploy("qwen3-8b", "h200-sxm", task="embed").model == pooling.model
    settings = engine_named("sglang").settings({"is_embedding": True})
    ours = deploy("qwen3-8b", "h200-sxm", engine="sglang", runner="pooling")
    embedding = deploy("qwen3-8b", "h200-sxm", settings)
    assert embedding.model == ours.model
    assert serve_command(embedding) == serve_command(ours)


def test_what_is_refused(bert):
    with pytest.raises(InputError, match="a decode pool has nothing to do"):
        two_pools(bert, bert)
    with pytest.raises(UnsupportedModelError, match="has no KV cache, for which this engine is not modelled"):
        deploy(BERT, "h200-sxm", engine="sglang")
    with pytest.raises(InputError, match="gives no tokens; leave runner and task out"):
        deploy(BERT, "h200-sxm", runner="generate")
    with pytest.raises(InputError, match="unknown task 'paint'; known: auto, generate, embed"):
        deploy(BERT, "h200-sxm", task="paint")
