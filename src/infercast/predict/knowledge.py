"""What estimates on a GPU rest on, family by family: own rows, a kernel known from other chips, a new one, or a bound.

The error to be expected is the one that the model in question made on rows that were hidden from it: on hidden shapes
of the same GPU where that was measured, on whole GPUs or whole kernels left out where it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1
from typing import NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.hardware.kernels import is_modelled
from infercast.ops import Attention, Gemm, MoE, Op
from infercast.ops.dtypes import tensor_rate_of
from infercast.predict.adjust.typical import PUBLISHED, Typical
from infercast.predict.artifact.artifact import POOLED, Artifact
from infercast.predict.choice import SIBLING_WIDENING, Choice
from infercast.predict.families import family_of
from infercast.predict.identity import kernel_of
from infercast.predict.learned import Learned
from infercast.predict.profile import KernelProfile

TYPICAL_ERROR = 0.5
"""Of GPUs whose kernels nobody measured: about what the roofline at typical efficiencies misses other vendors' by."""
LEFT_OUT, NEW = 0.11, 0.17
"""What a kernel that one other chip has, and a new one, are taken to be off by at least: the upper end of what
attention on A100, L40S and H200 showed when each was left out (known 9 to 12 %, new 12 to 17 %; docs/predict.md). One
chip's rows alone cannot tell."""
WITHIN = 1.2816
"""Standard deviations from the middle to either end of an 80 % interval; the mean miss is 0.8 of one."""
ANNOUNCED = 0.3
"""Of a GPU that is announced only, whose engines will run other kernels than the ones that stand for them: a guess."""
STATUSES = {
    "measured": "measured",
    "sibling": "known kernel",
    "known": "known kernel",
    "new": "new kernel",
    "physics": "physics alone",
    "announced": "announced",
    "published": "published",
    "typical": "bound",
}


class Known(NamedTuple):
    """One kind of kernel on a GPU."""

    kind: str
    """For people: what it computes, in which format."""
    kernel: str
    """Its name where it has one, else empty."""
    status: str
    """A key of ``STATUSES``."""
    chips: tuple[str, ...]
    """GPUs whose rows the estimate rests on."""
    error: float
    """Mean absolute error of latency to be expected, as a share."""

    @property
    def words(self) -> str:
        """For people: how it is known."""
        return STATUSES[self.status]


def known_kernels(gpu: Gpu, artifact: Artifact, profile: KernelProfile) -> list[Known]:
    """All kinds that language models are made of, in formats that the GPU computes in."""
    predictor = Learned(artifact, profile)
    return [_known(kind, op, gpu, predictor, artifact, profile) for kind, op in _kinds(gpu)]


def _kinds(gpu: Gpu) -> Iterator[tuple[str, Op]]:
    for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
        if gpu.supports(tensor_rate_of(dtype)):
            yield f"products, {dtype}", Gemm(1024, 4096, 4096, dtype)
    one, long = np.array([[1]]), np.array([[1024]])
    stored = ("bf16", "fp8") if gpu.supports("fp8") else ("bf16",)
    for kv_dtype in stored:
        yield f"attention over prompts, {kv_dtype} cache", Attention(long, long, 32, 8, 128, 128, kv_dtype=kv_dtype)
    for kv_dtype in stored:
        yield f"decoding, {kv_dtype} cache", Attention(one, long, 32, 8, 128, 128, kv_dtype=kv_dtype)
    for dtype, weight in (
        ("bf16", "bf16"),
        ("fp8", "fp8"),
        ("fp8_block", "fp8_block"),
        ("bf16", "int4"),
        ("nvfp4", "nvfp4"),
    ):
        if gpu.supports(tensor_rate_of(dtype)):
            yield f"experts, {weight}", MoE(256, 2048, 768, 128, 8, dtype=dtype, weight_dtype=weight)


def _known(kind: str, op: Op, gpu: Gpu, predictor: Learned, artifact: Artifact, profile: KernelProfile) -> Known:
    family = family_of(op)
    kernel = kernel_of(op, gpu, profile.engine) or family.variants(op, gpu, profile)[0].partition("/")[2]
    if not is_modelled(gpu):
        return _of_others(Known(kind, kernel, Typical().source_of(op, gpu), (), TYPICAL_ERROR), op, gpu)
    known = _of_chosen(Known(kind, kernel, "", (), 0.0), op, gpu, predictor, artifact)
    return known._replace(status="announced", error=ANNOUNCED) if gpu.announced else known


def _of_others(known: Known, op: Op, gpu: Gpu) -> Known:
    """Of a GPU whose kernels physics does not know: by the interval that published rows and runs leave, if any."""
    if known.status != PUBLISHED:
        return known
    reached = Typical().reached(op, gpu)
    return known._replace(error=0.8 * expm1((reached.high - reached.low) / 2.0 / WITHIN))


def _of_chosen(known: Known, op: Op, gpu: Gpu, predictor: Learned, artifact: Artifact) -> Known:
    """By the model that estimates it."""
    kind, kernel, choice = known.kind, known.kernel, predictor.choose(op, gpu)
    if choice is None:
        low, high = family_of(op).interval
        return Known(kind, kernel, "physics", (), 0.8 * expm1((high - low) / 2.0 / WITHIN))
    error = choice.entry.held_out_error
    if choice.tier == "measured":
        return Known(kind, kernel, "measured", (gpu.name,), error)
    stands_for_another = choice.entry.variant.endswith("/triton") and kernel not in ("triton", "")
    if choice.known is not None and not stands_for_another:
        error = SIBLING_WIDENING * error
        return Known(
            kind,
            kernel,
            "sibling",
            (choice.known.name,),
            error if choice.known.kernels == gpu.kernels else max(error, LEFT_OUT),
        )
    chips = _chips(choice, artifact) if choice.known is None else (choice.known.name,)
    if choice.is_new_kernel or stands_for_another:
        return Known(kind, kernel, "new", chips, max(error, NEW))
    return Known(kind, kernel, "known", chips, error if len(chips) > 1 else max(error, LEFT_OUT))


def _chips(choice: Choice, artifact: Artifact) -> tuple[str, ...]:
    """GPUs whose rows a pooled model was learned from."""
    entry = choice.entry
    prefix = entry.variant.rpartition("/")[0]
    own = (
        each for each in artifact.entries_of(entry.family) if (each.family, each.engine) == (entry.family, entry.engine)
    )
    same = (
        each
        for each in own
        if each.variant == entry.variant or (choice.is_new_kernel and each.variant.startswith(prefix))
    )
    return tuple(sorted({each.gpu for each in same} - {POOLED}))


def in_short(kernels: list[Known]) -> str:
    """One sentence of how many are known how well; empty where all were measured on the GPU itself."""
    parts = []
    for words in dict.fromkeys(STATUSES.values()):
        errors = [each.error for each in kernels if each.words == words]
        if errors and words != "measured":
            ends = dict.fromkeys(f"{100 * error:.0f}" for error in (min(errors), max(errors)))
            few = " to ".join(ends)
            parts.append(f"{words}: {len(errors)} of {len(kernels)} kinds, expected error {few} %")
    return "; ".join(parts)
