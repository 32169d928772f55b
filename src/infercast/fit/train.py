"""Fitting an artefact: one forest for each GPU, family, engine and variant, and pooled ones for GPUs never measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.fit.boost import Settings, boost
from infercast.fit.left_out import is_usual
from infercast.fit.recipes import Recipe, measured_settings, pooled_recipe
from infercast.fit.samples import Key, Sample, sweep_samples
from infercast.fit.spread import pooled_interval
from infercast.predict.artifact.artifact import POOLED, Entry, path_beside, save_artifact
from infercast.predict.artifact.features import KERNELS
from infercast.predict.artifact.forest import Forest
from infercast.predict.families import FAMILIES
from infercast.predict.identity import ANY, BY_KERNEL, SWEEP, any_kernel

Array = npt.NDArray[Any]

HELD_OUT_SHARE = 5
"""One group in so many is held out to learn the interval."""
FEW_LAYOUTS = ("sparse_attention", "sparse_module")
"""Families whose groups are whole layouts, of which tables have few."""
KNOWN_SHARE = 0.3
"""Of what was timed, from which on the kernel's own time is known."""
FEWEST = 8
"""Rows of a sweep that teach nothing."""
AT_ONCE = 2
"""Models fitted side by side; each comes out the same whatever its neighbour is."""


def fit_sweeps(folder: Path) -> list[tuple[Entry, Forest]]:
    """Models of tables of `infercast measure`, to be used at once."""
    samples = sweep_samples(folder).items()
    return [fit_measured(key, sample) for key, sample in samples if sample.residual.size >= FEWEST]


def fit_artifact(
    samples: dict[Key, Sample],
    out: Path,
    provenance: dict[str, Any],
    progress: Callable[[str], None] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> list[Entry]:
    """Fit every model and write the artefact and its manifest; returns what was fitted. ``origin``: see there.

    Families that have an archive of their own are written beside it.
    """
    jobs: list[tuple[str, Callable[[], tuple[Entry, Forest]]]] = [
        (" ".join(part for part in key if part), partial(fit_measured, key, sample))
        for key, sample in sorted(samples.items(), key=lambda item: item[0])
    ]
    for (family, engine, variant), by_gpu in sorted(_pools(samples).items(), key=lambda item: item[0]):
        fit = partial(_fit_pooled, (family, POOLED, engine, variant), by_gpu)
        jobs.append((f"{family} {engine} {variant} pooled", fit))

    def run(job: tuple[str, Callable[[], tuple[Entry, Forest]]]) -> tuple[Entry, Forest]:
        name, fit = job
        if progress is not None:
            progress(name)
        return fit()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        models = list(pool.map(run, jobs))
    for archive in sorted({FAMILIES[entry.family].archive for entry, _ in models}):
        held = [model for model in models if FAMILIES[model[0].family].archive == archive]
        groups = [sample.group for key, sample in samples.items() if FAMILIES[key[0]].archive == archive]
        save_artifact(
            path_beside(out, archive),
            held,
            provenance,
            np.unique(np.concatenate(groups)),
            inputs=KERNELS.of(archive),
            origin=origin,
        )
    return [entry for entry, _ in models]


def archives_of(out: Path, fitted: Sequence[Entry]) -> list[Path]:
    """The files that hold these models of an artefact."""
    return [path_beside(out, archive) for archive in sorted({FAMILIES[entry.family].archive for entry in fitted})]


def fit_measured(key: Key, sample: Sample) -> tuple[Entry, Forest]:
    """A GPU's own model; its interval comes from groups that a first fit did not see."""
    settings = measured_settings(key[0], key[2], sample.residual.size)
    # A kernel of a dozen widths, or of a few layouts of heads, has too few in one part.
    has_few = key[0] in FEW_LAYOUTS or (key[0] == "memory_bound" and key[2] == SWEEP)
    parts = range(HELD_OUT_SHARE) if has_few else range(1)
    found = []
    for part in parts:
        held_out = sample.group // HELD_OUT_SHARE % HELD_OUT_SHARE == part
        if 0 < np.count_nonzero(held_out) < held_out.size:
            trial = _boost(sample.part(~held_out), settings.lighter)
            # Where it is a small part of what was timed, nobody knows how wrong an estimate is.
            known = held_out & (sample.weight >= KNOWN_SHARE)
            held_out = known if known.any() else held_out
            found.append(sample.residual[held_out] - trial.predict(sample.features[held_out]))
    misses = np.concatenate(found) if found else sample.residual - np.median(sample.residual)
    forest = _boost(sample, settings)
    return _entry(key, sample.residual.size, misses, offset=0.0, shrink=1.0), forest


def _fit_pooled(key: Key, by_gpu: dict[str, Sample]) -> tuple[Entry, Forest]:
    """A model of several GPUs; its interval comes from leaving out one after the other."""
    recipe = pooled_recipe(key[0], key[3])
    misses = []
    for name, target in by_gpu.items() if len(by_gpu) > 1 else ():
        others = {other: sample for other, sample in by_gpu.items() if other != name}
        forest, offset = _pool(key[0], others, recipe)
        answer = offset + recipe.shrink * forest.predict(target.features)
        misses.append(thin(target.residual - answer, 4000))
    forest, offset = _pool(key[0], by_gpu, recipe)
    if not misses:  # one GPU: how it misses itself says how its kernels differ, nothing of how chips do
        (own,) = by_gpu.values()
        missed = own.residual - recipe.shrink * forest.predict(own.features)
        misses.append(thin(missed - np.median(missed), 4000))
    rows = sum(sample.residual.size for sample in by_gpu.values())
    entry = _entry(key, rows, np.concatenate(misses), offset=offset, shrink=recipe.shrink)
    low, high = pooled_interval(key[0], misses)
    return entry._replace(low=round(low, 5), high=round(high, 5)), forest


def _pool(family: str, by_gpu: dict[str, Sample], recipe: Recipe) -> tuple[Forest, float]:
    """One forest for several GPUs, each with the same weight; the common offset is not shrunk."""
    share = recipe.settings.most_rows // (2 * len(by_gpu))
    thinned = [_thin_sample(sample, share) for sample in by_gpu.values()]
    weight = np.concatenate([sample.weight / sample.residual.size for sample in thinned])
    middle = float(np.mean([np.median(sample.residual) for sample in thinned]))
    features = np.concatenate([sample.features for sample in thinned])
    features[:, recipe.columns(family)] = 0.0
    residual = np.concatenate([sample.residual for sample in thinned])
    # Where only the common offset is believed, nobody asks the trees.
    settings = recipe.settings if recipe.shrink else replace(recipe.settings, trees=1)
    return boost(features, residual - middle, settings, weight), middle


def _boost(sample: Sample, settings: Settings) -> Forest:
    thinned = _thin_sample(sample, settings.most_rows)
    weight = None if (thinned.weight == 1.0).all() else thinned.weight
    return boost(thinned.features, thinned.residual, settings, weight)


def _entry(key: Key, rows: int, misses: Array, *, offset: float, shrink: float) -> Entry:
    """What is known of a model's errors; ``misses`` are logs of measured / predicted on held-out rows."""
    low, high = np.quantile(misses, [0.1, 0.9])
    return Entry(
        *key,
        rows=rows,
        offset=offset,
        shrink=shrink,
        low=round(float(min(low, 0.0)), 5),
        high=round(float(max(high, 0.0)), 5),
        held_out_error=round(float(np.mean(np.abs(np.exp(-misses) - 1.0))), 5),
    )


def _pools(samples: dict[Key, Sample]) -> dict[tuple[str, str, str], dict[str, Sample]]:
    """The same kernel on all GPUs that have it, and all kernels of a family and format together.

    A kernel that one GPU alone has is worth as much to a new chip with the same kernel; other families take two.
    """
    pools: dict[tuple[str, str, str], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for (family, gpu, engine, variant), whole in samples.items():
        if engine == SWEEP or not (usual := is_usual(family, whole.residual, whole.group)).any():
            continue
        sample = whole.part(usual)
        pools[family, engine, variant][gpu].append(sample)
        if others := any_kernel(family, variant):
            pools[family, engine, others][gpu].append(sample)
    return {
        key: {gpu: Sample.joined(parts) for gpu, parts in by_gpu.items()}
        for key, by_gpu in pools.items()
        if len(by_gpu) > 1 or (key[0] in BY_KERNEL and not key[2].endswith(ANY))
    }


def thin(values: Array, most: int) -> Array:
    """At most so many rows, the same ones every time."""
    if len(values) <= most:
        return values
    return values[np.random.default_rng(0).permutation(len(values))[:most]]


def _thin_sample(sample: Sample, most: int) -> Sample:
    chosen = thin(np.arange(sample.residual.size), most)
    return sample.part(np.sort(chosen))
