"""Training an artefact: gradient boosting, recipes of the families, pooled models for unmeasured GPUs, provenance."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercast.bundled import read_data
from infercast.errors import missing
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import Key, Sample, is_usual, sweep_samples
from infercast.lab.fit.tables import FILES, Array, read_families, sweep_folders
from infercast.predict.families import FAMILIES
from infercast.predict.families.attention_kernels import SCHEDULE_FEATURES
from infercast.predict.families.family import has_constants, stated_interval
from infercast.predict.fitted import FEATURES, POOLED, Entry, Forest, save_artifact, silent_forest
from infercast.predict.identity import ANY, BY_KERNEL, SWEEP, any_kernel

# How far an unmeasured GPU may lie from what was learned on others.
#
# A model of several GPUs misses a new one by a factor of all kernels, seen once a GPU, and by each kernel's own. So the
# variance of the common miss averages what was found with what is known beforehand, and its few degrees of freedom
# widen the interval as Student's law does.

GENERATION = {"attention_prefill": -0.1, "attention_decode": -0.1}
"""How much less than the physics a new kernel takes (a logarithm): FlashAttention 3 on an H200 takes 0.04 (prompts) and
0.09 (decoding) less than the rates of version 2 say in the median, 0.30 and 0.25 less above 100 us."""
NEW_SHARE = {"attention_prefill": 0.8, "attention_decode": 0.65}
"""Of the interval that leaving out whole kernels says, what a new one needs: with FlashAttention 3 or FlashInfer as
new, 74 to 81 % of prompts and 78 to 84 % of decoding lie inside."""
BEFOREHAND = {"gemm": 0.08, "attention_decode": 0.13, "moe": 0.2, "collective": 0.2}
"""Standard deviation of the common miss: that of A100, L40S and Hopper, each left out; the experts' is that of kernels
with constants fitted for another."""
OTHERWISE = 0.1
WORTH = 2.0
NEAR = 0.3  # Of that, for GPUs of an architecture among the sources: H100 and H200, each by the other
OTHER_CHIP = 1.4
"""How much farther shapes spread on a chip without the kernel: FlashAttention 2 on A100 and L40S, each by the other."""
NORMAL = 1.2816


def pooled_interval(family: str, misses: Sequence[Array], *, new_kernel: bool = False) -> tuple[float, float]:
    """Logarithms of the 80 % interval's ends, from log(measured / predicted) of each GPU by the others' model."""
    common = np.array([np.median(of_gpu) for of_gpu in misses])
    own = np.concatenate([of_gpu - middle for of_gpu, middle in zip(misses, common, strict=True)])
    if common.size == 1:  # one GPU by itself says nothing of how chips differ
        common, own = common[:0], OTHER_CHIP * own
    freedom = WORTH + common.size
    variance = (WORTH * BEFOREHAND.get(family, OTHERWISE) ** 2 + np.square(common).sum()) / freedom
    if new_kernel:
        generation_spread = 0.1  # Standard deviation of that gain, for want of more generations: as large as the gain
        variance += generation_spread**2
    # The first terms of the expansion of Student's percentile around the normal one.
    percentile = NORMAL + (NORMAL**3 + NORMAL) / (4.0 * freedom)
    share = NEW_SHARE.get(family, 1.0) if new_kernel else 1.0
    return _ends(own, percentile * float(np.sqrt(variance)), share)


def _ends(misses: Array, step: float, share: float = 1.0) -> tuple[float, float]:
    low, high = np.quantile(misses, [0.1, 0.9])
    low, high = share * np.hypot(min(low, 0.0), step), share * np.hypot(max(high, 0.0), step)
    return round(-float(low), 5), round(float(high), 5)


# More accuracy from the same trees: each leaf takes a few more steps towards the median of what is still missed in it.
#
# Sixty trees of depth eight miss 4.4 % of hidden products instead of 4.5 %; four hundred of depth six miss 4.3 %.

STEP = 0.2


def refine(forest: Forest, features: Array, target: Array, rounds: int) -> Forest:
    index = forest.leaf_numbers(features)
    leaves = forest.leaves.astype(np.float64)
    missed = target - forest.bias - leaves[np.arange(len(leaves)), index].sum(axis=1)
    for _ in range(rounds):
        for tree, chosen in enumerate(np.ascontiguousarray(index.T)):
            change = STEP * _medians(chosen, missed, leaves.shape[1])
            leaves[tree] += change
            missed -= change[chosen]
    return replace(forest, leaves=leaves.astype(np.float32))


def _medians(chosen: Array, values: Array, leaves: int) -> Array:
    """The median of the values in each leaf, smaller where they are few."""
    ordered = values[np.lexsort((values, chosen))]
    counts = np.bincount(chosen, minlength=leaves)
    starts = np.cumsum(counts) - counts
    last = max(values.size - 1, 0)
    middle = ordered[np.minimum(starts + (counts - 1) // 2, last)] + ordered[np.minimum(starts + counts // 2, last)]
    ballast = 3.0  # Rows with no miss that each leaf is thought to hold besides its own
    return np.asarray(0.5 * middle * counts / (counts + ballast))


def table_hashes(folder: Path, families: Sequence[str], *, files: Mapping[str, str] = FILES) -> dict[str, str]:
    paths = {files[family]: folder / files[family] for family in families}
    return {name: file_hash(path) for name, path in paths.items() if path.exists()}


def sweep_hashes(folder: Path, families: Sequence[str] | None = None) -> dict[str, str]:
    return {
        f"{gpu.name}/{family}.parquet": file_hash(gpu / f"{family}.parquet")
        for gpu in sweep_folders(folder)
        for family in read_families(gpu, families)
    }


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def origin_of(tables: dict[str, str], revision: str = "") -> dict[str, Any]:
    """When, by which ``revision`` of this source (empty: that of a release) and on what an artefact was fitted."""
    packages = ("infercast", "numpy", "catboost", "pandas", "pyarrow")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "revision": revision or f"release {_version('infercast')}",
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "tables": dict(sorted(tables.items())),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


# From rows to a forest: gradient boosting with CatBoost, exported to plain arrays.


@dataclass(frozen=True, slots=True)
class Settings:
    trees: int = 300
    depth: int = 6
    learning_rate: float = 0.12
    borders: int = 96
    most_rows: int = 30_000
    most_features: int = 256  # Only those that a first fit finds most important: each costs time in every estimate
    random_strength: float = 1.0  # Noise on the scores by which splits are chosen
    refinements: int = 0
    loss: str = "MAE"  # What is made least, by CatBoost's name

    @property
    def lighter(self) -> Settings:
        """For trial fits, which only give the width of an interval."""
        return replace(self, most_rows=10_000)


def boost(features: Array, target: Array, settings: Settings, weight: Array | None = None) -> Forest:
    if not np.ptp(features.astype(np.float32), axis=0).any():  # one shape, or the same one again: nothing to ask
        return silent_forest(float(np.median(target)))
    model = _fit(features, target, settings, weight)
    if np.count_nonzero(importance := model.get_feature_importance()) > settings.most_features:
        features = features.copy()
        features[:, np.argsort(-importance, kind="stable")[settings.most_features :]] = 0.0
        model = _fit(features, target, settings, weight)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        forest = _forest(json.loads(path.read_text(encoding="utf-8")))
    return refine(forest, features, target, settings.refinements) if settings.refinements else forest


def _fit(features: Array, target: Array, settings: Settings, weight: Array | None) -> Any:
    try:
        from catboost import CatBoostRegressor  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise missing("fitting", "fit") from None
    model = CatBoostRegressor(
        iterations=settings.trees, depth=settings.depth, learning_rate=settings.learning_rate,
        border_count=settings.borders, loss_function=settings.loss, random_strength=settings.random_strength,
        random_seed=0, thread_count=2, allow_writing_files=False, verbose=False,
    )  # fmt: skip
    return model.fit(features.astype(np.float32), target, sample_weight=weight)


def _forest(document: dict[str, Any]) -> Forest:
    """CatBoost's JSON as arrays; levels that a short tree lacks always answer no."""
    trees = document["oblivious_trees"]
    depth = max(len(tree["splits"] or []) for tree in trees)
    features, borders = np.zeros((len(trees), depth), dtype=np.uint8), np.full((len(trees), depth), np.inf, np.float32)
    leaves = np.zeros((len(trees), 2**depth), dtype=np.float32)
    scale, bias = document["scale_and_bias"]
    for number, tree in enumerate(trees):
        for level, split in enumerate(tree["splits"] or []):
            features[number, level], borders[number, level] = split["float_feature_index"], split["border"]
        values = np.array(tree["leaf_values"], dtype=np.float32) * scale
        leaves[number, : len(values)] = values
    return Forest(features, borders, leaves, float(np.ravel(bias)[0]))


# How hard each family is fitted, chosen on the source GPUs only: by groups held out inside them for the measured tier,
# by leaving one GPU out for the unseen tier (docs/predict.md).


@dataclass(frozen=True, slots=True)
class Recipe:
    """A pooled learner, and how much of what it says is believed on a GPU that it never saw."""

    settings: Settings
    shrink: float
    drop: tuple[str, ...] = ()

    def columns(self, family: str) -> list[int]:
        return [FEATURES[family].index(name) for name in self.drop]


FILE = "lab/fit.toml"
SETTINGS = {name: Settings(**values) for name, values in read_data(FILE)["settings"].items()}
DEEP_ROWS, DEEP_ROWS_OF_SWEEP = 10_000, 8_000
SHORT_ROWS, SHORT_ROWS_OF_EXPERTS = 400, 1000
"""Rows of a short sweep; experts, with physics that is near, stay with shallow trees for longer."""


def measured_settings(family: str, engine: str, rows: int) -> Settings:
    """For a GPU's own rows. Deep trees need many."""
    if engine == SWEEP and rows < (SHORT_ROWS_OF_EXPERTS if family == "moe" else SHORT_ROWS):
        return SETTINGS["memory_bound" if family == "memory_bound" else "short"]
    if engine == SWEEP and family.startswith("attention"):
        return SETTINGS["attention"]
    if family not in ("gemm", "attention_decode", "attention_prefill"):
        own = next((name for name, families in read_data(FILE)["measured"].items() if family in families), None)
        return Settings() if own is None else SETTINGS[own]
    if engine == SWEEP and rows >= DEEP_ROWS_OF_SWEEP:
        return SETTINGS["fewer_deep"]
    if rows >= DEEP_ROWS:
        return SETTINGS["few_deep"]
    return SETTINGS["few" if family == "gemm" else "plain"]


def pooled_recipe(family: str, variant: str) -> Recipe:
    stated = read_data(FILE)["pooled"][family]
    shrink = stated["shrink"]
    if family == "gemm" and variant == "bf16":
        shrink = 0.7
    elif variant.rpartition("/")[2] != ANY:
        shrink = stated.get("known_kernel", shrink)
    drop = SCHEDULE_FEATURES if family.startswith("attention") else stated.get("drop", ())
    return Recipe(SETTINGS[stated["settings"]], shrink, tuple(drop))


# Models for unmeasured GPUs: of the same kernel on other chips, or of all kernels of a family.
#
# The former are believed almost in full. The latter say little of a new kernel: they are half believed, it is taken
# to be faster than the last ones, and the interval is as wide as leaving out whole kernels shows.

Pool = tuple[str, str, str]  # (family, engine, variant)
PARTS = 5


class Source(NamedTuple):
    gpu: str
    variant: str
    sample: Sample

    @property
    def architecture(self) -> str:
        return load_gpu(self.gpu).kernels


def pools_of(samples: Mapping[Key, Sample]) -> dict[Pool, list[Source]]:
    """The same kernel on all GPUs that have it, and all of a family and format together, unless constants set them
    apart.
    """
    pools: dict[Pool, list[Source]] = defaultdict(list)
    for (family, gpu, engine, variant), whole in samples.items():
        usual = is_usual(family, whole.residual, whole.group)
        if not usual.any() or stated_interval(family, variant, load_gpu(gpu).kernels):  # physics has what it teaches
            continue
        source = Source(gpu, variant, whole if usual.all() else whole.part(usual))
        pools[family, engine, variant].append(source)
        others = any_kernel(family, variant)
        if engine != SWEEP and others and not has_constants(family, source.architecture):
            pools[family, engine, others].append(source)
    return {key: sources for key, sources in pools.items() if _is_enough(key, sources)}


def _is_enough(key: Pool, sources: Sequence[Source]) -> bool:
    family, engine, variant = key
    if is_of_any(variant):
        return len({source.variant for source in sources}) > 1 or len(sources) > 1
    alone = family in BY_KERNEL and engine != SWEEP and not has_constants(family, sources[0].architecture)
    return alone or len(sources) > 1


def is_of_any(variant: str) -> bool:
    return variant.rpartition("/")[2] == ANY


def fit_pooled(key: Key, sources: Sequence[Source]) -> tuple[Entry, Forest]:
    """A model of several GPUs; its interval comes from leaving out one architecture after the other, or one kernel."""
    family, _, _, variant = key
    recipe, of_any = pooled_recipe(family, variant), is_of_any(variant)
    faster = GENERATION.get(family, 0.0) if of_any else 0.0
    seen = _misses_of_seen(family, sources, recipe)
    misses = [each - faster for each in _misses(family, sources, recipe, seen, of_any=of_any)]
    forest, offset = pool(family, sources, recipe)
    ends = pooled_interval(family, misses, new_kernel=of_any)
    spread = NORMAL * NEAR * BEFOREHAND.get(family, OTHERWISE)  # on architectures that the model saw other rows of
    near = {} if of_any else {name: _ends(each, spread) for name, each in seen.items()}
    rows, error = sum(source.sample.residual.size for source in sources), _mean_error(np.concatenate(misses))
    return Entry(*key, rows, offset + faster, recipe.shrink, *ends, error, near), forest


def _mean_error(misses: Array) -> float:
    return round(float(np.mean(np.abs(np.exp(-misses) - 1.0))), 5)


def _misses(
    family: str, sources: Sequence[Source], recipe: Recipe, seen: Mapping[str, Array], *, of_any: bool
) -> list[Array]:
    """log(measured / predicted) of each architecture or kernel by the others' model; of a lone one by its own."""
    found: list[Array] = []
    names = [source.variant if of_any else source.architecture for source in sources]
    for name in dict.fromkeys(names):
        others = [source for source, each in zip(sources, names, strict=True) if each != name]
        if others:
            forest, offset = pool(family, others, recipe)
            hidden = [source for source, each in zip(sources, names, strict=True) if each == name]
            missed = [(source.architecture, _missed(source.sample, forest, offset, recipe)) for source in hidden]
            found += _by_architecture(missed).values()
    return found or [each - np.median(each) for each in seen.values()]


def _by_architecture(missed: Sequence[tuple[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([each for other, each in missed if other == name]) for name, _ in missed}


def _missed(sample: Sample, forest: Forest, offset: float, recipe: Recipe) -> Array:
    few_misses = 4000
    chosen = thin_sample(sample, few_misses)
    return np.asarray(chosen.residual - offset - recipe.shrink * forest.predict(chosen.features))


def _misses_of_seen(family: str, sources: Sequence[Source], recipe: Recipe) -> dict[str, Array]:
    """The same of each architecture by a model that saw other groups of its rows: how kernels differ, not chips."""
    hidden = [source.sample.group // PARTS % PARTS == 0 for source in sources]
    pairs = [(source, part & ~part.all()) for source, part in zip(sources, hidden, strict=True)]
    forest, offset = pool(family, [each._replace(sample=each.sample.part(~part)) for each, part in pairs], recipe)
    parts = [(each.architecture, each.sample.part(part) if part.any() else each.sample) for each, part in pairs]
    return _by_architecture([(name, _missed(sample, forest, offset, recipe)) for name, sample in parts])


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
    # Where only the common offset is believed, the trees are not needed.
    settings = recipe.settings if recipe.shrink else replace(recipe.settings, trees=1)
    return boost(features, residual - middle, settings, weight), middle


def thin(values: Array, most: int) -> Array:
    if len(values) <= most:
        return values
    return values[np.random.default_rng(0).permutation(len(values))[:most]]


def thin_sample(sample: Sample, most: int) -> Sample:
    return sample.part(np.sort(thin(np.arange(sample.residual.size), most)))


def count_left_out(samples: Mapping[Key, Sample]) -> int:
    """Rows of published tables that models for other GPUs are fitted without."""
    tables = [(key[0], sample) for key, sample in samples.items() if key[2] != SWEEP]
    return sum(
        int(np.count_nonzero(~is_usual(family, sample.residual, sample.group)))
        for family, sample in tables
        if sample.residual.size
    )


HELD_OUT_SHARE = 5
FEWEST = 8  # Rows below which nothing is learned of a kernel on its GPU
SHORTEST = 75e-6  # Where all rows of a kernel take longer, the interval is at least as wide as that of physics alone


def fit_sweeps(folder: Path) -> list[tuple[Entry, Forest]]:
    samples = sweep_samples(folder).items()
    return [fit_measured(key, sample) for key, sample in samples if sample.residual.size >= FEWEST]


def fit_artifact(
    samples: dict[Key, Sample], out: Path, provenance: dict[str, Any], progress: Callable[[str], None] | None = None,
    origin: Mapping[str, Any] | None = None, of_gpus: Container[str] | None = None,
) -> list[Entry]:  # fmt: skip
    """Fit every model and write the artefact with its manifest; ``of_gpus``: own models of these GPUs alone."""
    jobs: list[tuple[str, Callable[[], tuple[Entry, Forest]]]] = [
        (" ".join(part for part in key if part), partial(fit_measured, key, sample))
        for key, sample in sorted(samples.items(), key=lambda item: item[0])
        if sample.residual.size >= FEWEST and (of_gpus is None or key[1] in of_gpus)
    ]
    for (family, engine, variant), sources in sorted(pools_of(samples).items(), key=lambda item: item[0]):
        fit = partial(fit_pooled, (family, POOLED, engine, variant), sources)
        jobs.append((f"{family} {engine} {variant} pooled", fit))

    def run(job: tuple[str, Callable[[], tuple[Entry, Forest]]]) -> tuple[Entry, Forest]:
        name, fit = job
        if progress is not None:
            progress(name)
        return fit()

    at_once = 2  # Models fitted side by side; each comes out the same whatever its neighbour is
    with ThreadPoolExecutor(at_once) as pool:
        models = list(pool.map(run, jobs))
    groups = np.unique(np.concatenate([sample.group for sample in samples.values()]))
    save_artifact(out, models, provenance, groups, origin=origin)
    return [entry for entry, _ in models]


def fit_measured(key: Key, sample: Sample) -> tuple[Entry, Forest]:
    """A GPU's own model; its interval comes from groups that a first fit did not see."""
    settings = measured_settings(key[0], key[2], sample.residual.size)
    # A kernel of a dozen widths, or of a few layouts of heads, has too few in one part.
    has_few = key[0] == "sparse_attention" or (key[0] == "memory_bound" and key[2] == SWEEP)
    parts = range(HELD_OUT_SHARE) if has_few else range(1)
    found = []
    known_share = 0.3  # Of what was timed, from which on the kernel's own time is known
    for part in parts:
        held_out = sample.group // HELD_OUT_SHARE % HELD_OUT_SHARE == part
        if 0 < np.count_nonzero(held_out) < held_out.size:
            trial = _boost(sample.part(~held_out), settings.lighter)
            # Where it is a small part of what was timed, the error of an estimate is unknown.
            known = held_out & (sample.weight >= known_share)
            held_out = known if known.any() else held_out
            found.append(sample.residual[held_out] - trial.predict(sample.features[held_out]))
    misses = np.concatenate(found) if found else sample.residual - np.median(sample.residual)
    forest = _boost(sample, settings)
    # What is known of a model's errors; ``misses`` are logs of measured / predicted on held-out rows
    entry = Entry(*key, sample.residual.size, 0.0, 1.0, *_ends(misses, 0.0), _mean_error(misses))
    if sample.seconds.min() > SHORTEST:
        low, high = FAMILIES[key[0]].interval
        entry = entry._replace(low=min(entry.low, low), high=max(entry.high, high))
    return entry, forest


def _boost(sample: Sample, settings: Settings) -> Forest:
    thinned = thin_sample(sample, settings.most_rows)
    weight = None if (thinned.weight == 1.0).all() else thinned.weight
    return boost(thinned.features, thinned.residual, settings, weight)
