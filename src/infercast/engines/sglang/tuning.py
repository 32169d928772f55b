"""SGLang's launches of Triton's kernel for routed experts, as `infercast tune` asks for them.

Facts of SGLang 0.5.16 (``layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py``). A file is looked for below a
folder of its Triton release first, and then below those of all others.
"""

from __future__ import annotations

from infercast.engines.expert_launches import Configuration, ExpertLaunches
from infercast.engines.sglang.expert_launches import has_tuned_file
from infercast.errors import InputError
from infercast.hardware import Gpu

FORMATS = {"bf16": "", "fp8": "fp8_w8a8", "fp8_block": "fp8_w8a8"}
FOLDER = "configs/triton_3_6_0"
MOST_TOKENS = 16384
"""Of a step, as far as files go."""


def rule_of_thumb(tokens: int, experts: int, dtype: str) -> Configuration:
    """Without a tuned file; by whether there are more tokens than experts."""
    if dtype == "fp8_block":
        return Configuration(64, 128, 128, 32, 4, 3)
    if dtype == "fp8":
        few, many = Configuration(64, 128, 128, 1, 4, 4), Configuration(128, 256, 128, 32, 8, 4)
    else:
        few, many = Configuration(16, 32, 64, 1, 4, 3), Configuration(64, 64, 32, 8, 4, 3)
    return few if tokens <= experts else many


def file_tokens(experts: int, dtype: str) -> tuple[int, ...]:
    """Powers of two, and both sides of where the rule changes: the nearest in a file counts."""
    powers = {1 << power for power in range(MOST_TOKENS.bit_length())}
    edges = set() if dtype == "fp8_block" else {experts, experts + 1}
    return tuple(sorted(powers | edges))


def file_name(experts: int, inter: int, dtype: str, gpu: Gpu) -> str:
    """Where SGLang looks for a layer's configurations, below the folder that its variable names."""
    name = next((alias for alias in gpu.aliases if " " in alias), None)
    if name is None:
        raise InputError(f"it is not known how a driver calls {gpu.name}; give its file an alias such as 'NVIDIA H200'")
    written = f",dtype={FORMATS[dtype]}" if FORMATS[dtype] else ""
    blocks = ",block_shape=[128, 128]" if dtype == "fp8_block" else ""
    return f"{FOLDER}/E={experts},N={inter},device_name={name.replace(' ', '_')}{written}{blocks}.json"


EXPERT_LAUNCHES = ExpertLaunches(
    formats=FORMATS,
    folder_variable="SGLANG_MOE_CONFIG_DIR",
    rule_of_thumb=rule_of_thumb,
    file_tokens=file_tokens,
    file_name=file_name,
    has_tuned_file=has_tuned_file,
)
