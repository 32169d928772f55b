"""An estimate with its error bar, its source and its reason, and kernels that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.hardware import Gpu
from infercast.hardware.load import facts_of, is_modelled
from infercast.lazy_classes import dataclass, replace
from infercast.ops import Attention, Call, Op
from infercast.ops.op import Quantity
from infercast.shown import PlottableResult
from infercast.units import format_seconds

# From the most to the least trusted; a sum is only as good as its weakest part.
SOURCES = ("measured", "few-shot", "sibling", "unseen", "physics", "published", "typical", "roofline")
BOUND = "roofline"  # The source of lower bounds: what hardware allows, not what is expected


def kind_of(source: str) -> str:
    """An ``estimate``, or a lower ``bound`` that is not to be ranked among estimates."""
    return "bound" if source == BOUND else "estimate"


def basis_of(parts: Iterable[tuple[str, float]]) -> str:
    """The least trusted source that counts, of (source, seconds) pairs: it and worse ones are a tenth of the time."""
    by_source = dict.fromkeys(SOURCES, 0.0)
    for source, seconds in parts:
        by_source[source] += seconds
    counts, so_far = 0.1 * sum(by_source.values()), 0.0
    for source in reversed(SOURCES):
        so_far += by_source[source]
        if so_far > counts:
            return source
    return SOURCES[0]


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(PlottableResult):
    """Seconds that one launch takes, or arrays of them for an array of shapes."""

    seconds: Quantity  # Seconds of one launch
    low: Quantity  # Lower end of the 80 % interval, in seconds
    high: Quantity  # Upper end of the 80 % interval, in seconds
    source: str  # Where the number comes from: one of `SOURCES`
    bound: str | npt.NDArray[Any]  # What limits it: ``tensor``, ``dram``, ``special``, ``fma``, ``link`` or ``launch``
    condition: str = ""  # Of a kernel by itself: ``alone``, ``engine`` or ``sustained``; empty within a step

    def _words(self) -> str:
        among = f"{self.condition}, " if self.condition else ""
        if np.ndim(self.seconds):
            return f"{np.size(self.seconds):,} shapes, {among}{self.source}"
        low, high = format_seconds(float(self.low)), format_seconds(float(self.high))
        return f"{format_seconds(float(self.seconds))} ({low} to {high}), {among}{self.source}, bound by {self.bound}"

    def document(self) -> dict[str, Any]:
        ends = ("seconds", "low", "high", "bound")
        known = {"source": self.source, "condition": self.condition}
        columns = [np.ravel(getattr(self, name)).tolist() for name in ends]
        rows = [dict(zip(ends, row, strict=True)) for row in zip(*columns, strict=True)]
        return {**known, "shapes": rows} if np.ndim(self.seconds) else {**rows[0], **known}

    def taken(self, which: npt.NDArray[Any]) -> Estimate:
        """Of an array of shapes these, each as often as it is named."""
        seconds, low, high, bound = (np.ravel(each)[which] for each in (self.seconds, self.low, self.high, self.bound))
        return Estimate(seconds, low, high, self.source, bound)

    def scaled(self, factor: Quantity) -> Estimate:
        return replace(self, seconds=self.seconds * factor, low=self.low * factor, high=self.high * factor)


def total(parts: Iterable[tuple[Estimate, int]]) -> Estimate:
    """The sum of (estimate, launches) pairs; its bound is that of the largest part. Interval ends add up: errors of one
    predictor on one GPU tend to point the same way, so they do not cancel.
    """
    seconds = low = high = largest = 0.0
    source, bound = SOURCES[0], "launch"
    for estimate, count in parts:
        share = float(estimate.seconds) * count
        seconds += share
        low += float(estimate.low) * count
        high += float(estimate.high) * count
        source = max(source, estimate.source, key=SOURCES.index)
        if share > largest:
            largest, bound = share, str(estimate.bound)
    return Estimate(seconds, low, high, source, bound)


ADDED_SHARE, SHARED_SECONDS = 1.1, 14e-6
"""Of the shorter half, what comes on top of the longer one, once what both need once is taken off."""
SLOWED_SHARE, SLOWED_SECONDS, BESIDE_SECONDS = 0.52, 250e-6, 10e-6
"""By which share long prompts take longer at most where sequences decode in the same launch, the prompts' seconds at
which it is half of that, and the decoding sequences' seconds likewise. All but the last were fitted on 1,804 mixed
batches of our sweep of an H200. With whole head layouts left out they are 8 % off in the median instead of 12 with 0.6
of the shorter half, and 3 % instead of 12 short on batches as serving makes them."""


UNPACKED = "flash-2"
"""How the names of attention kernels begin that put the query heads of one KV head into one tile only where nothing but
decoding is in the launch: FlashAttention 2. Beside prompts each head of a decoding sequence has a tile of its own, most
of whose rows are empty."""
TILE_ROWS = 64
"""Rows of that tile in the kernel that engines run, over pages. PyTorch's, with 128 rows, shows it on an H200: whatever
the prompts, sequences beside them take as long as if they had 128 queries each (81 mixed batches, 330 TFLOP/s)."""
TILE_SHARE = 0.4  # Share of the tensor cores' peak that these tiles reach; on published runs (docs/validation.md)


def padded(op: Op, gpu: Gpu) -> float:
    """Seconds for each key of a sequence that decodes in one launch with prompts, at least; 0: as on Hopper."""
    if not (isinstance(op, Attention) and is_modelled(gpu) and facts_of(gpu).attention.startswith(UNPACKED)):
        return 0.0
    if op.latent_kv or op.kernel or op.kv_dtype != op.dtype:  # of these FlashAttention 2 has no kernel
        return 0.0
    operations = 2.0 * TILE_ROWS * op.heads * (op.head_dim + op.value_dim)
    return operations / (TILE_SHARE * gpu.dense_flops(op.dtype))


def padded_seconds(op: Op | None, gpu: Gpu) -> Any:
    """The same for all sequences of a batch that decodes."""
    return padded(op, gpu) * op.num_pairs if isinstance(op, Attention) else 0.0


def fuse_prefill_decode(prompts: Any, decodes: Any, launches: Any = 1, padded: Any = 0.0) -> Any:
    """Seconds of both halves in ``launches`` launches; ``padded``: the least that decoding takes in the same launch."""
    if np.any(padded):
        return prompts + np.maximum(decodes, padded)
    long = prompts / (prompts + SLOWED_SECONDS * launches)
    prompts = prompts * (1.0 + SLOWED_SHARE * long * (decodes / (decodes + BESIDE_SECONDS * launches)))
    longer, shorter = np.maximum(prompts, decodes), np.minimum(prompts, decodes)
    return longer + ADDED_SHARE * np.maximum(shorter - SHARED_SECONDS * launches, 0.0)


def join(prompts: Estimate, decodes: Estimate, padded: Any = 0.0) -> Estimate:
    """The estimate of both halves in one launch."""
    longer = prompts if float(prompts.seconds) > float(decodes.seconds) else decodes
    return Estimate(
        float(fuse_prefill_decode(prompts.seconds, decodes.seconds, padded=padded)),
        float(fuse_prefill_decode(prompts.low, decodes.low, padded=padded)),
        float(fuse_prefill_decode(prompts.high, decodes.high, padded=padded)), prompts.source, longer.bound,
    )  # fmt: skip


HIDDEN_SECONDS = 8e-6
"""What others hide of such a kernel: about one product of few rows. With it published modules of DeepSeek-V4 that
choose entries come out of their kernels within 5 % on an H200, for one sequence and 64 or 8 heads; one after the other,
these kernels take 39 % and 46 % longer than the modules."""


def exposed_seconds(call: Call, each: Quantity) -> Quantity:
    """Seconds that all launches of a kernel add to a step, given the seconds of one."""
    if call.beside is not False:
        each = np.maximum(np.asarray(each) - HIDDEN_SECONDS * np.asarray(call.beside), 0.0)
    if call.saved:
        least_left = 0.5  # No launch saves more than the rest of a kernel
        each = np.maximum(np.asarray(each) - call.saved, least_left * np.asarray(each))
    return call.count * call.slower * each
