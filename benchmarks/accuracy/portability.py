"""Which kernels behave alike on every GPU: efficiency against shape, and what a GPU that nobody measured may expect.

    pip install 'infercast[fit]' matplotlib
    python benchmarks/accuracy/portability.py TABLES measurements docs/images/portability.svg

Draws for each family the share of the hardware's limit that kernels reach, and how long they take against the physics,
both against their size and GPU by GPU. Prints for each family and format the median share, how far GPUs lie apart in
cells of like shapes (before and after the physics), and the mean error on each generation of GPUs when a model is
fitted without it, by the recipe of the unseen tier.
"""

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt

from ceilings import all_rows, are_cold, quantising
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import Sample, key_of, sample_of
from infercast.lab.fit.train import Source, pool, pooled_recipe
from infercast.ops import Gemm, MoE
from infercast.ops.op import tensor_rate_of
from infercast.predict.ceilings import features_of, variant_of
from infercast.predict.families import family_of
from infercast.predict.fitted import POOLED
from infercast.predict.identity import SWEEP
from infercast.predict.learned import default_artifact
from infercast.predict.roofline import launch_floor, limit_seconds

COLOURS = {
    "a100-sxm": "#3a8f5c", "l40s": "#b08a1e", "h100-sxm": "#1f6fb4", "h200-sxm": "#8457a6", "b200-sxm": "#d1603d",
}  # fmt: skip
PANELS = {
    ("gemm", "bf16"): "GEMM, bf16", ("gemm", "fp8"): "GEMM, fp8", ("attention_prefill", ""): "attention, prefill",
    ("attention_decode", ""): "attention, decode", ("moe", "bf16"): "experts, bf16", ("collective", ""): "collectives",
}  # fmt: skip
FEWEST = 4
"""Rows of one GPU in a cell."""
MOST = 20_000
"""Rows of one GPU and family that are looked at."""
TRUSTED, WITH_CARE = 0.16, 0.30
"""Largest mean error on any generation left out."""
GENERATIONS = ("ampere", "ada", "hopper", "blackwell")


def main() -> None:
    rows, pools = read(Path(sys.argv[1]), Path(sys.argv[2]))
    draw(rows, Path(sys.argv[3]))
    print(f"| kernels | reach, % | apart | after physics | {' | '.join(GENERATIONS)} | interval, % | trust |")
    print(f"| --- | --: | --: | --: |{' --: |' * len(GENERATIONS)} --: | --- |")
    for key, by_gpu in rows.items():
        reach = np.median([np.exp(-np.median(values[1])) for values in by_gpu.values()])
        spreads = [apart(by_gpu, column) for column in (1, 2)]
        engine, variant, samples = max(
            pools[key], key=lambda pool: sum(each.residual.size for each in pool[2].values())
        )
        errors = left_out(key[0], variant, samples)
        interval = next(
            (
                f"{100 * np.expm1(entry.low):+.0f} to {100 * np.expm1(entry.high):+.0f}"
                for entry in default_artifact().entries
                if entry.key == (key[0], POOLED, engine, variant)
            ),
            "",
        )
        cells = [f"{100 * reach:.0f}", *("" if np.isnan(each) else f"{each:.2f}" for each in spreads)]
        cells += [f"{100 * errors[name]:.0f}" if name in errors else "" for name in GENERATIONS]
        print(f"| {' '.join(key).strip()} | {' | '.join([*cells, interval])} | {verdict(errors)} |", flush=True)


def read(tables: Path, sweeps: Path) -> tuple[dict, dict]:
    """By family and format, then by GPU: columns of cell, log of time over the limit, log of time over physics, size.

    And by family and format the samples of each engine and kernel, as the fit of the unseen tier sees them.
    """
    found: dict[tuple[str, str], dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    pools: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for part in all_rows(tables, sweeps):
        gpu, op = load_gpu(part.gpu), part.op
        if isinstance(op, Gemm | MoE) and not gpu.supports(tensor_rate_of(op.compute_dtype)):
            continue
        features = features_of(op, gpu)
        base = limit_seconds(op, gpu) + launch_floor(gpu) + quantising(part, gpu)
        cell = np.zeros(len(features))
        for column in features[:, :4].T:
            cell = cell * 1009 + np.rint(column)
        sample = sample_of(part)
        columns = cell, np.log(part.seconds / base), sample.residual, features[:, 0]
        if part.engine != SWEEP:
            _, _, engine, variant = key_of(part)
            pools[family_of(op).name, variant_of(op)][engine, variant][part.gpu].append(sample)
        found[family_of(op).name, variant_of(op)][part.gpu].append(np.stack(columns)[:, are_cold(part, gpu)])
    rows = {
        key: {gpu: thinned(np.concatenate(parts, axis=1)) for gpu, parts in sorted(by_gpu.items())}
        for key, by_gpu in sorted(found.items())
    }
    joined = {
        key: [(*of, {gpu: Sample.joined(parts) for gpu, parts in by_gpu.items()}) for of, by_gpu in by_engine.items()]
        for key, by_engine in pools.items()
    }
    return rows, joined


def thinned(values: np.ndarray) -> np.ndarray:
    if values.shape[1] <= MOST:
        return values
    return values[:, np.random.default_rng(0).permutation(values.shape[1])[:MOST]]


def apart(by_gpu: dict[str, np.ndarray], column: int) -> float:
    """The factor between the slowest and the fastest GPU in the median cell that at least two GPUs have."""
    medians: dict[float, list[float]] = defaultdict(list)
    for values in by_gpu.values():
        cells, counts = np.unique(values[0], return_counts=True)
        order = np.argsort(values[0], kind="stable")
        for cell, part in zip(cells, np.split(values[column][order], np.cumsum(counts)[:-1]), strict=True):
            if part.size >= FEWEST:
                medians[cell].append(float(np.median(part)))
    several = [max(each) - min(each) for each in medians.values() if len(each) > 1]
    return float(np.exp(np.median(several))) if several else np.nan


def left_out(family: str, variant: str, samples: dict[str, Sample]) -> dict[str, float]:
    """Mean error on each generation of GPUs by a model of all others."""
    recipe, errors = pooled_recipe(family, variant), {}
    for generation in GENERATIONS:
        hidden = {gpu for gpu in samples if load_gpu(gpu).architecture == generation}
        others = {gpu: sample for gpu, sample in samples.items() if gpu not in hidden}
        if hidden and others:
            forest, offset = pool(family, [Source(gpu, variant, sample) for gpu, sample in others.items()], recipe)
            target = Sample.joined([samples[gpu] for gpu in sorted(hidden)])
            answer = offset + recipe.shrink * forest.predict(target.features)
            errors[generation] = float(np.mean(np.abs(np.exp(answer - target.residual) - 1.0)))
    return errors


def verdict(errors: dict[str, float]) -> str:
    if not errors:
        return "one generation only"
    worst = max(errors.values())
    return "yes" if worst <= TRUSTED else "with care" if worst <= WITH_CARE else "no: measure"


def draw(rows: dict[tuple[str, str], dict[str, np.ndarray]], out: Path) -> None:
    plt.rcParams |= {"svg.hashsalt": "infercast", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, panels = plt.subplots(2, len(PANELS), figsize=(15, 5.6), layout="constrained", sharey="row", sharex="col")
    for (key, title), (upper, lower) in zip(PANELS.items(), panels.T, strict=True):
        for gpu, (_, over_limit, over_physics, size) in rows[key].items():
            bins = np.rint(size)
            places = [each for each in np.unique(bins) if np.count_nonzero(bins == each) >= FEWEST and each >= -6]
            for panel, values, sign in ((upper, over_limit, -1), (lower, over_physics, 1)):
                middle, low, high = (
                    [np.exp(sign * np.quantile(values[bins == each], share)) for each in places]
                    for share in (0.5, 0.25, 0.75)
                )
                x = [2.0**each for each in places]
                panel.plot(x, middle, color=COLOURS[gpu], lw=1.4, label=gpu)
                panel.fill_between(x, low, high, color=COLOURS[gpu], alpha=0.12, lw=0)
        upper.set(title=title, xscale="log", ylim=(0, 1.15))
        lower.set(xscale="log", yscale="log", ylim=(0.5, 3), yticks=[0.5, 0.7, 1, 1.5, 2, 3])
        lower.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        lower.yaxis.set_minor_formatter(lambda value, _: "")
        lower.axhline(1.0, color="#888888", lw=0.8)
        lower.set_xlabel("time at the limit / launch")
    panels[0, 0].set_ylabel("share of the hardware's limit reached")
    panels[1, 0].set_ylabel("measured / physics")
    handles = [plt.Line2D([], [], color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(COLOURS), loc="outside lower center", ncols=len(COLOURS), frameon=False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
