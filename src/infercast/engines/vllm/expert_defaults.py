"""Which launch configuration vLLM gives Triton's kernel for routed experts where nobody asks for another.

A file tuned for the number of experts, their width on one GPU, the GPU and the format, if its package has one; rules of
thumb otherwise. Facts of vLLM 0.25 (``vllm/model_executor/layers/fused_moe/fused_moe.py`` and ``configs/``).
"""

from __future__ import annotations

from functools import cache, partial

from infercast.bundled import read_data
from infercast.engines.expert_launches import Configuration, ExpertLaunches
from infercast.errors import InputError
from infercast.hardware import Gpu

FORMATS = {"bf16": "", "fp8": "fp8_w8a8", "fp8_block": "fp8_w8a8"}
"""What the kernel multiplies in, and how a configuration file's name says it."""


def rule_of_thumb(tokens: int, experts: int, dtype: str) -> Configuration:
    """Without a tuned file."""
    if dtype == "fp8_block":
        stages = 4 if tokens <= 4 else 3
        return Configuration(
            16 if tokens <= 64 else 64, 64 if tokens <= 8 else 128, 128, 1 if tokens <= 16 else 32, 4, stages
        )
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    return Configuration(
        rows=rows,
        columns=64 if tokens <= 64 else 128,
        depth=128 if dtype == "fp8" or tokens <= 64 else 64,
        group=16 if tokens // experts > 128 else 1,
        warps=4 if tokens <= 128 else 8,
        stages=4 if tokens <= 32 else 3,
    )


MOST_TOKENS = 16384
"""Of a step, as far as files go."""


def file_tokens(experts: int, dtype: str) -> tuple[int, ...]:
    """Numbers of tokens that a file needs: powers of two, and both sides of each edge of the rules of thumb.

    vLLM takes the nearest of those in a file; with these it keeps to its rules of thumb wherever the file repeats them.
    """
    rules = [rule_of_thumb(tokens, experts, dtype) for tokens in range(1, MOST_TOKENS + 1)]
    edges = {tokens for tokens in range(1, MOST_TOKENS) if rules[tokens - 1] != rules[tokens]}
    powers = {1 << power for power in range(MOST_TOKENS.bit_length())}
    return tuple(sorted(powers | edges | {tokens + 1 for tokens in edges}))


def device_name(gpu: Gpu) -> str:
    """The GPU in a configuration file's name: as its driver calls it, which is the alias with a space in it."""
    name = next((alias for alias in gpu.aliases if " " in alias), None)
    if name is None:
        raise InputError(f"it is not known how a driver calls {gpu.name}; give its file an alias such as 'NVIDIA H200'")
    return "NVIDIA_H200" if "H200" in name.split() else name.replace(" ", "_")


def file_name(experts: int, inter: int, dtype: str, gpu: Gpu) -> str:
    """Where vLLM looks for a layer's configurations."""
    written = f",dtype={FORMATS[dtype]}" if FORMATS[dtype] else ""
    blocks = ",block_shape=[128,128]" if dtype == "fp8_block" else ""
    return f"E={experts},N={inter},device_name={device_name(gpu)}{written}{blocks}.json"


_tuned = cache(partial(read_data, "engines/vllm/tuned_experts.toml"))


def has_tuned_file(experts: int, inter: int, dtype: str, gpu: Gpu) -> bool:
    """Whether vLLM's package has a configuration tuned for this layer."""
    return inter in _tuned().get(device_name(gpu), {}).get(dtype, {}).get(str(experts), [])


EXPERT_LAUNCHES = ExpertLaunches(
    formats=FORMATS,
    folder_variable="VLLM_TUNED_CONFIG_FOLDER",
    rule_of_thumb=rule_of_thumb,
    file_tokens=file_tokens,
    file_name=file_name,
    has_tuned_file=has_tuned_file,
)
