"""Tokens in a KV block, by GPU and kernel."""

from dataclasses import replace

import pytest

from infercast.engines.vllm.kernels import SINKS_SLOWER, choose_kernels, default_block_size
from infercast.engines.vllm.settings import EngineSettings, resolve
from infercast.errors import InputError
from infercast.forecast.memory import fit_memory
from infercast.hardware import load_gpu
from infercast.models.read import read_model


@pytest.mark.parametrize(
    ("model", "gpu", "kv_dtype", "size"),
    [
        ("llama-3.1-8b", "h200-sxm", "fp8", 16),
        ("llama-3.1-8b", "b200-sxm", "auto", 16),
        ("deepseek-v3", "h200-sxm", "auto", 16),
        ("deepseek-v3", "h200-sxm", "fp8", 64),
        ("deepseek-v3", "b200-sxm", "auto", 32),
        ("deepseek-v3", "b200-sxm", "fp8", 32),
        ("deepseek-v3", "b300-sxm", "auto", 32),
        ("deepseek-v2-lite", "a100-sxm", "auto", 16),
        ("deepseek-v2-lite", "rtx-5090", "auto", 16),
    ],
)
def test_the_kernel_for_latent_attention_decides(model, gpu, kv_dtype, size):
    assert default_block_size(replace(read_model(model), kv_dtype=kv_dtype), load_gpu(gpu)) == size


def test_a_plan_has_the_engines_choice_unless_told_otherwise():
    choices = {"quantization": None, "kv_cache_dtype": "fp8", "tensor_parallel_size": 8}
    assert fit_memory("deepseek-v3", "h200-sxm", **choices).memory.kv.shape.block_size == 64
    told = EngineSettings(block_size=16)
    assert fit_memory("deepseek-v3", "h200-sxm", told, **choices).memory.kv.shape.block_size == 16


@pytest.mark.parametrize("size", [1, 7, 24])
def test_a_size_that_no_kernel_takes_is_refused_with_those_that_work(size):
    sentence = f"block_size {size} fits no attention kernel, which take multiples of 16; use one of 16, 32, 64, 128"
    with pytest.raises(InputError, match=sentence):
        resolve(EngineSettings(block_size=size), load_gpu("h200-sxm"), 8192)


def test_prompts_with_sinks_run_tritons_kernel_where_flash_attention_has_none() -> None:
    for gpu, slower in (("a100-sxm", SINKS_SLOWER), ("rtx-5090", SINKS_SLOWER), ("h200-sxm", 1.0), ("b200-sxm", 1.0)):
        chosen = choose_kernels(read_model("gpt-oss-20b"), load_gpu(gpu))
        assert {getattr(stack.mixer, "prompts_slower") for stack in chosen.stacks} == {slower}  # noqa: B009
    llama = read_model("llama-3.1-8b")
    assert choose_kernels(llama, load_gpu("a100-sxm")) == llama
