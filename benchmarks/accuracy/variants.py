"""Variants against whole models: 200 drawn configs, each as a variant and as a config.json through `estimate_step`.

    python benchmarks/accuracy/variants.py [--count 200]

Prints the largest relative differences of the step time, of parameters and of weights in memory, by kind of model, and
how long a grid of a million variants takes.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import infercast
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.variants import estimate_variants
from infercast.models.spec import parameter_count, stage_weight_bytes

GPUS = ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "l40s")
FORMATS = ("bf16", "fp8", "int4", "int8")


def config_of(sizes: dict[str, int]) -> dict[str, Any]:
    common = {
        "hidden_size": sizes["hidden"], "num_hidden_layers": sizes["layers"], "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"], "head_dim": sizes["head_dim"], "intermediate_size": sizes["inter"],
        "vocab_size": sizes["vocabulary"], "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    if not sizes["experts"]:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **common}
    routed = {"num_local_experts": sizes["experts"], "num_experts_per_tok": sizes["topk"]}
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **common, **routed}


def draw(random: np.random.Generator) -> dict[str, int]:
    routed = bool(random.random() < 0.5)
    kv_heads = int(random.choice([1, 2, 4, 8]))
    return {
        "layers": int(random.integers(4, 49)),
        "hidden": 128 * int(random.integers(8, 57)),
        "heads": kv_heads * int(random.choice([1, 2, 4, 7])),
        "kv_heads": kv_heads,
        "inter": 128 * int(random.integers(4, 24) if routed else random.integers(8, 200)),
        "head_dim": int(random.choice([64, 128])),
        "vocabulary": int(random.choice([32000, 128256, 151936])),
        "experts": int(random.choice([8, 16, 64])) if routed else 0,
        "topk": int(random.choice([1, 2, 4, 8])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    random, folder = np.random.default_rng(0), Path(tempfile.mkdtemp())
    apart: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    left_out = 0
    while sum(map(len, apart.values())) < count:
        sizes, gpu, quantization = draw(random), str(random.choice(GPUS)), str(random.choice(FORMATS))
        prompt = int(random.integers(16, 8192)) if random.random() < 0.5 else None
        batch, context = int(random.integers(1, 128)), int(random.integers(1, 4096))
        path = folder / "config.json"
        path.write_text(json.dumps(config_of(sizes)))
        shape = decode_shape(batch, context) if prompt is None else prefill_shape(prompt)
        try:
            deployment = infercast.deploy(path, gpu, quantization=None if quantization == "bf16" else quantization)
            step = estimate_step(deployment, shape)
        except infercast.InfercastError:
            left_out += 1  # it does not fit in the GPU
            continue
        found = estimate_variants(gpu, batch=batch, context=context, prompt=prompt, quantization=quantization, **sizes)
        model = deployment.model
        kind = (
            f"{'experts' if sizes['experts'] else 'dense'}, {quantization}, {'decode' if prompt is None else 'prompt'}"
        )
        apart[kind].append((
            abs(float(found.seconds) / step.seconds - 1),
            abs(float(found.parameters) / parameter_count(model) - 1),
            abs(float(found.weight_bytes) / stage_weight_bytes(model, deployment.layout, 0) - 1),
        ))  # fmt: skip
    print("| models | drawn | step, % | parameters, % | weights, % |\n| --- | --: | --: | --: | --: |")
    for kind, rows in sorted(apart.items()):
        step, parameters, weights = 100 * np.max(rows, axis=0)
        print(f"| {kind} | {len(rows)} | {step:.2f} | {parameters:.2f} | {weights:.2f} |")
    print(f"\n{left_out} drawn models did not fit and were drawn again.")
    axes = np.meshgrid(
        np.arange(16, 66), np.arange(2048, 8448, 128), np.arange(4096, 29696, 512), [16, 24, 32, 40], [4, 8]
    )
    layers, hidden, inter, heads, kv_heads = (axis.ravel() for axis in axes)
    begin = time.process_time()
    estimate_variants("h200-sxm", layers=layers, hidden=hidden, inter=inter, heads=heads, kv_heads=kv_heads)
    print(f"{layers.size:,} variants: {time.process_time() - begin:.2f} s of one processor.")


if __name__ == "__main__":
    main()
