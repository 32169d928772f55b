"""Encoders of images: parameters against published totals, and what GPUs hold of them."""

import pytest

from infercast.errors import FileFormatError
from infercast.forecast.deploy import load_model
from infercast.models.layout import ParallelLayout
from infercast.models.library import bundled_config
from infercast.models.read import read_model
from infercast.models.spec import parameter_count, rank_weight_bytes, weight_bytes

# Totals of the published safetensors files, language model and encoder together.
PUBLISHED = {
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "llama-4-scout": 108_641_793_536,
    "mistral-small-3.2-24b": 24_011_361_280,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3-vl-30b-a3b": 31_070_754_032,
}


@pytest.mark.parametrize(("model", "total"), PUBLISHED.items())
def test_encoder_and_language_model_add_up_to_the_published_file(model, total):
    config = read_model(model)
    assert parameter_count(config) + config.vision.parameters == pytest.approx(total, rel=1e-7)


def test_qwen2_vl_by_hand():
    config = bundled_config("qwen2.5-vl-7b")
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14}
    plain = {**config, "architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": vision}
    layer = 4 * 1280**2 + 4 * 1280 + 2 * 1280 * 5120 + 5120 + 1280 + 4 * 1280
    ends = 3 * 2 * 14 * 14 * 1280 + 2 * 1280 + 5120**2 + 5120 + 5120 * 3584 + 3584
    assert read_model(plain).vision.parameters == 32 * layer + ends


def test_gpus_share_most_of_an_encoder():
    config = read_model("qwen3-vl-2b")
    alone, eight = (rank_weight_bytes(config, ParallelLayout(size)) for size in (1, 8))
    assert alone == weight_bytes(config).total == 2 * 2_127_532_032
    text = load_model("qwen3-vl-2b", language_model_only=True)
    beside = eight - rank_weight_bytes(text, ParallelLayout(8))
    assert beside == 2 * (config.vision.split / 8 + config.vision.whole)


def test_every_stage_holds_the_encoder():
    config = read_model("gemma-3-27b")
    text = load_model("gemma-3-27b", language_model_only=True)
    layout = ParallelLayout(pipeline=2)
    assert rank_weight_bytes(config, layout) - rank_weight_bytes(text, layout) == 2 * config.vision.parameters


@pytest.mark.parametrize(("model", "text", "total"), [
    ("gemma-4-e2b", 4_628_569_344, 5_104_297_504), ("gemma-4-e4b", 7_463_013_376, 7_941_100_832),
])  # fmt: skip
def test_gemma_4_with_encoders_of_images_and_sound_as_the_transformers_library_builds_it(model, text, total):
    config = read_model(model)
    assert (parameter_count(config), parameter_count(config) + config.vision.parameters) == (text, total)
    assert weight_bytes(config).total == rank_weight_bytes(config, ParallelLayout()) == 2 * total


def test_every_gpu_holds_all_of_gemma_4s():
    assert read_model("gemma-4-31b").vision.split == 0


def test_a_file_without_an_encoder_says_so():
    config = {key: value for key, value in bundled_config("gemma-3-4b").items() if key != "vision_config"}
    model = read_model(config)
    assert model.vision is None
    assert model.notes == ("vision part left out: there is no vision_config",)


def test_a_wrong_encoder_is_refused_by_its_field():
    config = bundled_config("gemma-3-4b")
    broken = {**config, "vision_config": {**config["vision_config"], "hidden_size": "wide"}}
    with pytest.raises(FileFormatError, match="vision_config: hidden_size must be"):
        read_model(broken)
