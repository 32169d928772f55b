"""Which GPUs an engine does not run on: those whose compute capability is below what its kernels are built for."""

from __future__ import annotations

from infercast.errors import InputError
from infercast.hardware import Gpu


def check_capability(engine: str, oldest: tuple[int, int], such_as: str, gpu: Gpu) -> None:
    """Refuse a GPU that is too old; GPUs of other makers have no such number and pass."""
    parts = gpu.compute_capability.split(".")
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < oldest:
        raise InputError(
            f"{engine} does not run on {gpu.name}: its compute capability is {gpu.compute_capability}, and "
            f"{oldest[0]}.{oldest[1]} ({such_as}) is the least"
        )
