"""Plain PyTorch operators on one GPU: seconds of each pipe, weighted by what each kernel reached, times a residual.

A kernel's time is its launches and the soft maximum of its pipes, each at a share of its rate that was fitted for the
kernel and format; a forest of the operator's family corrects it. Both were learned on an H200 (`operators.npz`) from
calls in a CUDA graph, one after the other, so that small operands are in L2. Other GPUs have the same shares of their
own rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, exp, hypot, log, log2
from typing import Any

from infercast.bundled import DATA, read_data
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.load import is_modelled
from infercast.lazy_classes import NamedTuple, replace
from infercast.ops import Gemm, Op
from infercast.ops.op import bytes_of
from infercast.ops.tensor import SDPA_KERNELS, Conv2d, Lstm, Product, Sdpa, TensorOp, kind_named, kinds
from infercast.predict.estimate import SOURCES, Estimate
from infercast.predict.fitted import Artifact, Inputs, load_artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned, default_artifact
from infercast.predict.roofline import CLOCK_SHARE, REFERENCE_CLOCK

GPU, LIBRARY = "h200-sxm", "pytorch"  # What the artefact was learned on, and whose kernels
CACHE, CLIFF = 0.75, 4.0  # Share of L2 that holds operands of calls in a row, and how sharply the hits end there
THREADS, WARP = 2048, 32  # Threads that a multiprocessor holds, and those of a warp
REDUCING = 512  # Threads of a block that reduces
WARPS_ROW = 2048  # Values of a row up to which one warp does a softmax
SORTED = ((128, "/small"), (4096, "/block"))  # Values of a row up to which a warp, and a block, sort it
FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")


class Work(NamedTuple):
    kernel: str  # What its weights are of, the format aside
    family: str  # What its forest is of
    pipes: dict[str, float]  # Seconds at full rate; the first, its launches, come on top of the others
    features: list[float]


def _launch(gpu: Gpu, count: float = 1.0) -> float:
    return 1e-6 * count * (1.0 - CLOCK_SHARE + CLOCK_SHARE * REFERENCE_CLOCK / gpu.boost_clock)


def _from_dram(moved: float, gpu: Gpu) -> float:
    filled: float = (moved / (CACHE * gpu.l2_bytes)) ** CLIFF
    return moved * filled / (1.0 + filled) / gpu.dram_bandwidth


def _filled(rounds: float) -> float:
    """Share of whole rounds that has work."""
    return rounds / ceil(rounds)


def _power_above(size: float) -> int:
    return 1 << (int(size) - 1).bit_length()


Blocks = tuple[float, float, int, bool]
"""Values that a thread takes one after the other, thread blocks, threads of each, and whether several share a row."""


def _reduction(rows: int, cols: int, gpu: Gpu, *, along_rows: bool = False) -> Blocks:
    """PyTorch's reductions: a warp a row while that leaves a thread few values, else whole blocks, else several."""
    across, down = (min(1 << (size.bit_length() - 1), REDUCING) for size in (cols, rows))
    height = min(down, REDUCING // min(across, WARP))
    width = min(across, REDUCING // height)
    if along_rows:
        steps, grid = rows / height, ceil(cols / width)
    elif max(cols / width / height / 16, cols / width / 256) < 1.0:
        return cols / width, ceil(rows / height), width * height, False
    else:
        steps, grid = cols / width / height, rows
    room = gpu.sms * THREADS // REDUCING
    parts = max(min(ceil(room / grid), ceil(steps / 16)), ceil(steps / 256)) if steps >= 16 and grid <= room else 1
    return steps / parts, grid * parts, width * height, parts > 1


def _blocks(kind: str, rows: int, cols: int, gpu: Gpu) -> Blocks:
    if kind in ("sum_last", "max_last", "argmax", "avg_pool", "mean_first"):
        return _reduction(rows, cols, gpu, along_rows=kind == "mean_first")
    if kind == "cumsum" and rows == 1:
        return cols / 512 / gpu.sms, min(gpu.sms, ceil(cols / 2048)), 512, True
    if kind == "cumsum":
        width = 1 << min(max(4, int((9 + log2(_power_above(cols)) - log2(_power_above(rows))) / 2)), 9)
        return ceil(cols / (2 * width)) * (1.0 + 0.5 * log2(width)), ceil(rows * width / 512), 512, False
    if kind == "softmax" and cols <= WARPS_ROW:
        return _power_above(cols) / WARP, ceil(rows / (8 if cols <= 128 else 4)), 128, False
    threads = {"softmax": 1024, "layer_norm": 512, "rms_norm": 512, "group_norm": 512}.get(kind, 256)
    return ceil(cols / threads), rows, min(threads, 512), False


def _tensor_work(op: TensorOp, gpu: Gpu) -> Work:
    kind, value = kind_named(op.kind), bytes_of(op.dtype)
    rows, cols, moved, clock = op.batch * op.rows, op.cols, op.bytes_read + op.bytes_written, gpu.boost_clock
    steps, blocks, threads, is_split = _blocks(kind.name, rows, cols, gpu)
    regime = ("/warp" if cols <= WARPS_ROW else "/block") if kind.name == "softmax" else ""
    if kind.name == "sort":
        regime = next((each for most, each in SORTED if cols <= most), "/segmented")
    pipes = {
        "launch": _launch(gpu, kind.launches), "dram": _from_dram(moved, gpu), "l2": moved / gpu.l2_bandwidth,
        "fma": op.elements / (gpu.sms * 128 * clock), "blocks": blocks * threads / 5.0 / gpu.sms / clock,
        "steps": steps * 20 / clock, "rounds": steps * 20 * ceil(blocks / (gpu.sms * THREADS / threads)) / clock,
        "split": 1e-6 * is_split, "columns": cols / 16 / clock,
    }  # fmt: skip
    features = [
        sorted({each.name for each in kinds().values()}).index(kind.name), value, log2(rows), log2(cols), log2(moved),
        log2(moved / gpu.l2_bytes), log2(op.batch), _filled(rows / gpu.sms), cols % 64 / 64, log2(steps), log2(blocks),
        float(is_split), cols * value, log2(max(op.count, 1)), op.bytes_read / moved,
    ]  # fmt: skip
    return Work(kind.name + regime, kind.group, pipes, features)


def _tiling(m: float, n: float, k: float, batch: int, dtype: str, gpu: Gpu) -> tuple[float, int, int, int, float]:
    """Seconds, rows, columns, parts of the inner dimension and number of the tiles that take least."""
    peak, known, found = gpu.dense_flops(dtype) / gpu.sms, read_data("operators.toml")["tiles"], []
    for rows, cols, share in known.get(dtype, known["others"]):
        tiles = ceil(m / rows) * ceil(n / cols) * batch
        for split in (each for each in (1, 2, 4, 8, 16) if each == 1 or k / each >= 128):
            each = 2.0 * rows * cols * ceil(k / split / 32) * 32 / (peak * share)
            added = 1e-6 + 8.0 * split * m * n * batch / gpu.l2_bandwidth if split > 1 else 0.0
            seconds = ceil(tiles * split / gpu.sms) * each + k / split * 2 / gpu.boost_clock + added
            found.append((seconds, rows, cols, split, tiles))
    return min(found, key=lambda each: each[0])


def _product(m: float, n: float, k: int, batch: int, op: Any, gpu: Gpu) -> tuple[dict[str, float], list[float]]:
    """Pipes and features of a product of this size, or of a convolution as one."""
    seconds, rows, cols, split, tiles = _tiling(m, n, k, batch, op.dtype, gpu)
    value, moved, flops = bytes_of(op.dtype), op.bytes_read + op.bytes_written, 2.0 * m * n * k * batch
    pipes = {
        "launch": _launch(gpu), "dram": _from_dram(moved, gpu),
        "l2": (tiles * k * (rows + cols) * value + m * n * batch * value) / gpu.l2_bandwidth, "tiles": seconds,
        "inner": k / split * 3 / gpu.boost_clock, "tensor": flops / gpu.dense_flops(op.dtype),
        "split": 1e-6 * (split > 1), "operands": moved / gpu.l2_bandwidth,
    }  # fmt: skip
    rounds = [ceil(m / 128) * ceil(n / cols) * batch / gpu.sms for cols in (128, 256)]
    features = [
        FORMATS.index(op.dtype), log2(m), log2(n), log2(k), log2(batch), log2(moved / gpu.l2_bytes), log2(flops),
        log2(tiles / gpu.sms), log2(split), rows, cols, _filled(tiles * split / gpu.sms), n % 64 / 64, k % 64 / 64,
        m % 8, k % 16, n % 16, float(getattr(op, "bias", False)), log2(flops / moved), *map(_filled, rounds),
    ]  # fmt: skip
    return pipes, features


NARROW = ((1, "vector"), (16, "narrow"), (64, "thin"))
"""Rows up to which cuBLAS runs kernels of their own, in fp32, where those with a bias differ too."""


def _product_work(op: Product, gpu: Gpu) -> Work:
    found = _product(op.m, op.n, op.k, op.batch, op, gpu)
    if op.batch > 1:
        return Work("bmm", "bmm", *found)
    if op.dtype != "fp32" or op.m == 1:
        return Work("linear/vector" if op.m == 1 else "linear/wide", "linear", *found)
    regime = next((each for most, each in NARROW if op.m <= most), "wide")
    return Work(f"linear/{regime}" + ("/bias" if op.bias else ""), "linear", *found)


def _conv_kind(op: Conv2d) -> tuple[str, int]:
    """How cuDNN does a convolution, and how many operands it brings into another order before or after. Plain fp32
    wants channels first, tensor cores want them last; a 1 x 1 kernel on every pixel is a product as it is.
    """
    is_strided = op.out_height * op.out_width < 0.6 * op.height * op.width
    last, is_wrong = "/last" if op.channels_last else "", op.channels_last == (op.dtype == "fp32")
    if op.groups == op.channels > 1:
        return f"depthwise{last}", 0
    if op.kernel_height * op.kernel_width == 1:
        is_moved = is_wrong and (is_strided or op.dtype == "fp32")
        return f"pointwise{last}" + ("/strided" if is_strided and not last else ""), 2 if is_moved else 0
    return f"stem{last}" if op.channels // op.groups <= 4 else f"plain{last}", 3 if is_wrong else 0


def _conv_work(op: Conv2d, gpu: Gpu) -> Work:
    """A product of all windows of the images with the kernels, and what it takes to bring images into its layout."""
    kind, moves = _conv_kind(op)
    pipes, features = _product(op.pixels, op.out_channels / op.groups, op.window, op.groups, op, gpu)
    images = 2.0 * (op.bytes_read + op.bytes_written)
    pipes["launch"] *= 1 + moves
    pipes["layout"] = images / gpu.l2_bandwidth + _from_dram(images, gpu) if moves else 0.0
    pipes["fma"] = op.flops / gpu.fma_flops if op.groups > 1 else 0.0
    sizes = (op.groups, op.channels, op.kernel_height * op.kernel_width, op.width / op.out_width)
    features += [*map(log2, sizes), float(op.channels_last), log2(op.height), log2(op.batch)]
    return Work(f"conv2d/{kind}", "conv2d", pipes, features)


def _lstm_work(op: Lstm, gpu: Gpu) -> Work:
    """Steps one after the other, layers overlapping at most, each with a product of all gates."""
    weights, steps = op.weights * bytes_of(op.dtype), op.steps * op.layers * op.directions
    pipes = {
        "launch": _launch(gpu), "steps": 1e-6 * steps, "dram": _from_dram(op.bytes_read + op.bytes_written, gpu),
        "weights": op.steps * weights / gpu.l2_bandwidth, "tensor": op.flops / gpu.dense_flops(op.dtype),
        "tiles": steps * _tiling(op.batch, op.gates * op.hidden, op.hidden, 1, op.dtype, gpu)[0],
    }  # fmt: skip
    sizes = [log2(op.batch), log2(op.steps), log2(op.hidden), op.layers, log2(weights / gpu.l2_bytes), op.gates]
    return Work("lstm", "lstm", pipes, [FORMATS.index(op.dtype), *sizes])


def _attention_tiles(op: Sdpa, queries: int, heads: int, width: int, gpu: Gpu) -> tuple[int, int, int, int]:
    """Queries and keys of a tile, tiles that a multiprocessor runs at once and parts of the keys, by the sources."""
    if op.kernel == "flash_attention":
        span = 256 if width <= 64 else 128 if width <= 128 else 64
        split = _flash_splits(op.batch * heads * ceil(queries / 64), 2 * gpu.sms, ceil(op.keys / span))
        if split > 1:
            return 64, span, 2, split
        return 128 if width <= 128 else 64, 128 if width <= 64 else 64, 2, 1
    if op.kernel == "efficient_attention":
        return (64, 64, 3, 1) if width <= 64 else (64, 128, 2, 1)
    if op.kernel == "triton":
        return (128, 64, 1, 1) if op.queries > 1 else (16, 64, 4, min(8, ceil(op.keys / 64)))
    return 128, 128, 1 if op.kernel == "cudnn_attention" else 2, 1


def _flash_splits(blocks: int, slots: int, spans: int) -> int:
    """Into how many parts FlashAttention 2 cuts the keys: the fewest that fill the chip nearly as well as any."""
    if blocks >= 0.8 * slots:
        return 1
    filled = {
        parts: _filled(blocks * parts / slots)
        for parts in range(1, min(128, slots, spans) + 1)
        if parts == 1 or ceil(spans / parts) != ceil(spans / (parts - 1))
    }
    return next(parts for parts, share in filled.items() if share >= 0.85 * max(filled.values()))


def _seen_share(rows: int, spans: int, tile: tuple[int, int], queries: int, keys: int) -> float:
    """Share of the spans of keys that causal tiles of queries see; of a sequence the first 64 tiles are counted."""
    if rows > 64:
        return 1.0 - (rows - 1) / 2 / rows * queries / keys
    return sum(min(spans, ceil((keys - queries + (row + 1) * tile[0]) / tile[1])) for row in range(rows)) / rows / spans


def _sdpa_work(op: Sdpa, gpu: Gpu) -> Work:
    if op.kernel not in SDPA_KERNELS:
        raise UnknownNameError("attention kernel", op.kernel, SDPA_KERNELS)
    value, queries, heads, keys, clock = bytes_of(op.dtype), op.queries, op.heads, op.keys, gpu.boost_clock
    group, multiple = heads // (op.kv_heads or heads), {"cudnn_attention": 16, "triton": 1}.get(op.kernel, 32)
    if queries == 1 and group > 1 and op.kernel in ("flash_attention", "triton"):  # heads of a group share a tile
        queries, heads = group, heads // group
    width = ceil(op.head_dim / multiple) * multiple
    tile, span, slots, split = _attention_tiles(op, queries, heads, width, gpu)
    rows, spans = ceil(queries / tile), ceil(keys / span)
    blocks, steps = op.batch * heads * rows, ceil(spans / split)
    share = _seen_share(rows, spans, (tile, span), queries, keys) if op.causal and queries > 1 else 1.0
    total, rounds = blocks * split * steps * share, blocks * split / (gpu.sms * slots)
    step = 4.0 * tile * span * width / (gpu.dense_flops("tf32" if op.dtype == "fp32" else op.dtype) / gpu.sms)
    longest = ceil(rounds) * steps * share * slots if rounds >= 1 else steps * share * ceil(rounds * slots)
    moved = op.bytes_read + op.bytes_written
    pipes = {
        "launch": _launch(gpu), "dram": _from_dram(moved, gpu),
        "l2": total * span * 2 * width * value / gpu.l2_bandwidth, "tensor": total / gpu.sms * step,
        "special": tile * span * total / gpu.special_rate, "steps": steps * 200 / clock, "split": 1e-6 * (split > 1),
        "rounds": max(total / gpu.sms, longest) * step, "block": steps * step,
    }  # fmt: skip
    if op.kernel == "math":  # scores go through memory, some six times
        scores = 6.0 * value * op.batch * op.heads * op.queries * op.keys
        pipes |= {"split": _from_dram(scores, gpu), "l2": scores / gpu.l2_bandwidth, "steps": keys / clock}
    features = [
        FORMATS.index(op.dtype), log2(op.batch * op.heads), log2(op.queries), log2(keys), op.head_dim,
        float(op.causal), log2(rounds), log2(split), log2(steps), _filled(rounds), log2(moved / gpu.l2_bytes),
        log2(op.flops), log2(group), _filled(queries / tile), keys % span / span, tile, span, log2(blocks),
        _filled(blocks / gpu.sms),
    ]  # fmt: skip
    return Work(op.kernel, op.kernel, pipes, features)


WORK: dict[type, Any] = {
    **{TensorOp: _tensor_work, Product: _product_work, Conv2d: _conv_work, Lstm: _lstm_work, Sdpa: _sdpa_work}
}
INPUTS = Inputs(
    "operators",
    {name: tuple(names) for name, names in read_data("operators.toml")["features"].items()},
    ("predict/operators.py", "ops/tensor.py", "data/operators.toml"),
)


def work_of(op: Op, gpu: Gpu) -> Work:
    if type(op) not in WORK:
        raise InputError(f"{type(op).__name__} is no plain operator of PyTorch")
    if op.compute_dtype not in FORMATS:
        raise UnknownNameError("format of a plain operator", op.compute_dtype, FORMATS)
    found: Work = WORK[type(op)](op, gpu)
    return found


class Weights(NamedTuple):
    """What a kernel was found to need of each pipe, and how sharply the slowest decides."""

    pipes: Sequence[float]
    power: float
    low: float = 0.0
    high: float = 0.0  # Logarithms of the 80 % interval's ends, on shapes that were hidden
    rows: int = 0
    error: float = 0.0  # Mean error on those shapes, as a share

    def seconds(self, work: Work) -> tuple[float, dict[str, float]]:
        """By physics alone, and each pipe's part."""
        parts = {name: value * weight for (name, value), weight in zip(work.pipes.items(), self.pipes, strict=True)}
        launch, *others = parts.values()
        return launch + sum(each**self.power for each in others) ** (1.0 / self.power), parts


def features_of(work: Work, seconds: float, parts: dict[str, float]) -> list[float]:
    return [*(part / seconds for part in parts.values()), log2(seconds * 1e6), *work.features]


@lru_cache
def artifact() -> Artifact:
    return load_artifact(DATA / "fitted/operators.npz", INPUTS)


@lru_cache
def known() -> dict[str, Weights]:
    """By kernel and format."""
    return {name: Weights(**values) for name, values in artifact().header["kernels"].items()}


NEAR = {"fp16": "bf16", "tf32": "fp32"}  # Formats that count as the same where a kernel was measured in one of them
SIBLING, UNSEEN, OTHERS, ALIKE = 0.1, 0.25, 0.4, 0.15
"""What another GPU of the same architecture, of another one, and of another vendor may miss by more, and what a kind
that was not measured may, as logarithms: for want of rows on them, what the project's other kernels showed."""


def estimate_op(op: Op, gpu: Gpu) -> Estimate:
    """One launch of a plain operator among others like it, as in a CUDA graph, with operands in L2 where they fit."""
    work, dtype = work_of(op, gpu), op.compute_dtype
    alike = None if gpu.name == GPU else _as_gemm(op)
    if alike is not None:
        return _carried_over(op, alike, gpu)
    named = [f"{work.kernel}/{each}" for each in (dtype, NEAR.get(dtype, dtype), *FORMATS)]
    place, name = next((place, name) for place, name in enumerate(named) if name in known())
    weights = known()[name]
    seconds, parts = weights.seconds(work)
    found = artifact().find(work.family, GPU, LIBRARY, "")
    if found is not None:
        seconds *= exp(found[1].predict_one(features_of(work, seconds, parts)))
    is_own = place < 2 and (not isinstance(op, TensorOp) or kind_named(op.kind).name == op.kind)
    source, wider = "typical", OTHERS
    if gpu.kernels == "hopper" or is_modelled(gpu):
        wider = 0.0 if gpu.name == GPU else SIBLING if gpu.kernels == "hopper" else UNSEEN
        source = {0.0: "measured", SIBLING: "sibling"}.get(wider, "unseen") if is_own else "unseen"
    wider = hypot(wider, 0.0 if is_own else ALIKE)
    low, high = exp(-hypot(weights.low, wider)), exp(hypot(weights.high, wider))
    bound = max(parts, key=parts.__getitem__)
    return _at_least(_least(op, gpu), Estimate(seconds, seconds * low, seconds * high, source, bound))


@lru_cache
def products() -> Learned:
    """Of engines, each by itself."""
    return Learned(default_artifact(), kernel_profile()).alone


def _as_gemm(op: Op) -> Gemm | None:
    """The product of an engine that a product or a convolution is like."""
    if isinstance(op, Product):
        return Gemm(op.m, op.n, op.k, batch=op.batch)
    if isinstance(op, Conv2d) and op.groups == 1:
        return Gemm(op.pixels, op.out_channels, op.window)
    return None


def _carried_over(op: Op, alike: Gemm, gpu: Gpu) -> Estimate:
    """From the GPU that operators were learned on, by how much longer than there products of engines take in 16 bits.
    These were measured on GPUs of five kinds. Other formats take as much longer still as their rates are lower.
    """
    model, home = products(), load_gpu(GPU)
    known_there, there, here = estimate_op(op, home), model.estimate(alike, home), model.estimate(alike, gpu)
    rates = [each.dense_flops(op.compute_dtype) / each.dense_flops("bf16") for each in (home, gpu)]
    seconds = float(known_there.seconds) * float(here.seconds) / float(there.seconds) * rates[0] / rates[1]
    is_alike = isinstance(op, Product) and rates[0] == rates[1]
    ends = []
    for sign, end in ((-1, "low"), (1, "high")):
        parts = (log(float(getattr(each, end)) / float(each.seconds)) for each in (known_there, here))
        ends.append(seconds * exp(sign * hypot(*parts, 0.0 if is_alike else ALIKE)))
    source = here.source if is_alike else max(here.source, "unseen", key=SOURCES.index)
    return _at_least(_least(op, gpu), Estimate(seconds, ends[0], ends[1], source, here.bound))


def _least(op: Op, gpu: Gpu) -> float:
    """Seconds of its operations, or of what L2 does not hold of its bytes, at full rate. fp32 convolutions may need
    fewer operations (Winograd's, Fourier's), and strided ones and tables not all bytes. CUTLASS's attention in fp32
    runs on tensor cores.
    """
    flops = 0.0 if isinstance(op, TensorOp) or (isinstance(op, Conv2d) and op.dtype == "fp32") else float(op.flops)
    is_read_once = isinstance(op, Product) or (isinstance(op, TensorOp) and op.kind != "embedding")
    moved = float(op.bytes_read + op.bytes_written) if is_read_once else 0.0
    rate = "tf32" if isinstance(op, Sdpa) and op.dtype == "fp32" else op.compute_dtype
    return max(flops / gpu.dense_flops(rate), (moved - gpu.l2_bytes) / gpu.dram_bandwidth)


def _at_least(least: float, found: Estimate) -> Estimate:
    low, seconds, high = (max(float(each), least) for each in (found.low, found.seconds, found.high))
    return replace(found, low=low, seconds=seconds, high=max(high, 1.05 * seconds))
