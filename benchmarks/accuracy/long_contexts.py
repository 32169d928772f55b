"""What decoding costs the token mixers of a model as contexts grow from 1k to 1M tokens, as a picture.

    pip install matplotlib && python benchmarks/accuracy/long_contexts.py docs/images/long_contexts.svg

All layers of a model together, sequence by sequence: projections are left out, which do not depend on the context.
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from infercast.engines.base import engine_named
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls
from infercast.models.read import read_model
from infercast.predict.learned import make_predictor

GPU, GPUS, SEQUENCES = "h200-sxm", 8, 8
CONTEXTS = 2 ** np.arange(10, 21)
MODELS = {
    "qwen3-235b-a22b": "grouped attention",
    "deepseek-v3.1": "latent attention",
    "glm-5": "latent, every layer chooses 2,048 tokens",
    "glm-5.2": "as glm-5, one layer in four chooses",
    "minimax-m3": "grouped, chooses 16 blocks of 128",
    "deepseek-v4-flash": "compressed and chosen",
    "qwen3.5-397b-a17b": "gated delta net in 3 of 4 layers",
    "nemotron-3-ultra-550b-a55b": "Mamba2 in 48 layers, attention in 12",
}


def milliseconds(name: str) -> dict[str, np.ndarray]:
    """By kernel, for each context."""
    model, gpu, predictor = read_model(name), load_gpu(GPU), make_predictor()
    model = engine_named().choose_kernels(model, gpu)
    queries = np.ones((len(CONTEXTS), 1), dtype=np.int64)
    counts = np.full_like(queries, SEQUENCES)
    calls = attention_calls(model, ParallelLayout(GPUS), queries, CONTEXTS[:, None], counts)
    times: dict[str, np.ndarray] = {}
    for call in calls:
        seconds = np.broadcast_to(predictor.seconds(call.op, gpu), CONTEXTS.shape)
        times[call.name] = times.get(call.name, 0.0) + 1e3 * call.count * seconds
    return times


def main(path: str) -> None:
    plt.rcParams |= {"svg.hashsalt": "infercast", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, panel = plt.subplots(figsize=(8.6, 5.0), layout="constrained")
    colours = ("#6b6b6b", "#1f6fb4", "#d1603d", "#e8a48f", "#b08a1e", "#8457a6", "#3a8f5c", "#4fa3a5")
    lines = sorted(((sum(milliseconds(name).values()), name) for name in MODELS), key=lambda line: -line[0][-1])
    for (times, name), colour in zip(lines, colours, strict=True):
        panel.plot(CONTEXTS, times, color=colour, lw=1.8, label=f"{name}: {MODELS[name]}")
        print(f"{name:30s}", "  ".join(f"{value:7.2f}" for value in times))
    panel.set(xscale="log", yscale="log", xlim=(CONTEXTS[0], CONTEXTS[-1]))
    panel.set_xticks(CONTEXTS[::2])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:,.0f}k"))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.minorticks_off()
    panel.set_xlabel("context, tokens of each sequence")
    panel.set_ylabel(f"ms a step in token mixers ({SEQUENCES} sequences, {GPUS} H200, tensor parallel)")
    panel.grid(visible=True, which="major", color="#eeeeee")
    panel.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
