"""What measured rows become before anything is fitted: physics, features and residuals, by the model they belong to."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import FileFormatError, InputError
from infercast.fit.left_out import is_of_kernel
from infercast.fit.rows import LEFT_OUT, Rows
from infercast.fit.sparse_modules import MODULE_FAMILIES
from infercast.fit.sparse_tables import SPARSE_FAMILIES
from infercast.fit.sweeps import read_sweep, sweep_folders
from infercast.fit.tables import FILES, read_table
from infercast.hardware import load_gpu
from infercast.ops import Attention
from infercast.predict.choice import base_seconds
from infercast.predict.families import FAMILIES, family_of
from infercast.predict.families.gemm import product_variant
from infercast.predict.identity import LATENT, SWEEP, expert_kernel_named

Array = npt.NDArray[Any]

FAMILY_OF_TABLE = {"quantise": "memory_bound", **SPARSE_FAMILIES, **MODULE_FAMILIES}
ALL_ENGINES = ("scan", "convolution")
"""Families whose readers choose among all engines: of some of their kernels one alone has any."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one key as a learner sees them."""

    features: Array
    residual: Array
    """log(measured / physics), or over the schedule's time where a model starts from that."""
    group: Array
    weight: Array
    """How much of what was timed the kernel is: less than 1 where others were timed with it."""
    seconds: Array
    """What was timed."""

    def part(self, chosen: Array) -> Sample:
        """Some of the rows."""
        return Sample(*(getattr(self, name)[chosen] for name in self.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Sample]) -> Sample:
        """All rows of several samples."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


Key = tuple[str, str, str, str]
"""(family, gpu, engine, variant)"""


def read_samples(folder: Path, families: Sequence[str], gpus: Sequence[str] | None = None) -> dict[Key, Sample]:
    """All rows of a data folder, with physics and features, by key."""
    parts: dict[Key, list[Sample]] = defaultdict(list)
    for family in families:
        path = folder / FILES[family]
        if not path.exists():
            raise FileFormatError(path, f"is missing: {family} needs it")
        for rows in read_table(path, family):
            if not is_left_out(rows) and (gpus is None or rows.gpu in gpus):
                parts[key_of(rows)].append(sample_of(rows))
    if not parts:
        raise InputError(f"{folder} has no rows of the chosen GPUs and families")
    return {key: _without_hosts(key, Sample.joined(group)) for key, group in parts.items()}


def _without_hosts(key: Key, sample: Sample) -> Sample:
    kept = is_of_kernel(key[0], sample.seconds, sample.residual)
    return sample if kept.all() else sample.part(kept)


def sweep_samples(folder: Path, families: Sequence[str] | None = None) -> dict[Key, Sample]:
    """All rows of tables of `infercast measure`, with the physics and features of an engine, by key."""
    parts: dict[Key, list[Sample]] = defaultdict(list)
    for gpu in sweep_folders(folder):
        for rows in read_sweep(gpu, families):
            parts[key_of(rows)].append(sample_of(rows))
    return {key: Sample.joined(group) for key, group in parts.items()}


def family_of_rows(rows: Rows) -> str:
    """The family whose kernels these rows are of: prompts of one token are run by those that decode."""
    if isinstance(rows.op, Attention) and rows.engine != SWEEP:
        return family_of(rows.op).name
    return FAMILY_OF_TABLE.get(rows.family, rows.family)


def key_of(rows: Rows) -> Key:
    """The model that these rows belong to."""
    family = family_of_rows(rows)
    dtype = rows.dtype.split("/")[0]
    variants = {"gemm": product_variant(dtype, rows.kernel), "moe": f"{dtype}/{expert_kernel_named(rows.kernel)}"}
    variants |= dict.fromkeys(("collective", "memory_bound"), rows.kernel)
    variant = variants.get(rows.family, "")
    if isinstance(rows.op, Attention):
        variant = LATENT if rows.op.latent_kv else rows.op.kernel
    if FAMILIES[family].archive:
        variant = rows.kernel
    return family, rows.gpu, rows.engine, variant


def is_left_out(rows: Rows) -> bool:
    """Whether nobody here estimates such kernels."""
    return rows.engine in LEFT_OUT and rows.family not in ALL_ENGINES


def sample_of(rows: Rows) -> Sample:
    """Physics and features of measured rows."""
    family = FAMILIES[family_of_rows(rows)]
    physics = family.physics(rows.op, load_gpu(rows.gpu), swept=rows.engine == SWEEP)
    base = base_seconds(family.name, rows.engine, physics)
    return Sample(physics.features, np.log(rows.own / base), group_hashes(rows), rows.own / rows.seconds, rows.seconds)


def group_hashes(rows: Rows) -> Array:
    """A number for each row's group, the same on every machine."""
    names, positions = np.unique(rows.group, return_inverse=True)
    prefix = f"{rows.family}|{rows.gpu}|{rows.engine}|{rows.dtype}|"
    return np.array([stable_hash(f"{prefix}{name}") for name in names])[positions]


def stable_hash(text: str) -> int:
    """The same number for the same text on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
