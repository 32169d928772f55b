"""The kernels of profiled steps by name, beside what we say that such steps cost: a table in Markdown.

    python benchmarks/engine/kernel_names.py RUNS.json.gz [RUNS.json.gz ...]

Files are of run_engine.py's format with `profiles`. A step is the mean of a profile's steps; its context is the one at
which our attention takes as long as was measured, since a profile does not say it.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from infercast.forecast.kernels import decode_shape, estimate_shape
from infercast.lab.validate.compare import deployment_of
from infercast.lab.validate.measured import read_measured
from infercast.serve.step import StepShape

PARTS = (  # Of a step: what names of its kernels say, and our own kernels in it
    ("attention", r"FlashAttn|prepare_varlen|flash_fwd|unified_attention", ("attention",)),
    ("KV write", r"reshape_and_cache", ("kv_write",)),
    ("experts", r"fused_moe_kernel|moe_align|expert_tokens|moe_sum|act_and_mul|moe_fused_mul_sum", ("experts",)),
    ("routing", r"topkGating|topk", ("routing",)),
    ("rotary and head norms", r"triton_(poi|red|per)_fused_\d+$|cat_index_select|rotary", ("rope", "qk_norm")),
    ("products", r"^(?!triton).*(gemm|nvjet|splitKreduce|cutlass)", ("_proj", "router", "lm_head", "latent")),
    ("norms", r"rms_norm", ("norm",)),
    ("activation", r"triton.*(silu|gelu)", ("activation",)),
    ("quantising", r"triton_red_fused.*(scaled_mm|quant)|fp8_quant", ("quantise",)),
)
OTHER = "sampling and the rest"
SHOWN = 0.004  # Share of a step from which on a kernel is listed


def part_of(name: str) -> str:
    return next((part for part, pattern, _ in PARTS if re.search(pattern, name)), OTHER)


def part_of_ours(name: str) -> str:
    if name == "norm_quantise":
        return "norms"
    ours = [(part, each) for part, _, names in reversed(PARTS) for each in names if each in name]
    return max(ours, key=lambda pair: len(pair[1]), default=(OTHER, ""))[0]


def short(name: str) -> str:
    """A kernel's name without its template's arguments, but with its tile."""
    tile = "x".join(re.findall(r"C<(\d+)>", name)[:3])
    bare = re.sub(r"<.*", "", name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    if "FlashAttnFwd" in name:
        bare = re.search(r"FlashAttnFwd\w*", name).group()  # type: ignore[union-attr]
    elif "cutlass_3x_gemm" in name:
        bare = f"vllm::cutlass_3x_gemm_sm90_fp8 {tile}"
    return bare.split("(")[0][:64]


def steps_in(profile: dict, layers: int) -> float:
    """Steps whose kernels a profile has: each layer writes its keys and values once."""
    return sum(each["n"] for each in profile["kernels"] if "reshape_and_cache" in each["name"]) / layers


def shape_of(profile: dict, deployment, measured: float) -> StepShape:
    """The step of a profile: a batch that decodes, or four prompts of 2,048 tokens."""
    if "decode" not in profile["tag"]:
        return StepShape([2048] * 4, [0] * 4, 4)
    batch = int(re.search(r"b=(\d+)", profile["tag"]).group(1))  # type: ignore[union-attr]
    shapes = [decode_shape(batch, context) for context in range(64, 4096, 16)]
    return min(shapes, key=lambda shape: abs(forecast_parts(deployment, shape)["attention"] - measured))


def forecast_parts(deployment, shape: StepShape) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for kernel in estimate_shape(deployment, shape).kernels:
        found[part_of_ours(kernel.name)] += 1e6 * kernel.seconds
    return found


def main(paths: list[Path]) -> None:
    for path in paths:
        file = read_measured(path)
        deployment = deployment_of(file, None, None)
        for profile in read_profiles(path):
            steps = steps_in(profile, sum(stack.layers for stack in deployment.model.stacks))
            measured: dict[str, float] = defaultdict(float)
            names: dict[str, list[str]] = defaultdict(list)
            whole = sum(each["sum_us"] for each in profile["kernels"]) / steps
            for each in profile["kernels"]:
                part, seconds = part_of(each["name"]), each["sum_us"] / steps
                measured[part] += seconds
                if seconds > SHOWN * whole:
                    count = f"{each['n'] / steps:.0f} x " if each["n"] > 1.5 * steps else ""
                    names[part].append(f"`{short(each['name'])}` {count}{each['mean_us']:.1f}")
            ours = forecast_parts(deployment, shape_of(profile, deployment, measured["attention"]))
            print(f"\n**{path.name.partition('.json')[0]}, {profile['tag']}** ({steps:.1f} steps)\n")
            print("| part | kernels: launches x us | measured, us | forecast, us | |\n| --- | --- | --: | --: | --: |")
            for part in [*(part for part, _, _ in PARTS), OTHER]:
                if measured[part] or ours[part]:
                    gap = f"{100 * (ours[part] / measured[part] - 1):+.1f} %" if measured[part] else ""
                    print(f"| {part} | {', '.join(names[part])} | {measured[part]:,.0f} | {ours[part]:,.0f} | {gap} |")
            total = sum(ours.values())
            print(f"| all | | {whole:,.0f} | {total:,.0f} | {100 * (total / whole - 1):+.1f} % |")


def read_profiles(path: Path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes())).get("profiles", [])


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
