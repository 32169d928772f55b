"""Formats of states other than the model's own."""

import pytest

from infercast.errors import UnknownNameError
from infercast.forecast.deploy import load_model
from infercast.models.layout import ParallelLayout

LAYOUT = ParallelLayout()


def format_of(name, **options):
    model = load_model(name, **options)
    return max(stack.mixer.state(model.shard(LAYOUT)).dtype for stack in model.stacks if hasattr(stack.mixer, "state"))


def test_matrices_are_as_asked_for():
    assert format_of("qwen3.5-27b") == "fp32"
    assert format_of("qwen3.5-27b", mamba_ssm_cache_dtype="bfloat16") == "bf16"
    assert format_of("qwen3.5-27b", mamba_cache_dtype="bfloat16") == "fp32"  # the config says so
    assert format_of("nemotron-h-56b", mamba_ssm_cache_dtype="float16") == "fp16"


def test_other_formats_are_refused_and_other_models_left_alone():
    with pytest.raises(UnknownNameError, match="mamba_ssm_cache_dtype"):
        load_model("qwen3.5-27b", mamba_ssm_cache_dtype="int8")
    assert load_model("llama-3.1-8b", mamba_cache_dtype="float32") == load_model("llama-3.1-8b")
