"""What measured rows become: physics, features and residuals for a fit, or corrections by anchors of one GPU."""

from __future__ import annotations

import hashlib
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infercast.errors import FileFormatError, InputError
from infercast.hardware import Gpu, load_gpu
from infercast.lab.fit.tables import (
    FILES,
    LEFT_OUT,
    TABLES,
    Array,
    Rows,
    is_swept,
    read_sweep,
    read_table,
    sweep_folders,
)
from infercast.ops import Attention, Gemm, Op
from infercast.predict.families import FAMILIES, family_of
from infercast.predict.families.gemm import product_variant
from infercast.predict.fitted import Artifact, Forest
from infercast.predict.identity import LATENT, SWEEP, KernelProfile, expert_kernel_named, kernel_of
from infercast.predict.kernels import Correction, base_seconds, learn
from infercast.predict.learned import Learned

# Rows that say nothing of a kernel on other chips: its tuner was not run, or its launches were not replayed.
#
# FlashInfer's CUTLASS experts in fp8 take three to five times their physics on H100 and H200 in vLLM's tables, and 0.95
# of it in TensorRT-LLM's. So a group of rows (one layout of experts, one pair of sizes) with a median above twice the
# physics is left out of models for other GPUs; a GPU's own model keeps it.
#
# Where the host launched kernels one by one, a table has a floor that no kernel has: vLLM's products in fp8 by blocks
# take 290 us on an L40S (Triton's), 80 on an H100 (DeepGEMM's). Rows that physics puts below it are left out.

CHECKED_FAMILIES = ("moe", "gemm")
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
    if family not in CHECKED_FAMILIES:
        return np.ones(residual.size, dtype=bool)
    _, which = np.unique(group, return_inverse=True)
    order = np.lexsort((residual, which))
    starts = np.searchsorted(which[order], np.arange(which.max(initial=-1) + 2))
    middles = residual[order][(starts[:-1] + starts[1:] - 1) // 2]
    return np.asarray(middles[which] <= np.log(2.0))


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
    folder: Path, families: Sequence[str], gpus: Sequence[str] | None = None, *, files: Mapping[str, str] = FILES,
    read: Callable[[Path, str], Iterator[Rows]] = read_table,
) -> dict[Key, Sample]:  # fmt: skip
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
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


# Anchor points of a user's own GPU, turned into corrections of what was learned on others.

FEWEST = 4  # Fewer points of a kind say nothing about it


class _Points(NamedTuple):
    """Anchors of one operator, and how wrong the estimates of them are without their help."""

    features: Array
    misses: Array
    learner: Forest | None
    is_near: bool  # Whether estimates of them were learned from GPUs of the same architecture
    is_swept: bool


def read_corrections(
    folder: Path, gpu: Gpu, artifact: Artifact, profile: KernelProfile
) -> dict[tuple[str, str], Correction]:
    """For each (family, kernel) with enough rows of this GPU: what the learned estimate misses there."""
    found: dict[tuple[str, str], list[_Points]] = defaultdict(list)
    for kind, points in _points(folder, gpu, artifact, profile):
        found[kind].append(points)
    corrections = {}
    for (family, kernel), parts in found.items():
        features = np.concatenate([part.features for part in parts])
        if len(features) >= FEWEST:
            misses = np.concatenate([part.misses for part in parts])
            learned = learn(family, features, misses, features, parts[0].learner, near=parts[0].is_near)
            corrections[family, kernel] = replace(learned, is_swept=parts[0].is_swept)
    if not corrections:
        raise InputError(f"{folder} has no kernel family with at least {FEWEST} rows of {gpu.name}")
    return corrections


def _points(
    folder: Path, gpu: Gpu, artifact: Artifact, profile: KernelProfile
) -> Iterator[tuple[tuple[str, str], _Points]]:
    swept = sweep_folders(folder) if any(folder.glob("meta.toml")) or any(folder.glob("*/meta.toml")) else []
    if not swept and is_swept(folder):
        swept = [folder]
    if swept:
        for own in swept:
            meta = own / "meta.toml"
            plain = meta.exists() and tomllib.loads(meta.read_text(encoding="utf-8")).get("kernels") == "torch"
            for rows in read_sweep(own, needs_meta=False):
                if _is_of(rows, gpu) and not (plain and _is_another(rows.op, gpu, profile)):
                    yield _of_sweep(rows, gpu, Learned(artifact, profile).alone, profile)
        return
    for family, name in FILES.items():
        if (folder / name).exists():
            own_rows = (rows for rows in read_table(folder / name, family) if _is_of(rows, gpu))
            yield from (_of_table(rows, gpu, artifact, profile) for rows in own_rows)


def _is_of(rows: Rows, gpu: Gpu) -> bool:
    return rows.gpu == gpu.name or load_gpu(rows.gpu).name == gpu.name


def _is_another(op: Op, gpu: Gpu, profile: KernelProfile) -> bool:
    """Whether PyTorch runs it by a kernel that is not the engine's."""
    if isinstance(op, Attention):
        plain_kernel = "fa2"  # The attention that PyTorch alone runs
        return kernel_of(op, gpu, profile.engine) != plain_kernel
    return not isinstance(op, Gemm) or op.dtype != "bf16"


def _of_table(rows: Rows, gpu: Gpu, artifact: Artifact, profile: KernelProfile) -> tuple[tuple[str, str], _Points]:
    family, _, _, variant = key_of(rows)
    predictor = Learned(artifact, profile.preferring(rows.engine), as_tabled=True)
    misses = np.log(rows.own / predictor.estimate(rows.op, gpu, (variant,)).seconds)
    choice = predictor.choose(rows.op, gpu, (variant,))
    learner = predictor.learner(rows.op, gpu, (variant,))
    near = choice is not None and choice.is_near(gpu)
    return (family, variant), _Points(sample_of(rows).features, np.asarray(misses), learner, near, is_swept=False)


def _of_sweep(rows: Rows, gpu: Gpu, predictor: Learned, profile: KernelProfile) -> tuple[tuple[str, str], _Points]:
    family, _, _, variant = key_of(rows)
    record = FAMILIES[family_of_rows(rows)]
    choice = predictor.choose(rows.op, gpu)
    names = [each for each in record.variants(rows.op, gpu, profile) if each]
    swept = choice is not None and choice.entry.engine == SWEEP
    predicted = predictor.estimate(rows.op, gpu).seconds
    features = record.physics(rows.op, gpu, engine=True, swept=swept).features
    misses, near = np.asarray(np.log(rows.seconds / predicted)), choice is not None and choice.is_near(gpu)
    points = _Points(features, misses, predictor.learner(rows.op, gpu), near, is_swept=True)
    return (family, names[0] if names else variant), points
