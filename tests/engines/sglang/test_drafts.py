"""Speculative decoding and adapters of SGLang: its defaults, what it refuses, memory and graphs."""

from typing import Any

import pytest

from infercast.engines.base import Deployment
from infercast.engines.host import Launch
from infercast.engines.sglang.engine import draft_slots
from infercast.engines.sglang.settings import SglangSettings
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.simulate import simulate
from infercast.serve.workload.classes import Adapters, with_adapters
from infercast.serve.workload.synthetic import synthetic_workload

CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1}
EAGLE_3 = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "some/eagle3"}


def deployed(model: str = "llama-3.1-8b", gpu: str = "h200-sxm", tensor: int = 1, **settings: Any) -> Deployment:
    return deploy(model, gpu, SglangSettings(**settings), predictor="roofline", tensor_parallel_size=tensor)


@pytest.mark.parametrize(
    ("model", "given", "steps", "width", "slots"),
    [
        ("llama-3.1-8b", EAGLE_3, 5, 8, 40),
        ("qwen3-8b", EAGLE_3, 3, 4, 8),
        ("llama-3.1-8b", {**EAGLE_3, **CHAIN}, 3, 4, 8),
        ("llama-3.1-8b", {"speculative_algorithm": "NGRAM"}, 11, 12, 24),
        ("qwen3-8b", {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "qwen3-0.6b"}, 3, 4, 8),
        ("mimo-7b", {"speculative_algorithm": "NEXTN"}, 3, 4, 8),
    ],
)
def test_its_defaults(model: str, given: dict[str, Any], steps: int, width: int, slots: int) -> None:
    deployment = deployed(model, **given)
    drafting = deployment.drafting
    assert drafting is not None
    assert (drafting.num_drafts, drafting.width, drafting.lookahead) == (steps, width, slots)
    assert deployment.settings.max_num_seqs == 48
    assert deployment.replica().speculation is not None


def test_slots_of_branches_are_whole_pages() -> None:
    assert draft_slots(3, 4, 8, 1, has_cache=True) == 24
    assert draft_slots(3, 4, 8, 16, has_cache=True) == 2 * 32 * 4
    assert draft_slots(3, 1, 4, 64, has_cache=True) == 8


def test_a_step_is_one_graph_of_all_its_tokens() -> None:
    graphs = deployed(**EAGLE_3, **CHAIN).graphs
    assert graphs.launch(4 * 9, is_decode=True) == (Launch.FULL_GRAPH, 4 * 10)
    assert graphs.launch(4 * 48, is_decode=True) == (Launch.FULL_GRAPH, 4 * 48)


def test_tokens_of_the_cache_are_those_of_a_measured_engine() -> None:
    memory = deployed(**EAGLE_3, **CHAIN, max_running_requests=256, context_length=16_384).memory
    assert memory.num_tokens == pytest.approx(864_058, rel=0.002)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "needs speculative_draft_model_path"),
        ({"speculative_algorithm": "DFLASH"}, "speculative_algorithm"),
        ({**EAGLE_3, "speculative_num_steps": 3}, "all or none"),
        ({**EAGLE_3, "enable_lora": True}, "LoRA adapters"),
        ({**EAGLE_3, "enable_hierarchical_cache": True}, "enable_hierarchical_cache"),
        ({"acceptance": "2.4"}, "no meaning"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        deployed(**settings)


def test_adapters_take_memory_graphs_and_time() -> None:
    plain, adapted = deployed("qwen3-0.6b"), deployed("qwen3-0.6b", lora_paths="a=/x", max_loras_per_batch=2)
    assert adapted.memory.weights > plain.memory.weights
    assert not adapted.settings.prefill_sizes  # type: ignore[union-attr]
    requests = synthetic_workload(rate=400.0, count=24, input_lengths=64, output_lengths=8, seed=1)
    asking = with_adapters(requests, Adapters(4, skew=0.0))
    assert simulate(adapted, asking).ttft.p50 > simulate(plain, requests).ttft.p50
