"""Learning what the best implementations reach: an upper quantile of efficiency over GPUs and engines.

Rows of published tables that may have found their data in the cache are left out where memory decides: an engine's
kernels find it cold. Quantised products of those tables were timed with the quantising of their input, whose own limit
is added to theirs. Every GPU and engine weighs the same, however many rows it has.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.hardware import Gpu, load_gpu
from infercast.lab.fit.samples import group_hashes, is_left_out
from infercast.lab.fit.tables import Rows, read_sweep, sweep_folders
from infercast.lab.fit.train import HELD_OUT_SHARE, Settings, boost
from infercast.ops import Gemm, MoE
from infercast.ops.op import tensor_rate_of
from infercast.predict.ceilings import CEILINGS, features_of, variant_of
from infercast.predict.families import families_of, family_of
from infercast.predict.fitted import POOLED, Entry, save_artifact
from infercast.predict.identity import SWEEP
from infercast.predict.roofline import launch_floor, limit_seconds, pipe_limits
from training.tables import FILES, read_table

Array = npt.NDArray[Any]

QUANTILE = 0.1
"""The share of kernels that are better than a ceiling."""
COLD = 2.0
"""Data that is so many times larger than the cache is cold."""
MOST_ROWS = 12_000
"""Of one GPU and engine."""
SETTINGS = Settings(trees=120, depth=5, learning_rate=0.12, borders=48, loss=f"Quantile:alpha={QUANTILE}")


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows of one family and format."""

    features: Array
    excess: Array
    """log(measured / (hard limit + launch floor))"""
    group: Array
    weight: Array
    gpu: Array

    def part(self, chosen: Array) -> Measured:
        """Some of the rows."""
        return Measured(*(getattr(self, name)[chosen] for name in self.__slots__))


Key = tuple[str, str]
"""(family, variant)"""


def read_measured(tables: Path, sweeps: Path) -> dict[Key, Measured]:
    """All rows that can teach a ceiling, by family and format."""
    by_source: dict[tuple[Key, str, str], list[Measured]] = defaultdict(list)
    for rows in all_rows(tables, sweeps):
        gpu = load_gpu(rows.gpu)
        dtype = rows.op.compute_dtype
        if isinstance(rows.op, Gemm | MoE) and not gpu.supports(tensor_rate_of(dtype)):
            continue
        kept = are_cold(rows, gpu)
        base = limit_seconds(rows.op, gpu) + launch_floor(gpu) + quantising(rows, gpu)
        sample = Measured(
            features_of(rows.op, gpu),
            np.log(rows.seconds / base),
            group_hashes(rows),
            np.ones(rows.seconds.size),
            np.full(rows.seconds.size, rows.gpu),
        ).part(kept)
        by_source[(family_of(rows.op).name, variant_of(rows.op)), rows.gpu, rows.engine].append(sample)
    found: dict[Key, list[Measured]] = defaultdict(list)
    for (key, _, _), samples in by_source.items():
        found[key].append(_weighed(_joined(samples)))
    return {key: _joined(samples) for key, samples in sorted(found.items())}


def fit_ceilings(
    measured: dict[Key, Measured], out: Path, provenance: dict[str, Any], origin: Mapping[str, Any] | None = None
) -> list[Entry]:
    """Fit every ceiling and write them down; an entry's error is the share of hidden kernels that beat it."""
    models = []
    for (family, variant), rows in measured.items():
        hidden = rows.group // HELD_OUT_SHARE % HELD_OUT_SHARE == 0
        trial = boost(rows.features[~hidden], rows.excess[~hidden], SETTINGS, rows.weight[~hidden])
        beaten = rows.excess[hidden] < trial.predict(rows.features[hidden])
        share = float(np.average(beaten, weights=rows.weight[hidden])) if hidden.any() else QUANTILE
        entry = Entry(family, POOLED, POOLED, variant, rows.excess.size, 0.0, 1.0, 0.0, 0.0, share)
        models.append((entry, boost(rows.features, rows.excess, SETTINGS, rows.weight)))
    groups = np.unique(np.concatenate([rows.group for rows in measured.values()]))[:0]
    save_artifact(out, models, provenance, groups, inputs=CEILINGS, origin=origin)
    return [entry for entry, _ in models]


def leave_out(rows: Measured, gpu: str) -> tuple[float, float] | None:
    """(share of a GPU's kernels that beat a ceiling learned without it, median share of it that they reach)."""
    theirs = rows.gpu == gpu
    if theirs.all() or not theirs.any():
        return None
    others = rows.part(~theirs)
    ceiling = boost(others.features, others.excess, SETTINGS, others.weight).predict(rows.features[theirs])
    excess = rows.excess[theirs]
    return float(np.mean(excess < ceiling)), float(np.median(np.exp(ceiling - excess)))


def all_rows(tables: Path, sweeps: Path) -> Iterator[Rows]:
    """Rows of published tables, then of our own sweeps."""
    for family, name in FILES.items():
        if (tables / name).exists():
            chosen = (rows for rows in read_table(tables / name, family) if not is_left_out(rows))
            # What was timed with other kernels says nothing of the best that one can do.
            yield from (
                rows for rows in chosen if rows.other_seconds is None and family_of(rows.op).ceiling.is_known(rows.op)
            )
    for folder in sweep_folders(sweeps):
        yield from read_sweep(folder)


def are_cold(rows: Rows, gpu: Gpu) -> Array:
    """Rows that memory does not decide, and those that are too large for the cache."""
    op = rows.op
    if rows.engine == SWEEP or "dram" not in (pipes := pipe_limits(op, gpu)):
        return np.ones(rows.seconds.size, dtype=np.bool_)
    memory = pipes["dram"]
    others = [seconds for name, seconds in pipes.items() if name != "dram"]
    if getattr(op, "routing", "").startswith("power_law"):
        return memory < others[0]  # fewer experts are hit than the limit counts on
    decides = memory > np.maximum.reduce([*others, np.full(memory.size, launch_floor(gpu))])
    read_again = families_of(op)[0].ceiling.read_again
    size = memory * gpu.dram_bandwidth if read_again is None else read_again(op)
    return np.asarray(~decides | (size > COLD * gpu.l2_bytes))


def quantising(rows: Rows, gpu: Gpu) -> Array | float:
    """The limit of quantising the input, where it was timed with the product."""
    moved = families_of(rows.op)[0].ceiling.beside(rows.op)
    if rows.engine == SWEEP or moved is None:
        return 0.0
    return np.asarray(moved / gpu.dram_bandwidth + launch_floor(gpu))


def _weighed(sample: Measured) -> Measured:
    """At most so many rows, which together weigh one."""
    size = sample.excess.size
    if size > MOST_ROWS:
        chosen = np.random.default_rng(0).permutation(size)[:MOST_ROWS]
        sample = sample.part(np.sort(chosen))
    weight = np.full(sample.excess.size, 1.0 / max(sample.excess.size, 1))
    return Measured(sample.features, sample.excess, sample.group, weight * 1e4, sample.gpu)


def _joined(samples: Sequence[Measured]) -> Measured:
    return Measured(*(np.concatenate([getattr(sample, name) for sample in samples]) for name in Measured.__slots__))
