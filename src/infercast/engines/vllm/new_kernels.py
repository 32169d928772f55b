"""Kernels that newer releases run and nobody measured: those of the measured release stand in for them.

Since 0.32 Humming's kernels stand before Marlin's on Hopper (``quantization/utils/humming/priority.py``): for experts
in int4 and nvfp4, and for dense products in nvfp4 and mxfp4; of dense int4 Machete's still come first. Since 0.29
FlashInfer reduces over the GPUs of a node of compute capability 10.3 (``device_communicators/all_reduce_utils.py``).
"""

from __future__ import annotations

from infercast.engines.vllm.versions import EngineVersion
from infercast.hardware import Gpu
from infercast.ops import Collective, Gemm, MoE, Op
from infercast.predict.families.moe import expert_kernel
from infercast.predict.profile import kernel_profile

MARLIN = "marlin"
ON_HOPPER = ("nvfp4", "mxfp4")
"""Formats of dense weights that Marlin multiplied there."""
REDUCED_BY_FLASHINFER = {"10.3": (4, 8)}
"""By compute capability, numbers of GPUs that a table has sizes for."""


def is_new(version: EngineVersion, op: Op, gpu: Gpu) -> bool:
    """Whether a release runs another kernel than the measured one does."""
    if isinstance(op, MoE):
        return _is_hopper(version, gpu) and not op.kernel and expert_kernel(op, gpu, kernel_profile()) == MARLIN
    if isinstance(op, Gemm):
        return _is_hopper(version, gpu) and (op.weight_dtype or op.dtype) in ON_HOPPER
    if isinstance(op, Collective):
        tabled = REDUCED_BY_FLASHINFER.get(gpu.compute_capability, ())
        return version.flashinfer_all_reduce and op.kind == "all_reduce" and op.gpus in tabled
    return False


def _is_hopper(version: EngineVersion, gpu: Gpu) -> bool:
    return version.prefers_humming and gpu.compute_capability == "9.0"
