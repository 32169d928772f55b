"""Anchor points of a user's own GPU, turned into corrections of what was learned on others."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from infercast.errors import InputError
from infercast.fit.rows import Rows
from infercast.fit.samples import key_of, sample_of
from infercast.fit.tables import FILES, read_table
from infercast.hardware import Gpu, load_gpu
from infercast.predict.adjust.anchors import Correction, learn
from infercast.predict.artifact.artifact import Artifact
from infercast.predict.learned import Learned
from infercast.predict.profile import KernelProfile

FEWEST = 4
"""Fewer points of a kind say nothing about it."""


def read_corrections(
    folder: Path, gpu: Gpu, artifact: Artifact, profile: KernelProfile
) -> dict[tuple[str, str], Correction]:
    """For each (family, variant) with enough points: what the learned estimate misses on this GPU.

    ``folder`` holds parquet files as `infercast fit` reads them; only rows of this GPU count.
    """
    by_kind: dict[tuple[str, str], list[Rows]] = defaultdict(list)
    for family, name in FILES.items():
        if (folder / name).exists():
            for rows in read_table(folder / name, family):
                if load_gpu(rows.gpu).name == gpu.name:
                    kind, _, _, variant = key_of(rows)
                    by_kind[kind, variant].append(rows)
    corrections = {}
    for (kind, variant), parts in by_kind.items():
        samples = [sample_of(part) for part in parts]
        features = np.concatenate([sample.features for sample in samples])
        if len(features) >= FEWEST:
            misses = np.concatenate([_misses(part, variant, gpu, artifact, profile) for part in parts])
            found = Learned(artifact, profile).choose(parts[0].op, gpu, (variant,))
            learner = found.forest if found is not None else None
            corrections[kind, variant] = learn(kind, features, misses, features, learner)
    if not corrections:
        raise InputError(f"{folder} has no kernel family with at least {FEWEST} rows of {gpu.name}")
    return corrections


def _misses(part: Rows, variant: str, gpu: Gpu, artifact: Artifact, profile: KernelProfile) -> np.ndarray:
    """log(measured / predicted) of anchor rows, without their help."""
    predictor = Learned(artifact, profile.preferring(part.engine), as_tabled=True)
    return np.asarray(np.log(part.seconds / predictor.estimate(part.op, gpu, (variant,)).seconds))
