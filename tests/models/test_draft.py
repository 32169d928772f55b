"""What drafts: its weights, its kernels, and its place in the cache."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.models.draft import eagle_draft, model_draft, prediction_draft, usual_head
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, verify_calls
from infercast.models.read import read_model

ONE = ParallelLayout()
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def widths(draft: Any) -> dict[str, tuple[int, int]]:
    calls = [*draft.combining_calls(7), *draft.pass_calls(ONE, 7), *draft.head_calls(ONE, 7)]
    return {call.name: (call.op.n, call.op.k) for call in calls if hasattr(call.op, "n")}


def test_an_eagle_3_head_is_one_layer_fed_with_three_hidden_states(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HEAD))
    draft = eagle_draft("eagle3", tmp_path, read_model("llama-3.1-8b"))
    products = widths(draft)
    assert products["draft_combine"] == (4096, 3 * 4096)
    assert products["draft_qkv_proj"] == (6144, 2 * 4096)
    assert products["draft_lm_head"] == (32000, 4096)
    matrices = 4096 * (3 * 4096 + 2 * 6144 + 4096 + 3 * 14336 + 32000)
    assert draft.weight_bytes(ONE) == pytest.approx(2 * matrices, rel=0.001)


def test_heads_in_other_words_are_read_too() -> None:
    target = read_model("llama-3.1-8b")
    layer = {**HEAD, "architectures": ["LlamaForCausalLM"]}
    nested = {"speculators_model_type": "eagle3", "draft_vocab_size": 32000, "transformer_layer_config": layer}
    assert widths(eagle_draft("eagle3", nested, target)) == widths(eagle_draft("eagle3", HEAD, target))
    usual = usual_head("eagle3", "somebody/eagle3", target)
    assert widths(usual) == widths(eagle_draft("eagle3", HEAD, target))
    first = eagle_draft("eagle", {**HEAD, "architectures": ["EagleLlamaForCausalLM"]}, target)
    assert widths(first)["draft_join"] == (4096, 2 * 4096)
    assert not first.own_head


def test_prediction_heads_are_the_targets_own() -> None:
    draft = prediction_draft(read_model("mimo-7b"))
    assert draft.joins
    assert not draft.own_head
    # 0.21 B of the published 7.83 B parameters.
    assert draft.weight_bytes(ONE) / 2 == pytest.approx(0.21e9, rel=0.03)
    with pytest.raises(InputError, match="has no heads that predict further tokens"):
        prediction_draft(read_model("llama-3.1-8b"))


def test_a_draft_model_has_the_targets_vocabulary() -> None:
    target = read_model("qwen3-8b")
    draft = model_draft(read_model("qwen3-0.6b"), target)
    joint = draft.with_target(target)
    assert joint.layers == 36 + 28
    with pytest.raises(InputError, match="has to have the target's"):
        model_draft(read_model("llama-3.2-1b"), target)


def test_layers_that_draft_are_behind_the_targets_in_the_cache() -> None:
    target = read_model("deepseek-v3")
    joint = prediction_draft(target).with_target(target)
    assert (target.layers, joint.layers) == (61, 62)
    assert joint.sequence_bytes(100) / target.sequence_bytes(100) == pytest.approx(62 / 61)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2-9b", "deepseek-v2-lite"])
def test_verifying_reads_keys_once_and_computes_for_every_draft(model: str) -> None:
    config, keys = read_model(model), np.full(8, 1000)
    one = attention_calls(config, ONE, np.ones_like(keys), keys)
    four = verify_calls(config, ONE, 4, keys)
    assert [call.name for call in one] == [call.name for call in four]
    for before, after in zip(one, four, strict=True):
        assert after.op.flops == pytest.approx(4 * before.op.flops)
        if hasattr(after.op, "kv_bytes"):
            assert after.op.kv_bytes == before.op.kv_bytes


def test_layers_that_choose_or_remember_pay_for_each_token() -> None:
    config, keys = read_model("qwen3-next-80b-a3b"), np.full(8, 1000)
    updates = [call for call in verify_calls(config, ONE, 3, keys) if call.name == "state_update"]
    assert updates[0].op.flops == pytest.approx(
        3
        * next(
            call for call in attention_calls(config, ONE, np.ones_like(keys), keys) if call.name == "state_update"
        ).op.flops
    )
