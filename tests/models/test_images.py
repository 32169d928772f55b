"""Tokens of images are those of the processors' own code, recorded for 200 sizes each; kernels follow from shapes."""

import json
from pathlib import Path

import pytest

from infercast.errors import InputError
from infercast.models.images import encoder_calls, parse_images
from infercast.models.read import read_model

RECORDED = json.loads((Path(__file__).with_name("image_tokens.json")).read_text("utf-8"))
"""By transformers 5.23, less marks around an image for those of Qwen, Gemma 4 and Kimi that its template adds."""
MODELS = {
    "qwen2": "qwen2.5-vl-7b", "qwen3": "qwen3-vl-8b", "mistral3": "mistral-small-3.2-24b", "gemma4": "gemma-4-31b",
    "kimi": "kimi-k2.5", "llama4": "llama-4-scout",
}  # fmt: skip
INTERNVL = {
    "architectures": ["InternVLChatModel"],
    "llm_config": {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 151674,
        "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28, "max_position_embeddings": 32768,
    },
    "vision_config": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "image_size": [448, 448], "patch_size": [14, 14],
    },
}  # fmt: skip


def encoder_of(name):
    return read_model(INTERNVL if name == "internvl" else MODELS[name]).vision.images


@pytest.mark.parametrize("name", [*MODELS, "internvl"])
def test_tokens_are_those_of_the_processor(name):
    encoder = encoder_of(name)
    for (width, height), wanted in zip(RECORDED["sizes"], RECORDED[name], strict=True):
        if wanted is None:
            with pytest.raises(InputError, match=f"an image of {width}x{height} is refused"):
                encoder.picture(width, height)
            continue
        picture = encoder.picture(width, height)
        pictures, rows, columns = picture.grid
        assert picture.num_tokens == wanted, (width, height)
        assert picture.num_embeds == pictures * rows * columns // encoder.rule.merge**2 <= encoder.most_embeds


def test_every_image_is_a_square_for_gemma_3():
    encoder = read_model("gemma-3-4b").vision.images
    assert encoder.picture(30, 4000) == encoder.picture(896, 896) == ((1, 64, 64), 260, 256)


def test_the_text_model_of_internvl_is_the_one_inside():
    model = read_model(INTERNVL)
    assert (model.layers, model.hidden) == (28, 3584)
    assert 300e6 < model.vision.parameters < 340e6
    assert not any("left out" in note for note in model.notes)


def test_work_of_the_encoder():
    vision = read_model("qwen2-vl-7b").vision
    calls = encoder_calls(vision.images, vision.layers, vision.hidden, 1, [(1, 64, 64)], "bf16")
    products = sum(call.count * call.op.flops for call in calls if call.op.family == "gemm")
    # All but the projector's matrices meet every patch, those every fourth.
    projector = 5120 * (5120 + 3584)
    weights = vision.split - projector + vision.layers * 0 + 1176 * 1280
    assert products == pytest.approx(2 * 4096 * weights + 2 * 1024 * projector, rel=0.01)
    attention = [call for call in calls if call.op.family == "encoder_attention"]
    assert [(call.count, call.op.tokens) for call in attention] == [(32, 4096)]


def test_windows_hold_64_patches_and_two_gpus_share():
    vision = read_model("qwen2.5-vl-7b").vision
    calls = encoder_calls(vision.images, 32, vision.hidden, 2, [(1, 64, 64), (1, 64, 64)], "bf16")
    attention = {(call.op.images, call.op.tokens): call.count for call in calls if call.name == "attention"}
    assert attention == {(2, 4096): 4, (128, 64): 28}
    assert [call.count for call in calls if call.op.family == "collective"] == [64]
    assert {call.op.heads for call in calls if call.name == "attention"} == {8}


@pytest.mark.parametrize("text", ["", "1024", "0:10x10", "1:0x5", "x", "1:10x", "-1:10x10", "2000:10x10", "1:99999x9"])
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="images"):
        parse_images(text)


def test_counts_and_sizes():
    assert parse_images("640x480, 0.5:10x20") == [(1.0, 640, 480), (0.5, 10, 20)]
