"""Anchor points of a user's own GPU, turned into corrections of what was learned on others."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infercast.errors import InputError
from infercast.hardware import Gpu, load_gpu
from infercast.lab.fit.rows import Array, Rows
from infercast.lab.fit.samples import family_of_rows, key_of, sample_of
from infercast.lab.fit.sweeps import is_swept, read_sweep, sweep_folders
from infercast.lab.fit.tables import FILES, read_table
from infercast.ops import Attention, Gemm, Op
from infercast.predict.families import FAMILIES
from infercast.predict.fitted import Artifact, Forest
from infercast.predict.identity import SWEEP, KernelProfile, kernel_of
from infercast.predict.kernels import Correction, learn
from infercast.predict.learned import Learned

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
