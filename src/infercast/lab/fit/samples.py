"""What measured rows become before anything is fitted: physics, features and residuals, by the model they belong to."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from infercast.errors import FileFormatError, InputError
from infercast.hardware import load_gpu
from infercast.lab.fit.rows import LEFT_OUT, Array, Rows
from infercast.lab.fit.sweeps import read_sweep, sweep_folders
from infercast.lab.fit.tables import FILES, TABLES, read_table
from infercast.ops import Attention
from infercast.predict.families import FAMILIES, family_of
from infercast.predict.families.gemm import product_variant
from infercast.predict.identity import LATENT, SWEEP, expert_kernel_named
from infercast.predict.kernels import base_seconds

# Rows that say nothing of a kernel on other chips: its tuner was not run, or its launches were not replayed.
#
# FlashInfer's CUTLASS experts in fp8 take three to five times their physics on H100 and H200 in vLLM's tables, and 0.95
# of it in TensorRT-LLM's. So a group of rows (one layout of experts, one pair of sizes) with a median above twice the
# physics is left out of models for other GPUs; a GPU's own model keeps it.
#
# Where the host launched kernels one by one, a table has a floor that no kernel has: vLLM's products in fp8 by blocks
# take 290 us on an L40S (Triton's), 80 on an H100 (DeepGEMM's). Rows that physics puts below it are left out.

CHECKED_FAMILIES = ("moe", "gemm")
TWICE = float(np.log(2.0))
FLOOR, NEAR, HOST = 0.05, 1.25, float(np.log(8.0))
"""Share of the shortest rows that gives the floor of a table, how many times it a kernel must take to show above the
host, and log(measured / physics) of the rows at the floor from which on it is the host's."""


def is_of_kernel(family: str, seconds: Array, residual: Array) -> Array:
    """Whether the kernel of each row outlasts its launch; of experts, whether it is within eight times the physics."""
    if family not in CHECKED_FAMILIES or not seconds.size:
        return np.ones(seconds.size, dtype=bool)
    if family == "moe":
        return np.asarray(residual <= HOST)
    floor = np.quantile(seconds, FLOOR)
    by_host = np.median(residual[seconds <= NEAR * floor]) > HOST
    physics = seconds / np.exp(residual)
    return np.asarray(physics > NEAR * floor if by_host else np.ones(seconds.size, dtype=bool))


def is_usual(family: str, residual: Array, group: Array) -> Array:
    """For each row, whether its group's median log(measured / physics) is below that bar."""
    if family not in CHECKED_FAMILIES:
        return np.ones(residual.size, dtype=bool)
    _, which = np.unique(group, return_inverse=True)
    order = np.lexsort((residual, which))
    starts = np.searchsorted(which[order], np.arange(which.max(initial=-1) + 2))
    middles = residual[order][(starts[:-1] + starts[1:] - 1) // 2]
    return np.asarray(middles[which] <= TWICE)


FAMILY_OF_TABLE: dict[str, str] = TABLES["family_of"]
ALL_ENGINES = ("scan", "convolution")  # Families whose readers choose among all engines: some kernels are in one alone


@dataclass(frozen=True, slots=True)
class Sample:
    features: Array
    residual: Array  # log(measured / physics), or over the schedule's time where a model starts from that
    group: Array
    weight: Array  # How much of what was timed the kernel is: less than 1 where others were timed with it
    seconds: Array

    def part(self, chosen: Array) -> Sample:
        return Sample(*(getattr(self, name)[chosen] for name in self.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Sample]) -> Sample:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


Key = tuple[str, str, str, str]  # (family, gpu, engine, variant)


def read_samples(
    folder: Path,
    families: Sequence[str],
    gpus: Sequence[str] | None = None,
    *,
    files: Mapping[str, str] = FILES,
    read: Callable[[Path, str], Iterator[Rows]] = read_table,
) -> dict[Key, Sample]:
    """All rows of a data folder, with physics and features, by key."""
    parts: dict[Key, list[Sample]] = defaultdict(list)
    for family in families:
        path = folder / files[family]
        if not path.exists():
            raise FileFormatError(path, f"is missing: {family} needs it")
        for rows in read(path, family):
            if not is_left_out(rows) and (gpus is None or rows.gpu in gpus):
                parts[key_of(rows)].append(sample_of(rows))
    if not parts:
        raise InputError(f"{folder} has no rows of the chosen GPUs and families")
    samples = {key: Sample.joined(group) for key, group in parts.items()}
    return {key: each.part(is_of_kernel(key[0], each.seconds, each.residual)) for key, each in samples.items()}


def sweep_samples(folder: Path, families: Sequence[str] | None = None) -> dict[Key, Sample]:
    """All rows of tables of `infercast measure`, with the physics and features of an engine, by key."""
    parts: dict[Key, list[Sample]] = defaultdict(list)
    for gpu in sweep_folders(folder):
        for rows in read_sweep(gpu, families):
            parts[key_of(rows)].append(sample_of(rows))
    return {key: Sample.joined(group) for key, group in parts.items()}


def family_of_rows(rows: Rows) -> str:
    """The family of these rows' kernels: prompts of one token run on decode kernels."""
    if isinstance(rows.op, Attention) and rows.engine != SWEEP:
        return family_of(rows.op).name
    return FAMILY_OF_TABLE.get(rows.family, rows.family)


def key_of(rows: Rows) -> Key:
    family = family_of_rows(rows)
    dtype = rows.dtype.split("/")[0]
    variants = {"gemm": product_variant(dtype, rows.kernel), "moe": f"{dtype}/{expert_kernel_named(rows.kernel)}"}
    variant = variants.get(rows.family, "" if rows.family == "quantise" else rows.kernel)
    if isinstance(rows.op, Attention):
        variant = LATENT if rows.op.latent_kv else rows.op.kernel
    return family, rows.gpu, rows.engine, variant


def is_left_out(rows: Rows) -> bool:
    return rows.engine in LEFT_OUT and rows.family not in ALL_ENGINES


def sample_of(rows: Rows) -> Sample:
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
