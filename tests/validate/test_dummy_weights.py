"""Untrained routers that choose from groups send all tokens to the same few experts."""

import numpy as np

from infercast.engines.base import engine_named
from infercast.lab.validate.compare import with_dummy_weights
from infercast.models.layout import ParallelLayout
from infercast.models.lower import token_calls
from infercast.models.read import read_model


def experts(model):
    return next(call.op for call in token_calls(model, ParallelLayout(1), np.array([32])) if call.name == "experts")


def test_ties_reach_twice_as_many_experts_as_a_token_takes():
    model = read_model("deepseek-v2-lite")
    assert (experts(model).experts, experts(with_dummy_weights(model)).experts) == (64, 12)


def test_a_dummy_bias_sends_all_tokens_to_the_same_experts():
    assert experts(with_dummy_weights(read_model("deepseek-v3"))).experts == 8


def test_routers_that_rank_in_single_precision_are_left_alone():
    for name in ("qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-8b"):
        model = read_model(name)
        assert with_dummy_weights(model) == model


def test_the_scores_of_an_indexer_that_was_never_trained_are_tied():
    model = read_model("glm-5")
    (before, after) = (
        [stack.mixer.indexer.tied for stack in each.stacks] for each in (model, with_dummy_weights(model))
    )
    assert not any(before)
    assert all(after)


def test_from_033_on_untrained_routers_tell_tokens_apart() -> None:
    ties = {name: engine_named(name).tied_routers for name in ("vllm@0.32", "vllm@0.33", "sglang")}
    assert ties == {"vllm@0.32": ("grouped", "biased"), "vllm@0.33": (), "sglang": ("biased",)}
    model = read_model("gpt-oss-20b")
    reached = [experts(with_dummy_weights(model, each)).experts for each in ties.values()]
    assert reached == [4, 32, 4]
