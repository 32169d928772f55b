"""What estimates of a GPU's kernels rest on, for pages that show one."""

from __future__ import annotations

from infercast.hardware import Gpu
from infercast.predict.default import default_artifact
from infercast.predict.knowledge import Known, known_kernels
from infercast.predict.profile import kernel_profile

__all__ = ["Known", "kernel_basis"]


def kernel_basis(gpu: Gpu) -> list[Known]:
    """Kind by kind, with the artefact that comes with infercast and the usual engine's kernels."""
    return known_kernels(gpu, default_artifact(), kernel_profile())
