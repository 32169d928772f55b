"""Rank launch configurations of routed experts, try the best on the GPU at hand, and write down what came of it.

    python benchmarks/tuning/try_experts.py OUT.csv [SECONDS]

Shapes are layers of bundled models that vLLM brings no tuned file for; most run well below their ceiling by `infercast
diagnose`, a few do not. OUT has every configuration of every shape, forecast and measured; `table.py` shows it. Needs
vLLM and an H200. `trial.csv` beside this file is what came of the ranking before its constants were refitted on it.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tried import COLUMNS, GPU, SHAPE

from infercast.engines.base import FILE_KEYS, Configuration
from infercast.engines.vllm.kernels import EXPERT_LAUNCHES
from infercast.forecast.deploy import load_model
from infercast.forecast.tune import TunedShape, experts_of, layer_of, runnable, tune_shape
from infercast.lab.measure.sweep import trial_cases, try_configurations
from infercast.models.layout import ParallelLayout
from infercast.predict.expert_launch import tiles_of, time_tiles

TOP, LOTS = 6, 32
# Model, GPUs of tensor parallelism, format asked for, tokens; whether to draw configurations by lot as well.
SHAPES: tuple[tuple[str, int, str | None, int, bool], ...] = (
    ("mixtral-8x22b", 2, None, 512, True),
    ("mixtral-8x22b", 2, None, 1024, False),
    ("gemma-4-26b-a4b", 8, None, 64, True),
    ("gemma-4-26b-a4b", 8, None, 1024, False),
    ("gemma-4-26b-a4b", 2, None, 2048, False),
    ("glm-4.5-air", 4, None, 256, False),
    ("glm-4.5-air", 4, None, 2048, False),
    ("glm-4.5-air", 4, "fp8", 256, False),
    ("glm-4.5-air", 4, "fp8", 1024, True),
    ("qwen3-235b-a22b", 4, "fp8", 4096, True),
    ("qwen3-235b-a22b", 8, "fp8", 1024, False),
    ("deepseek-v2", 8, None, 16, False),
    ("deepseek-v2", 8, None, 2048, False),
    ("deepseek-v2-lite", 4, None, 1, False),
    ("llama-4-scout", 2, None, 2048, False),
    ("qwen1.5-moe-a2.7b", 1, None, 2048, False),
    ("minimax-m2", 4, None, 16, False),
    ("minimax-m2", 4, None, 128, False),
)


def shape_of(model: str, gpus: int, quantization: str | None, tokens: int) -> TunedShape:
    """A layer with its ranking."""
    loaded = load_model(model, quantization=quantization, moe_backend="triton" if quantization else "auto")
    op = experts_of(loaded, ParallelLayout(gpus))
    assert op is not None
    return tune_shape(replace(op, tokens=tokens), GPU, TOP, EXPERT_LAUNCHES)


def drawn(shape: TunedShape, count: int) -> list[Configuration]:
    """Configurations that can run, by lot: to see what the ranking misses."""
    tiles, _ = runnable(shape.op, GPU)
    lots = np.random.default_rng(0).permutation(len(tiles.rows))[:count]
    return [Configuration(*tiles.one(int(number))) for number in lots]


def table_rows(model: str, gpus: int, shape: TunedShape, rows: list[dict[str, Any]]) -> list[list[Any]]:
    """A shape's lines of the table: the default, as often as it was measured, the ranked, and those drawn by lot."""
    layer = layer_of(shape)
    ranks = {each.configuration: rank for rank, each in enumerate(shape.best, start=1)}
    found = []
    for row in rows:
        if any(row[name] != value for name, value in layer.items()):
            continue
        ran = Configuration(*(int(row["ran"][name]) for name in FILE_KEYS))
        rank = ranks.get(ran, "") if row["configuration"] else 0
        seconds = float(time_tiles(shape.op, GPU, tiles_of([ran])).seconds[0])
        sizes = [layer[name] for name in SHAPE[2:]]
        found.append([model, gpus, *sizes, rank, *ran, f"{1e6 * seconds:.2f}", f"{row['latency_us']:.2f}"])
    return sorted(found, key=lambda line: TOP + 1 if line[len(SHAPE)] == "" else line[len(SHAPE)])


def main(out: Path, seconds: float) -> None:
    """Try everything: what was ranked first, what was drawn by lot as time is left."""
    plan = []
    ranked, lots_too = [], []
    for model, gpus, quantization, tokens, lots in SHAPES:
        shape = shape_of(model, gpus, quantization, tokens)
        best = [each.configuration for each in shape.best]
        others = [each for each in drawn(shape, LOTS) if each not in best] if lots else []
        ranked += trial_cases(layer_of(shape), [None, *(each.as_file() for each in best), None])
        lots_too += trial_cases(layer_of(shape), [each.as_file() for each in others])
        plan.append((model, gpus, shape))
    trial = try_configurations([*ranked, *lots_too], seconds)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for model, gpus, shape in plan:
            writer.writerows(table_rows(model, gpus, shape, trial.rows))
    print(
        f"{len(trial.rows)} rows of {len(plan)} shapes in {trial.seconds:.0f} s; did not run: {trial.skipped or 'none'}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 220.0)
