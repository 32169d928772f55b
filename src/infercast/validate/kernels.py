"""Predicted kernels held against an engine's profile, family by family."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.measured import ProfiledStep
from infercast.forecast.explain.kernels import estimate_shape
from infercast.serve.step import DraftShape, StepShape
from infercast.validate.compare import deployment_of
from infercast.validate.measured import MeasuredFile, load_document
from infercast.validate.parts import Comparison
from infercast.validate.profiles import Profile, read_profiles

LEAST_SHARE = 0.01
"""Families that take less of a profile's time are shown but not scored."""
_FAMILY_OF_KERNEL = {"embedding": "norm", "expert_sum": "norm", "draft_embedding": "norm", "draft_lm_head": "gemm"}
"""The engine's compiler fuses the first ones into the norm that follows; a head that runs more than once a step is a
product like others."""


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """One profile; times in microseconds over all its steps."""

    file: str
    tag: str
    families: dict[str, Comparison]
    busy: Comparison

    @property
    def scored(self) -> dict[str, Comparison]:
        """Families that matter."""
        least = LEAST_SHARE * self.busy.measured
        return {name: values for name, values in self.families.items() if values.measured >= least}

    @property
    def covered(self) -> float:
        """Share of the profiled time that belongs to a predicted family."""
        known = sum(values.measured for values in self.families.values() if values.predicted > 0)
        return known / self.busy.measured


def compare_profiles(
    files: Iterable[MeasuredFile],
    *,
    model_config: Path | None = None,
    gpu: str | None = None,
    predictor: str = "learned",
    real_weights: bool = False,
) -> list[ProfileComparison]:
    """All profiles of all files."""
    compared = []
    for measured in files:
        deployment = deployment_of(measured, model_config, gpu, predictor, real_weights=real_weights)
        document, has_experts = load_document(measured.path), deployment.model.has_experts
        profiles = read_profiles(measured.path, document, deployment.engine, has_experts=has_experts)
        compared += [compare_profile(measured.path.name, deployment, profile) for profile in profiles]
    return compared


def compare_profile(file: str, deployment: Deployment, profile: Profile) -> ProfileComparison:
    """Estimate the steps of a profile and add their kernels up."""
    predicted: dict[str, float] = defaultdict(float)
    for step, count in profile.steps:
        for family, seconds in estimate_families(deployment, profile, step).items():
            predicted[family] += 1e6 * count * seconds
    names = sorted({*profile.family_us, *predicted} - {"other"}, key=lambda name: -profile.family_us.get(name, 0.0))
    families = {
        name: Comparison(profile.family_us[name], predicted.get(name, 0.0))
        for name in names
        if name in profile.family_us
    }
    return ProfileComparison(file, profile.tag, families, Comparison(profile.busy_us, sum(predicted.values())))


def estimate_families(deployment: Deployment, profile: Profile, step: ProfiledStep) -> dict[str, float]:
    """GPU seconds of one step by family. An engine runs its head for every sequence of a step."""
    queries, keys = profile.batch_of(step)
    computed = [key - query for query, key in zip(queries, keys, strict=True)]
    seconds: dict[str, float] = defaultdict(float)
    shape, drafting = StepShape(queries, computed, len(queries)), deployment.drafting
    if drafting is not None:
        drafts = step.decodes * (drafting.width - 1)
        rows = len(queries) + drafts
        shape = DraftShape(
            queries, computed, rows, step.decodes, drafts, drafting.width, len(queries), drafting.num_drafts
        )
    for kernel in estimate_shape(deployment, shape).kernels:
        seconds[_FAMILY_OF_KERNEL.get(kernel.name, kernel.family)] += kernel.seconds
    return seconds


def summarise(profiles: Sequence[ProfileComparison]) -> dict[str, Any]:
    """Medians over profiles and families, as fractions."""
    if not profiles:
        return {"kernel_ape_median": None, "busy_ape_median": None, "kernel_time_covered": None}
    errors = [values.ape for profile in profiles for values in profile.scored.values()]
    covered = sum(profile.covered * profile.busy.measured for profile in profiles)
    return {
        "kernel_ape_median": float(np.median(errors)) if errors else None,
        "busy_ape_median": float(np.median([profile.busy.ape for profile in profiles])),
        "kernel_time_covered": covered / sum(profile.busy.measured for profile in profiles),
    }
