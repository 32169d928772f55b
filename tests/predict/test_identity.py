"""Which kernel an engine runs on an architecture, and what tables call it."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention, Gemm
from infercast.predict.identity import kernel_named, kernel_of


def _decode(**values: object) -> Attention:
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128} | values
    return Attention(np.array([1]), np.array([1000]), **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "gpu", "values", "kernel"),
    [
        ("vllm", "h200-sxm", {}, "fa3"),
        ("vllm", "h200-sxm", {"kv_dtype": "fp8"}, "fa3"),
        ("vllm", "a100-sxm", {}, "fa2"),
        ("vllm", "l40s", {"kv_dtype": "fp8"}, "flashinfer"),
        ("vllm", "rtx-pro-6000", {}, "fa2"),
        ("vllm", "b300-sxm", {}, "trtllm"),
        ("vllm", "b200-sxm", {"kv_dtype": "fp8", "head_dim": 192}, "triton"),
        ("sglang", "l40s", {}, "flashinfer"),
        ("sglang", "gb200", {}, "trtllm"),
        ("vllm", "h200-sxm", {"kernel": "triton"}, "triton"),
        ("nobody", "h200-sxm", {}, ""),
    ],
)
def test_attention_kernels_follow_engine_architecture_and_format(
    engine: str, gpu: str, values: dict[str, object], kernel: str
) -> None:
    assert kernel_of(_decode(**values), load_gpu(gpu), engine) == kernel


def test_an_older_version_in_a_table_picked_another_kernel() -> None:
    assert kernel_of(_decode(), load_gpu("l40s"), "sglang", "0.5.9") == "fa2"
    assert kernel_of(_decode(), load_gpu("l40s"), "sglang", "0.5.14") == "flashinfer"


def test_block_scaled_products_have_a_kernel_of_their_own_where_deepgemm_does_not_run() -> None:
    product = Gemm(1, 1, 1, "fp8_block")
    assert kernel_of(product, load_gpu("l40s"), "vllm") == "triton"
    assert kernel_of(product, load_gpu("b200-sxm"), "vllm") == "usual"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("vllm_flash_attn_fa3", "fa3"),
        ("vllm_flash_attn", "fa2"),
        ("vllm_flashinfer_trtllmdecode", "trtllm"),
        ("vllm_flashinfer_fidecode", "flashinfer"),
        ("trtllm_mha", "trtllm"),
        ("something_else", ""),
    ],
)
def test_names_in_tables_say_the_kernel(name: str, kernel: str) -> None:
    assert kernel_named("attention", name) == kernel
