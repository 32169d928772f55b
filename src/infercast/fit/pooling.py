"""Models for GPUs that nobody measured: of the same kernel on other chips, or of all kernels of a family.

A kernel on a new chip misses its physics much as it does on the chips that have it, so that its model is believed
almost in full. What other kernels miss says little of a new one: their model is half believed, a new kernel is taken to
be faster than the rates of the last ones, and the interval is as wide as leaving out whole kernels shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.fit.boost import boost
from infercast.fit.left_out import is_usual
from infercast.fit.recipes import Recipe, pooled_recipe
from infercast.fit.samples import Key, Sample
from infercast.fit.spread import GENERATION, pooled_interval
from infercast.predict.artifact.artifact import Entry
from infercast.predict.artifact.forest import Forest
from infercast.predict.identity import ANY, BY_KERNEL, SWEEP, any_kernel

Array = npt.NDArray[Any]
Pool = tuple[str, str, str]
"""(family, engine, variant)"""
FEW_MISSES = 4000
"""Rows of a GPU that tell how a model misses it."""
PARTS = 5
"""Of the groups of one GPU, each hidden in turn."""


class Source(NamedTuple):
    """Rows of one kernel on one GPU."""

    gpu: str
    variant: str
    sample: Sample


def pools_of(samples: Mapping[Key, Sample]) -> dict[Pool, list[Source]]:
    """The same kernel on all GPUs that have it, and all kernels of a family and format together.

    A kernel that one GPU alone has is worth as much to a new chip with the same kernel; other families take two GPUs.
    """
    pools: dict[Pool, list[Source]] = defaultdict(list)
    for (family, gpu, engine, variant), whole in samples.items():
        if not (usual := is_usual(family, whole.residual, whole.group)).any():
            continue
        sample = whole if usual.all() else whole.part(usual)
        pools[family, engine, variant].append(Source(gpu, variant, sample))
        if engine != SWEEP and (others := any_kernel(family, variant)):
            pools[family, engine, others].append(Source(gpu, variant, sample))
    return {key: sources for key, sources in pools.items() if _is_enough(key, sources)}


def _is_enough(key: Pool, sources: Sequence[Source]) -> bool:
    family, engine, variant = key
    if is_of_any(variant):
        return len({source.variant for source in sources}) > 1 or len(sources) > 1
    return len(sources) > 1 or (family in BY_KERNEL and engine != SWEEP)


def is_of_any(variant: str) -> bool:
    """Whether a variant stands for all kernels."""
    return variant.rpartition("/")[2] == ANY


def fit_pooled(key: Key, sources: Sequence[Source]) -> tuple[Entry, Forest]:
    """A model of several GPUs; its interval comes from leaving out one GPU after the other, or one kernel."""
    family, _, _, variant = key
    recipe, of_any = pooled_recipe(family, variant), is_of_any(variant)
    faster = GENERATION.get(family, 0.0) if of_any else 0.0
    misses = [each - faster for each in _misses(family, sources, recipe, of_any=of_any)]
    forest, offset = pool(family, sources, recipe)
    low, high = pooled_interval(family, misses, new_kernel=of_any)
    missed = np.concatenate(misses)
    entry = Entry(
        *key,
        rows=sum(source.sample.residual.size for source in sources),
        offset=offset + faster,
        shrink=recipe.shrink,
        low=round(low, 5),
        high=round(high, 5),
        held_out_error=round(float(np.mean(np.abs(np.exp(-missed) - 1.0))), 5),
    )
    return entry, forest


def _misses(family: str, sources: Sequence[Source], recipe: Recipe, *, of_any: bool) -> list[Array]:
    """log(measured / predicted) of each GPU or kernel by the others' model; of a lone one by its own."""
    found: list[Array] = []
    names = [source.variant if of_any else source.gpu for source in sources]
    for name in dict.fromkeys(names):
        others = [source for source, each in zip(sources, names, strict=True) if each != name]
        if others:
            forest, offset = pool(family, others, recipe)
            hidden = [source.sample for source, each in zip(sources, names, strict=True) if each == name]
            found += [_missed(sample, forest, offset, recipe) for sample in hidden]
    return found or [_missed_alone(family, source, recipe) for source in sources]


def _missed(sample: Sample, forest: Forest, offset: float, recipe: Recipe) -> Array:
    chosen = thin_sample(sample, FEW_MISSES)
    return np.asarray(chosen.residual - offset - recipe.shrink * forest.predict(chosen.features))


def _missed_alone(family: str, source: Source, recipe: Recipe) -> Array:
    """How the kernels of one GPU differ by a model that saw other groups of them; nothing of how chips do."""
    sample = thin_sample(source.sample, FEW_MISSES)
    hidden = sample.group // PARTS % PARTS == 0
    if hidden.all() or not hidden.any():
        return np.asarray(sample.residual - np.median(sample.residual))
    forest, offset = pool(family, [source._replace(sample=sample.part(~hidden))], recipe)
    missed = _missed(sample.part(hidden), forest, offset, recipe)
    return np.asarray(missed - np.median(missed))


def pool(family: str, sources: Sequence[Source], recipe: Recipe) -> tuple[Forest, float]:
    """One forest for several GPUs, each with the same weight; the common offset is not shrunk."""
    by_gpu: dict[str, list[Sample]] = defaultdict(list)
    for source in sources:
        by_gpu[source.gpu].append(source.sample)
    share = recipe.settings.most_rows // (2 * len(by_gpu))
    thinned = [thin_sample(Sample.joined(parts), share) for parts in by_gpu.values()]
    weight = np.concatenate([sample.weight / sample.residual.size for sample in thinned])
    middle = float(np.mean([np.median(sample.residual) for sample in thinned]))
    features = np.concatenate([sample.features for sample in thinned])
    features[:, recipe.columns(family)] = 0.0
    residual = np.concatenate([sample.residual for sample in thinned])
    # Where only the common offset is believed, nobody asks the trees.
    settings = recipe.settings if recipe.shrink else replace(recipe.settings, trees=1)
    return boost(features, residual - middle, settings, weight), middle


def thin(values: Array, most: int) -> Array:
    """At most so many rows, the same ones every time."""
    if len(values) <= most:
        return values
    return values[np.random.default_rng(0).permutation(len(values))[:most]]


def thin_sample(sample: Sample, most: int) -> Sample:
    """At most so many rows of a sample, in their order."""
    chosen = thin(np.arange(sample.residual.size), most)
    return sample.part(np.sort(chosen))


def count_left_out(samples: Mapping[Key, Sample]) -> int:
    """Rows of published tables that models for other GPUs are fitted without."""
    tables = [(key[0], sample) for key, sample in samples.items() if key[2] != SWEEP]
    return sum(
        int(np.count_nonzero(~is_usual(family, sample.residual, sample.group)))
        for family, sample in tables
        if sample.residual.size
    )
