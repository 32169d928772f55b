"""vLLM's speculative config: what is read, what is refused, and what follows for graphs, memory and scheduling."""

import json
from typing import Any

import pytest

import infercast as ic
from infercast.engines.host import Launch
from infercast.engines.vllm.settings import CapturedGraphs, EngineSettings
from infercast.errors import InputError

RATES = [0.75, 0.55, 0.4]


def deployed(target: str, /, engine: str = "vllm@0.25", acceptance: str | None = None, **config: Any) -> ic.Deployment:
    settings = EngineSettings(
        engine=engine,
        max_num_seqs=256,
        max_model_len=16384,
        gpu_memory_utilization=0.9,
        speculative_config=json.dumps(config),
        acceptance=acceptance,
    )
    return ic.deploy(target, "h200-sxm", settings, api_server=False, predictor="roofline")


def eagle_3(drafts: int = 3, **others: Any) -> dict[str, Any]:
    return {"method": "eagle3", "model": "somebody/eagle3", "num_speculative_tokens": drafts, **others}


def test_synthetic_acceptance_is_the_configs_own() -> None:
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES}
    drafting = deployed("llama-3.1-8b", **eagle_3(**synthetic)).drafting
    assert drafting is not None
    assert drafting.acceptance.rates == tuple(RATES)
    assert not drafting.acceptance.is_assumed
    told = deployed("llama-3.1-8b", acceptance="0.9", **eagle_3(**synthetic)).drafting
    assert told is not None
    assert told.acceptance.rates[0] == 0.9


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"method": "medusa", "num_speculative_tokens": 2}, "'medusa' is not modelled"),
        ({"method": "eagle9", "num_speculative_tokens": 2}, "unknown speculative method 'eagle9'"),
        ({"method": "eagle3", "num_speculative_tokens": 2}, "needs model"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1, not 0"),
        ({"method": "ngram", "num_speculative_tokens": 2, "nonsense": 1}, "unknown field of --speculative-config"),
        ({"method": "mtp", "num_speculative_tokens": 1}, "no heads that predict further tokens"),
        ({"model": "qwen3-0.6b", "num_speculative_tokens": 2}, "has to have the target's"),
        (eagle_3(parallel_drafting=True), "parallel_drafting"),
        (eagle_3(draft_tensor_parallel_size=2), "must be 1 or the target's 1"),
        (eagle_3(synthetic_acceptance_length=2), "rejection_sample_method"),
        (eagle_3(num_speculative_tokens_per_batch_size=[[1, 2]]), r"list of \[first, last, drafts\]"),
        ({"method": "eagle3", "model": "./none", "num_speculative_tokens": 2}, "no such file or folder"),
    ],
)
def test_what_vllm_or_the_model_does_not_know_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        deployed("llama-3.1-8b", **config)


def test_a_head_in_a_folder_of_another_machine_is_taken_as_usual() -> None:
    head = deployed("llama-3.1-8b", **eagle_3(model="/models/EAGLE3-LLaMA3.1-Instruct-8B")).drafting
    assert head is not None
    assert "/models/EAGLE3-LLaMA3.1-Instruct-8B is not at hand" in head.note


def test_methods_differ_in_runner_schedule_and_slots() -> None:
    head = deployed("llama-3.1-8b", **eagle_3())
    small = deployed("qwen3-8b", model="qwen3-0.6b", num_speculative_tokens=4)
    lookup = deployed("llama-3.1-8b", method="ngram", num_speculative_tokens=4)
    found = [deployment.drafting for deployment in (head, small, lookup)]
    assert all(found)
    assert [each.v2_runner for each in found if each] == [True, False, False]
    assert [each.asynchronous for each in found if each] == [True, False, False]
    assert [each.lookahead for each in found if each] == [3, 4, 0]
    assert [each.drops_block for each in found if each] == [True, False, False]
    replicas = [deployment.replica() for deployment in (head, small, lookup)]
    assert [replica.steps_under_way for replica in replicas] == [2, 1, 1]
    newer = deployed("qwen3-8b", "vllm@0.32", model="qwen3-0.6b", num_speculative_tokens=4).drafting
    assert newer is not None
    assert newer.v2_runner
    assert newer.asynchronous


@pytest.mark.parametrize(("max_num_seqs", "drafts", "last_full"), [(256, 1, 256), (256, 3, 128), (64, 7, 64)])
def test_full_graphs_reach_as_far_as_vllms_dispatcher_says(max_num_seqs: int, drafts: int, last_full: int) -> None:
    settings = EngineSettings(
        engine="vllm@0.25", max_num_seqs=max_num_seqs, speculative_config=json.dumps(eagle_3(drafts))
    )
    graphs = ic.deploy("llama-3.1-8b", "h200-sxm", settings, predictor="roofline").graphs
    width = 1 + drafts
    launches = [graphs.launch(count * width, True)[0] for count in range(1, max_num_seqs + 1)]
    assert all(launch is Launch.FULL_GRAPH for launch in launches[:last_full])
    assert all(launch is not Launch.FULL_GRAPH for launch in launches[last_full:])


def test_five_drafts_leave_holes_until_newer_releases_fill_them() -> None:
    older, newer = (deployed("llama-3.1-8b", name, **eagle_3(5)).graphs for name in ("vllm@0.25", "vllm@0.32"))
    holes = [count for count in range(1, 60) if older.launch(6 * count, True)[0] is Launch.PIECEWISE_GRAPHS]
    assert holes[:3] == [5, 9, 13]
    assert older.launch(6 * 86, True)[0] is Launch.EAGER
    assert all(newer.launch(6 * count, True)[0] is Launch.FULL_GRAPH for count in range(1, 60))


def test_the_older_runner_rounds_all_sizes() -> None:
    graphs = deployed("qwen3-8b", model="qwen3-0.6b", num_speculative_tokens=4).graphs
    assert isinstance(graphs, CapturedGraphs)
    assert len(graphs.sizes) == 48  # as its log says
    assert all(size % 5 == 0 for size in graphs.sizes)


@pytest.mark.parametrize(
    ("model", "config", "blocks"),
    [
        ("llama-3.1-8b", eagle_3(), 53794),
        ("qwen3-8b", eagle_3(5), 47802),
        ("qwen3-8b", {"model": "qwen3-0.6b", "num_speculative_tokens": 4}, 27506),
        ("mimo-7b", {"method": "mtp", "num_speculative_tokens": 1}, 48359),
    ],
)
def test_blocks_are_those_of_measured_engines(model: str, config: dict[str, Any], blocks: int) -> None:
    settings = EngineSettings(
        engine="vllm@0.25", max_num_seqs=256, max_model_len=16384, gpu_memory_utilization=0.9, dummy_weights=True,
        speculative_config=json.dumps(config),
    )  # fmt: skip
    memory = ic.deploy(model, "h200-sxm", settings, predictor="roofline").memory
    assert memory.num_blocks == pytest.approx(blocks, rel=0.01)


def test_drafts_by_batch_size_are_told_to_the_scheduler() -> None:
    schedule = [[1, 32, 3], [33, 256, 1]]
    replica = deployed("llama-3.1-8b", **eagle_3(num_speculative_tokens_per_batch_size=schedule)).replica()
    assert replica.speculation is not None
    assert [replica.speculation.drafts_for(count) for count in (1, 32, 33, 200)] == [3, 3, 1, 1]


@pytest.mark.parametrize(("engine", "drafting"), [("vllm@0.28", None), ("vllm@0.32", 3)])
def test_the_group_that_drafts_is_known_since_0_29(engine: str, drafting: int | None) -> None:
    shape = deployed("qwen3.5-9b", engine, method="mtp", num_speculative_tokens=1).memory.kv.shape
    assert shape.drafting == drafting
    assert [shape.drops(group) for group in range(4)] == [drafting is None] * 3 + [True]


def test_acceptance_without_drafts_has_no_meaning() -> None:
    with pytest.raises(InputError, match="no meaning without --speculative-config"):
        ic.deploy("llama-3.1-8b", "h200-sxm", EngineSettings(acceptance="0.7"))
