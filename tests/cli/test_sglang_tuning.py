"""Launches of experts, as `infercast tune` asks for them."""

from typing import Any

from infercast.engines.sglang.kernels import EXPERT_LAUNCHES, rule_of_thumb
from infercast.hardware import load_gpu


def test_the_rule_changes_with_as_many_tokens_as_experts() -> None:
    assert rule_of_thumb(128, 128, "bf16").rows == 16
    assert rule_of_thumb(129, 128, "bf16").rows == 64
    assert rule_of_thumb(1, 128, "fp8_block") == rule_of_thumb(9999, 128, "fp8_block")
    assert {128, 129, 256} <= {*EXPERT_LAUNCHES.file_tokens(128, "bf16")}


def test_names_of_files() -> None:
    gpu = load_gpu("h200-sxm")
    assert (
        EXPERT_LAUNCHES.file_name(128, 768, "bf16", gpu)
        == "configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json"
    )
    assert EXPERT_LAUNCHES.file_name(8, 64, "fp8_block", gpu).endswith(
        "NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    )
    assert EXPERT_LAUNCHES.has_tuned_file(128, 768, "bf16", gpu)


def test_tune(infercast: Any) -> None:
    run = infercast("tune", "qwen3-30b-a3b", "--gpu", "h200-sxm", "--engine", "sglang", "--tokens", 64, "--full")
    assert "SGLang has a file tuned for this layer" in run.out
