"""Fitting an artefact: one forest for each GPU, family, engine and variant, and pooled ones for GPUs never measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.fit.boost import Settings, boost
from infercast.fit.pooling import fit_pooled, pools_of, thin_sample
from infercast.fit.recipes import measured_settings
from infercast.fit.samples import Key, Sample, sweep_samples
from infercast.predict.artifact.artifact import POOLED, Entry, path_beside, save_artifact
from infercast.predict.artifact.features import KERNELS
from infercast.predict.artifact.forest import Forest
from infercast.predict.families import FAMILIES
from infercast.predict.identity import SWEEP

Array = npt.NDArray[Any]

HELD_OUT_SHARE = 5
"""One group in so many is held out to learn the interval."""
FEW_LAYOUTS = ("sparse_attention", "sparse_module")
"""Families whose groups are whole layouts, of which tables have few."""
KNOWN_SHARE = 0.3
"""Of what was timed, from which on the kernel's own time is known."""
FEWEST = 8
"""Rows below which nothing is learned of a kernel on its GPU."""
SHORTEST = 75e-6
"""Where all rows of a kernel take longer, the host's having been left out, it is not known of shorter ones how wrong an
estimate is: the interval is at least as wide as that of physics alone."""
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
        if sample.residual.size >= FEWEST
    ]
    for (family, engine, variant), sources in sorted(pools_of(samples).items(), key=lambda item: item[0]):
        fit = partial(fit_pooled, (family, POOLED, engine, variant), sources)
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
    entry = _entry(key, sample.residual.size, misses, offset=0.0, shrink=1.0)
    if sample.seconds.min() > SHORTEST:
        low, high = FAMILIES[key[0]].interval
        entry = entry._replace(low=min(entry.low, low), high=max(entry.high, high))
    return entry, forest


def _boost(sample: Sample, settings: Settings) -> Forest:
    thinned = thin_sample(sample, settings.most_rows)
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
