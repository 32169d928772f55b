"""Every architecture that vLLM 0.32 names in its registry: read, read in part, or refused with the reason."""

import json
import re
from pathlib import Path

import pytest

from infercast.errors import FileFormatError, UnsupportedModelError
from infercast.models.families import VISION, family_of
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config, refused
from infercast.models.lower import token_calls
from infercast.models.read import read_model
from infercast.models.spec import parameter_count

DATA = Path(__file__).parents[1] / "data"
GROUPS = json.loads(DATA.joinpath("vllm_architectures.json").read_text())
SHAPES = json.loads(DATA.joinpath("published_shapes.json").read_text())
LLAMA = bundled_config("llama-3.1-8b")
NAMES = [(name, verdict) for group in GROUPS.values() for verdict, names in group.items() for name in names]


def test_it_is_the_whole_registry():
    assert len(NAMES) == len(dict(NAMES)) == sum(sum(map(len, group.values())) for group in GROUPS.values())
    sizes = {name: sum(map(len, group.values())) for name, group in GROUPS.items()}
    assert (sizes["text"], sizes["by transformers"], sizes["multimodal"]) == (118, 22, 119)


def test_most_are_read():
    read = [verdict for _, verdict in NAMES if verdict != "refused"]
    assert len(read) >= 0.79 * len(NAMES)
    of_text = GROUPS["text"]
    assert len(of_text["read"]) >= 101
    assert len(of_text["refused"]) <= 16


def test_each_has_the_verdict_that_is_stated(every):
    every(NAMES, check_verdict)


def check_verdict(row):
    name, verdict = row
    family = family_of(name)
    if verdict == "refused":
        assert family is None
        with pytest.raises(UnsupportedModelError, match=re.escape(f"{name} is not supported: {refused()[name]}")):
            read_model({**LLAMA, "architectures": [name]})
    elif verdict == "language model":
        assert name in VISION or family is None
        inside = {"architectures": [name], "text_config": {**LLAMA, "architectures": ["LlamaForCausalLM"]}}
        if name not in VISION:
            assert read_model(inside).notes == ("encoders beside the language model are left out",)
    else:
        assert family is not None
        assert family.pools == (verdict == "pools")


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_published(name):
    """Or those that the transformers library counts for the same shape (benchmarks/accuracy/model_parameters.py)."""
    model = read_model(SHAPES[name]["config"])
    assert parameter_count(model) == pytest.approx(SHAPES[name]["parameters"], rel=0.006)
    assert not any("is not known" in note for note in model.notes)


def test_the_language_model_inside_is_known_by_its_type():
    inner = {**bundled_config("qwen3-30b-a3b"), "architectures": None, "model_type": "qwen3_omni_moe_text"}
    outer = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "thinker_config": {"text_config": inner}}
    model = read_model(outer)
    assert model.stacks == read_model("qwen3-30b-a3b").stacks
    assert model.notes == ("encoders beside the language model are left out",)


def test_an_architecture_that_is_not_known_is_read_by_its_fields_and_says_so():
    own = {**LLAMA, "architectures": ["BrandNewForCausalLM"], "model_type": "brand_new"}
    model, llama = read_model(own), read_model(LLAMA)
    assert model.stacks == llama.stacks
    assert model.notes == (model.assumed,)
    assert model.assumed.startswith("BrandNewForCausalLM is not known: its layers are read by the usual fields")
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "use_qk_norm": True}
    stack = read_model({**own, **mixture}).stacks[0]
    assert (stack.feed_forward.experts, stack.feed_forward.inter, stack.mixer.qk_norm) == (8, 512, True)
    plain = read_model({**own, "hidden_act": "gelu", "use_parallel_residual": True}).stacks[0]
    assert (plain.feed_forward.gated, plain.parallel) == (False, True)


@pytest.mark.parametrize("field", ["mamba_d_state", "linear_num_key_heads", "index_topk"])
def test_one_with_layers_of_another_kind_is_refused(field):
    with pytest.raises(UnsupportedModelError, match=f"it is not known, and {field} in its config says"):
        read_model({**LLAMA, "architectures": ["BrandNewForCausalLM"], field: 64})


def test_halves_side_by_side_need_one_all_reduce_and_share_a_norm():
    calls = {
        name: {call.name: call.count for call in token_calls(read_model(SHAPES[name]["config"]), ParallelLayout(2), 64)}
        for name in ("gpt-j-6b", "internlm2-7b")
    }
    assert (calls["gpt-j-6b"]["all_reduce"], calls["gpt-j-6b"]["norm"]) == (28, 28)
    assert (calls["internlm2-7b"]["all_reduce"], calls["internlm2-7b"]["norm"]) == (64, 64)


@pytest.mark.parametrize(
    ("name", "changes", "missing"),
    [
        ("opt-125m", {"word_embed_proj_dim": 512}, "embeddings of another width than the layers'"),
        ("hunyuan-a13b", {"use_cla": True}, "layers that share keys and values"),
        ("bert-large", {"is_encoder_decoder": True}, "an encoder beside the decoder"),
    ],
)
def test_fields_that_change_the_layers_are_not_passed_over(name, changes, missing):
    with pytest.raises(UnsupportedModelError, match=missing):
        read_model({**SHAPES[name]["config"], **changes})


def test_a_layer_of_longcat_is_two_blocks_and_a_token_goes_to_eight_experts_that_compute():
    model = read_model("longcat-flash")
    first, second = model.stacks
    assert (first.layers, second.layers) == (28, 28)
    assert (first.feed_forward.topk, first.feed_forward.dense_inter) == (8, second.feed_forward.inter)
    assert parameter_count(model) == pytest.approx(560e9, rel=0.002)


def test_experts_of_images_take_memory_alone():
    text, both = read_model("ernie-4.5-21b-a3b"), read_model("ernie-4.5-vl-28b-a3b")
    assert parameter_count(both) - parameter_count(text) == pytest.approx(27 * 64 * 3 * 2560 * 512, rel=0.02)
    assert both.stacks[1].feed_forward.reached == text.stacks[1].feed_forward.experts
    broken = {**bundled_config("ernie-4.5-vl-28b-a3b"), "moe_num_experts": [64]}
    with pytest.raises(FileFormatError, match="a list of two numbers"):
        read_model(broken)
