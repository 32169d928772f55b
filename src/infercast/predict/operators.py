"""Plain PyTorch operators on one GPU: seconds of each pipe, weighted by what each kernel reached, times a residual.

A kernel's time is its launches and the soft maximum of its pipes, each at a share of its rate that was fitted for the
kernel and format; a forest of the operator's family corrects it. Both were learned on an H200 (`operators.npz`) from
calls in a CUDA graph, one after the other, so that small operands are in L2. Other GPUs have the same shares of their
own rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, exp, hypot, log2
from typing import Any, NamedTuple

from infercast.bundled import DATA
from infercast.errors import InputError, UnknownNameError
from infercast.hardware import Gpu
from infercast.hardware.load import is_modelled
from infercast.ops import Op
from infercast.ops.op import bytes_of
from infercast.ops.tensor import SDPA_KERNELS, Conv2d, Lstm, Product, Sdpa, TensorOp, kind_named
from infercast.predict.estimate import Estimate
from infercast.predict.fitted import Artifact, Inputs, load_artifact
from infercast.predict.roofline import CLOCK_SHARE, REFERENCE_CLOCK

GPU, LIBRARY = "h200-sxm", "pytorch"
"""What the artefact was learned on, and whose kernels."""
CACHE, CLIFF = 0.75, 4.0  # Share of L2 that holds operands of calls in a row, and how sharply the hits end there
THREADS, WARP = 2048, 32  # Threads that a multiprocessor holds, and those of a warp


class Work(NamedTuple):
    """What one call asks of the pipes of a GPU."""

    kernel: str  # What its weights are of, the format aside
    family: str  # What its forest is of
    pipes: dict[str, float]  # Seconds at full rate; the first, its launches, come on top of the others
    features: list[float]


def _launch(gpu: Gpu, count: float = 1.0) -> float:
    return 1e-6 * count * (1.0 - CLOCK_SHARE + CLOCK_SHARE * REFERENCE_CLOCK / gpu.boost_clock)


def _from_dram(moved: float, gpu: Gpu) -> float:
    """Seconds that memory takes for what L2 does not hold."""
    filled: float = (moved / (CACHE * gpu.l2_bytes)) ** CLIFF
    return moved * filled / (1.0 + filled) / gpu.dram_bandwidth


def _filled(rounds: float) -> float:
    """Share of whole rounds that has work."""
    return rounds / ceil(rounds)


def _power_below(size: float) -> int:
    return 1 << (int(size).bit_length() - 1)


def _power_above(size: float) -> int:
    return 1 << (int(size) - 1).bit_length()


class Blocks(NamedTuple):
    """How a kernel cuts rows: values that a thread takes one after the other, thread blocks and threads of each."""

    steps: float
    blocks: float
    threads: int
    is_split: bool = False  # Whether several blocks share a row and a last one adds up


def _reduction(rows: int, cols: int, gpu: Gpu, *, along_rows: bool = False) -> Blocks:
    """PyTorch's reductions: a warp a row while that leaves a thread few values, else whole blocks, else several."""
    across, down = (min(_power_below(size), REDUCING) for size in (cols, rows))
    height = min(down, REDUCING // min(across, WARP))
    width = min(across, REDUCING // height)
    if along_rows:
        steps, grid = rows / height, ceil(cols / width)
    elif max(cols / width / height / 16, cols / width / 256) < 1.0:
        return Blocks(cols / width, ceil(rows / height), width * height)
    else:
        steps, grid = cols / width / height, rows
    room = gpu.sms * THREADS // REDUCING
    parts = max(min(ceil(room / grid), ceil(steps / 16)), ceil(steps / 256)) if steps >= 16 and grid <= room else 1
    return Blocks(steps / parts, grid * parts, width * height, parts > 1)


def _blocks(kind: str, rows: int, cols: int, gpu: Gpu) -> Blocks:
    if kind in ("sum_last", "max_last", "argmax", "avg_pool"):
        return _reduction(rows, cols, gpu)
    if kind == "mean_first":
        return _reduction(rows, cols, gpu, along_rows=True)
    if kind == "cumsum":
        if rows == 1:
            return Blocks(cols / 512 / gpu.sms, min(gpu.sms, ceil(cols / 2048)), 512, True)
        across = int((9 + log2(_power_above(cols)) - log2(_power_above(rows))) / 2)
        width = 1 << min(max(4, across), 9)
        return Blocks(ceil(cols / (2 * width)) * (1.0 + 0.5 * log2(width)), ceil(rows * width / 512), 512)
    if kind == "softmax" and cols <= WARPS_ROW:
        return Blocks(_power_above(cols) / WARP, ceil(rows / (8 if cols <= 128 else 4)), 128)
    threads = {"softmax": 1024, "layer_norm": 512, "rms_norm": 512, "group_norm": 512}.get(kind, 256)
    return Blocks(ceil(cols / threads), rows, min(threads, 512))


REDUCING = 512  # Threads of a block that reduces
WARPS_ROW = 2048  # Values of a row up to which one warp does a softmax
SORTED = ((128, "small"), (4096, "block"))
"""Values of a row up to which a warp, and a block, sort it."""

TENSOR_PIPES = ("launch", "dram", "l2", "fma", "blocks", "steps", "rounds", "split", "columns")
TENSOR_FEATURES = (
    *(f"{name}_share" for name in TENSOR_PIPES),
    "log_microseconds", "kind", "value_bytes", "log_rows", "log_cols", "log_bytes", "log_bytes_over_l2", "log_batch",
    "fill", "odd_cols", "log_steps", "log_blocks", "is_split", "row_bytes", "log_count", "read_share",
)  # fmt: skip


def _tensor_work(op: TensorOp, gpu: Gpu) -> Work:
    kind, value = kind_named(op.kind), bytes_of(op.dtype)
    rows, cols, moved = int(op.batch * op.rows), int(op.cols), float(op.bytes_read + op.bytes_written)
    name, found, clock = kind.name, _blocks(kind.name, rows, cols, gpu), gpu.boost_clock
    if name == "sort":
        name += "/" + next((regime for most, regime in SORTED if cols <= most), "segmented")
    if name == "softmax":
        name += "/warp" if cols <= WARPS_ROW else "/block"
    rounds = found.blocks / (gpu.sms * THREADS / found.threads)
    pipes = {
        "launch": _launch(gpu, kind.launches),
        "dram": _from_dram(moved, gpu),
        "l2": moved / gpu.l2_bandwidth,
        "fma": float(op.elements) / (gpu.sms * 128 * clock),
        "blocks": found.blocks * found.threads / 5.0 / gpu.sms / clock,
        "steps": found.steps * 20 / clock,
        "rounds": found.steps * 20 * ceil(rounds) / clock,
        "split": 1e-6 * found.is_split,
        "columns": cols / 16 / clock,
    }
    features = [
        GROUP_KINDS.index(kind.name), value, log2(rows), log2(cols), log2(moved), log2(moved / gpu.l2_bytes),
        log2(op.batch), _filled(rows / gpu.sms), cols % 64 / 64, log2(found.steps), log2(found.blocks),
        float(found.is_split), cols * value, log2(max(op.count, 1)), float(op.bytes_read) / moved,
    ]  # fmt: skip
    return Work(name, kind.group, pipes, features)


GROUP_KINDS = (
    "add", "add_row", "argmax", "avg_pool", "batch_norm", "cast", "cat", "channels_last", "clone", "cumsum",
    "embedding", "gelu", "group_norm", "layer_norm", "max_last", "max_pool", "mean_first", "mul", "pow", "relu",
    "rms_norm", "rsqrt", "scale", "silu", "softmax", "sort", "sum_last", "tanh", "topk", "transpose", "upsample",
    "where",
)  # fmt: skip
FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (192, 192, 1.0), (128, 128, 0.9), (128, 64, 0.75), (64, 128, 0.75),
    (64, 256, 0.8), (64, 64, 0.55), (64, 32, 0.35), (32, 64, 0.35), (64, 16, 0.2), (16, 64, 0.2), (64, 8, 0.1),
    (8, 64, 0.1),
)  # fmt: skip
"""Rows and columns of the tiles of 16-bit products, by the names of cuBLAS's kernels, and the share of the tensor
cores' rate that each reaches at most; ..."""
TF32_TILES = (
    (128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.95), (64, 256, 0.8), (64, 128, 0.7), (128, 64, 0.6), (64, 64, 0.4),
)  # fmt: skip
PLAIN_TILES = (
    (128, 128, 1.0), (256, 64, 0.85), (64, 256, 0.85), (128, 64, 0.87), (64, 128, 0.83), (64, 64, 0.78),
    (128, 32, 0.6), (32, 128, 0.6), (64, 32, 0.5), (32, 64, 0.5), (32, 32, 0.38),
)  # fmt: skip
"""... of those in tf32, and in plain fp32."""
TILES_OF = {"fp32": PLAIN_TILES, "tf32": TF32_TILES}


class Tiling(NamedTuple):
    seconds: float
    rows: int
    cols: int
    split: int  # Blocks that share the inner dimension of a tile
    tiles: float


def _tiling(m: float, n: float, k: float, batch: float, dtype: str, gpu: Gpu) -> Tiling:
    """The tile and split of the inner dimension that take least."""
    peak, best = gpu.dense_flops(dtype) / gpu.sms, None
    for rows, cols, share in TILES_OF.get(dtype, TILES):
        tiles = ceil(m / rows) * ceil(n / cols) * batch
        for split in (1, 2, 4, 8, 16):
            if split > 1 and k / split < 128:
                break
            each = 2.0 * rows * cols * ceil(k / split / 32) * 32 / (peak * share)
            seconds = ceil(tiles * split / gpu.sms) * each + k / split * 2 / gpu.boost_clock
            if split > 1:
                seconds += 1e-6 + 8.0 * split * m * n * batch / gpu.l2_bandwidth
            if best is None or seconds < best.seconds:
                best = Tiling(seconds, rows, cols, split, tiles)
    assert best is not None
    return best


PRODUCT_PIPES = ("launch", "dram", "l2", "tiles", "inner", "tensor", "split", "operands")
_PRODUCT = (
    "log_m", "log_n", "log_k", "log_batch", "log_bytes_over_l2", "log_flops", "log_tiles", "log_split", "tile_rows",
    "tile_cols", "fill", "odd_n", "odd_k", "odd_m", "k_of_16", "n_of_16", "has_bias", "intensity", "fill_128",
    "fill_256",
)  # fmt: skip
PRODUCT_FEATURES = (*(f"{name}_share" for name in PRODUCT_PIPES), "log_microseconds", "format", *_PRODUCT)


def _product_terms(
    m: float, n: float, k: float, batch: float, op: Any, gpu: Gpu, *, has_bias: bool = False
) -> tuple[dict[str, float], list[float]]:
    """Pipes and features of a product of this size, or of a convolution as one."""
    found, value, moved = _tiling(m, n, k, batch, op.dtype, gpu), bytes_of(op.dtype), op.bytes_read + op.bytes_written
    through_l2 = found.tiles * k * (found.rows + found.cols) * value + m * n * batch * value
    flops = 2.0 * m * n * k * batch
    pipes = {
        "launch": _launch(gpu),
        "dram": _from_dram(moved, gpu),
        "l2": through_l2 / gpu.l2_bandwidth,
        "tiles": found.seconds,
        "inner": k / found.split * 3 / gpu.boost_clock,
        "tensor": flops / gpu.dense_flops(op.dtype),
        "split": 1e-6 * (found.split > 1),
        "operands": moved / gpu.l2_bandwidth,
    }
    rounds = [ceil(m / 128) * ceil(n / cols) * batch / gpu.sms for cols in (128, 256)]
    features = [
        log2(m), log2(n), log2(k), log2(batch), log2(moved / gpu.l2_bytes), log2(flops),
        log2(found.tiles / gpu.sms), log2(found.split), found.rows, found.cols,
        _filled(found.tiles * found.split / gpu.sms), n % 64 / 64, k % 64 / 64, m % 8, k % 16, n % 16,
        float(has_bias), log2(flops / moved), *map(_filled, rounds),
    ]  # fmt: skip
    return pipes, features


def _product_work(op: Product, gpu: Gpu) -> Work:
    name = "linear" if op.batch == 1 else "bmm"
    pipes, features = _product_terms(op.m, op.n, op.k, op.batch, op, gpu, has_bias=op.bias)
    if op.m == 1 and op.batch == 1:
        name = "linear/vector"
    return Work(name, name.partition("/")[0], pipes, [FORMATS.index(op.dtype), *features])


CONV_PIPES = (*PRODUCT_PIPES, "layout", "fma")
CONV_FEATURES = (
    *(f"{name}_share" for name in CONV_PIPES), "log_microseconds", "format", *_PRODUCT,
    "log_groups", "log_channels", "log_kernel", "log_stride", "channels_last", "log_height", "log_images",
)  # fmt: skip


def _conv_work(op: Conv2d, gpu: Gpu) -> Work:
    """A product of all windows of the images with the kernels, and what it takes to bring images into its layout."""
    taps = op.kernel_height * op.kernel_width
    pipes, features = _product_terms(op.pixels, op.out_channels / op.groups, op.window, op.groups, op, gpu)
    images = float(op.bytes_read + op.bytes_written)
    # Plain fp32 wants channels first, tensor cores want them last: images and kernels are brought into that order.
    is_moved = op.channels_last == (op.dtype == "fp32") and op.groups == 1
    pipes["launch"] *= 4.0 if is_moved and taps > 1 else 3.0 if is_moved else 1.0
    pipes["layout"] = images / gpu.l2_bandwidth + _from_dram(images, gpu) if is_moved else 0.0
    pipes["fma"] = float(op.flops) / gpu.fma_flops if op.groups > 1 else 0.0
    wide = op.width / op.out_width if op.out_width else 1.0
    features += [
        log2(op.groups), log2(op.channels), log2(taps), log2(wide), float(op.channels_last), log2(op.height),
        log2(op.batch),
    ]  # fmt: skip
    kind = "depthwise" if op.groups == op.channels > 1 else "pointwise" if taps == 1 else "plain"
    kind = "stem" if op.channels // op.groups <= 4 and kind == "plain" else kind
    return Work(f"conv2d/{kind}", "conv2d", pipes, [FORMATS.index(op.dtype), *features])


LSTM_PIPES = ("launch", "steps", "dram", "weights", "tensor", "tiles")
LSTM_FEATURES = (
    *(f"{name}_share" for name in LSTM_PIPES), "log_microseconds", "format",
    "log_batch", "log_steps", "log_hidden", "layers", "log_weight_bytes_over_l2", "gates",
)  # fmt: skip


def _lstm_work(op: Lstm, gpu: Gpu) -> Work:
    """Steps one after the other, layers overlapping at most, each with a product of all gates."""
    weights = float(op.weights) * bytes_of(op.dtype)
    launches = float(op.steps * op.layers * op.directions)
    each = _tiling(op.batch, op.gates * op.hidden, op.hidden, 1, op.dtype, gpu)
    moved = float(op.bytes_read + op.bytes_written)
    pipes = {
        "launch": _launch(gpu),
        "steps": 1e-6 * launches,
        "dram": _from_dram(moved, gpu),
        "weights": float(op.steps) * weights / gpu.l2_bandwidth,
        "tensor": float(op.flops) / gpu.dense_flops(op.dtype),
        "tiles": launches * each.seconds,
    }
    features = [log2(op.batch), log2(op.steps), log2(op.hidden), op.layers, log2(weights / gpu.l2_bytes), op.gates]
    return Work("lstm", "lstm", pipes, [FORMATS.index(op.dtype), *features])


class AttentionTiles(NamedTuple):
    queries: int
    keys: int
    slots: int  # Thread blocks that a multiprocessor runs at once
    split: int  # Blocks that share the keys of a tile of queries


def _attention_tiles(op: Sdpa, queries: int, heads: int, width: int, gpu: Gpu) -> AttentionTiles:
    """What the kernels' sources say of their tiles."""
    keys = int(op.keys)
    if op.kernel == "flash_attention":
        span = 256 if width <= 64 else 128 if width <= 128 else 64
        split = _flash_splits(int(op.batch) * heads * ceil(queries / 64), 2 * gpu.sms, ceil(keys / span))
        if split > 1:
            return AttentionTiles(64, span, 2, split)
        rows, cols = (128, 128) if width <= 64 else (128, 64) if width <= 128 else (64, 64)
        return AttentionTiles(rows, cols, 2, 1)
    if op.kernel == "efficient_attention":
        return AttentionTiles(64, 64, 3, 1) if width <= 64 else AttentionTiles(64, 128, 2, 1)
    if op.kernel == "triton":
        return AttentionTiles(128, 64, 1, 1) if op.queries > 1 else AttentionTiles(16, 64, 4, min(8, ceil(keys / 64)))
    return AttentionTiles(128, 128, 1 if op.kernel == "cudnn_attention" else 2, 1)


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


SDPA_PIPES = ("launch", "dram", "l2", "tensor", "special", "steps", "split", "rounds", "block")
SDPA_FEATURES = (
    *(f"{name}_share" for name in SDPA_PIPES), "log_microseconds", "format",
    "log_heads", "log_queries", "log_keys", "head_dim", "is_causal", "log_rounds", "log_split", "log_steps", "fill",
    "log_bytes_over_l2", "log_flops", "log_group", "fill_queries", "odd_keys", "tile_queries", "tile_keys",
    "log_blocks", "fill_blocks",
)  # fmt: skip


def _sdpa_work(op: Sdpa, gpu: Gpu) -> Work:
    if op.kernel not in SDPA_KERNELS:
        raise UnknownNameError("attention kernel", op.kernel, SDPA_KERNELS)
    value, clock = bytes_of(op.dtype), gpu.boost_clock
    queries, heads, keys = int(op.queries), int(op.heads), int(op.keys)
    group = heads // int(op.kv_heads or heads)
    if queries == 1 and group > 1 and op.kernel in ("flash_attention", "triton"):  # heads of a group share a tile
        queries, heads = group, heads // group
    multiple = {"cudnn_attention": 16, "triton": 1}.get(op.kernel, 32)
    width = ceil(op.head_dim / multiple) * multiple
    tile = _attention_tiles(op, queries, heads, width, gpu)
    rows, spans = ceil(queries / tile.queries), ceil(keys / tile.keys)
    blocks, steps, share = int(op.batch) * heads * rows, ceil(spans / tile.split), 1.0
    if op.causal and queries > 1:  # the mean over the tiles of a sequence, of which the first 64 are counted
        few = min(rows, 64)
        seen = sum(min(spans, ceil((keys - queries + (row + 1) * tile.queries) / tile.keys)) for row in range(few))
        share = seen / few / spans if rows <= few else 1.0 - (rows - 1) / 2 / rows * queries / keys
    total, rounds = blocks * tile.split * steps * share, blocks * tile.split / (gpu.sms * tile.slots)
    peak = gpu.dense_flops("tf32" if op.dtype == "fp32" else op.dtype) / gpu.sms
    step = 4.0 * tile.queries * tile.keys * width / peak
    longest = ceil(rounds) * steps * share * tile.slots if rounds >= 1 else steps * share * ceil(rounds * tile.slots)
    moved = float(op.bytes_read + op.bytes_written)
    pipes = {
        "launch": _launch(gpu),
        "dram": _from_dram(moved, gpu),
        "l2": total * tile.keys * 2 * width * value / gpu.l2_bandwidth,
        "tensor": total / gpu.sms * step,
        "special": tile.queries * tile.keys * total / gpu.special_rate,
        "steps": steps * 200 / clock,
        "split": 1e-6 * (tile.split > 1),
        "rounds": max(total / gpu.sms, longest) * step,
        "block": steps * step,
    }
    if op.kernel == "math":  # scores go through memory, some six times
        scores = 6.0 * value * op.batch * op.heads * op.queries * op.keys
        pipes |= {"split": _from_dram(scores, gpu), "l2": scores / gpu.l2_bandwidth, "steps": keys / clock}
    features = [
        log2(op.batch * op.heads), log2(op.queries), log2(keys), op.head_dim, float(op.causal), log2(rounds),
        log2(tile.split), log2(steps), _filled(rounds), log2(moved / gpu.l2_bytes), log2(op.flops), log2(group),
        _filled(queries / tile.queries), keys % tile.keys / tile.keys, tile.queries, tile.keys, log2(blocks),
        _filled(blocks / gpu.sms),
    ]  # fmt: skip
    return Work(op.kernel, op.kernel, pipes, [FORMATS.index(op.dtype), *features])


WORK: dict[type, Callable[[Any, Gpu], Work]] = {
    TensorOp: _tensor_work,
    Product: _product_work,
    Conv2d: _conv_work,
    Lstm: _lstm_work,
    Sdpa: _sdpa_work,
}
FEATURES = {
    "tensor": TENSOR_FEATURES,
    "product": PRODUCT_FEATURES,
    "conv2d": CONV_FEATURES,
    "lstm": LSTM_FEATURES,
    "sdpa": SDPA_FEATURES,
}
_SETS = {"linear": "product", "bmm": "product", "conv2d": "conv2d", "lstm": "lstm"} | dict.fromkeys(
    SDPA_KERNELS, "sdpa"
)
INPUTS = Inputs(
    "operators",
    FEATURES,
    lambda family, *_: _SETS.get(family, "tensor"),
    ("predict/operators.py", "ops/tensor.py", "data/operators.toml"),
)


def work_of(op: Op, gpu: Gpu) -> Work:
    try:
        make = WORK[type(op)]
    except KeyError:
        raise InputError(f"{type(op).__name__} is no plain operator of PyTorch") from None
    return make(op, gpu)


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


SIBLING, UNSEEN, OTHERS, ALIKE = 0.1, 0.25, 0.4, 0.15
"""What another GPU of the same architecture, of another one, and of another vendor may miss by more, and what a kind
that was not measured may, as logarithms: for want of rows on them, what the project's other kernels showed."""


@lru_cache
def artifact() -> Artifact:
    return load_artifact(DATA / "fitted/operators.npz", INPUTS)


@lru_cache
def known() -> dict[str, Weights]:
    """By kernel and format."""
    return {name: Weights(**values) for name, values in artifact().header["kernels"].items()}


def weights_of(kernel: str, dtype: str) -> tuple[Weights, bool]:
    """A kernel's own, or in the nearest format, and whether they are its own."""
    near = {"fp16": "bf16", "tf32": "fp32", "fp8": "bf16"}.get(dtype, dtype)
    for name in (f"{kernel}/{dtype}", f"{kernel}/{near}", *(f"{kernel}/{other}" for other in FORMATS)):
        if name in known():
            is_own = name == f"{kernel}/{dtype}" or (dtype, near) in (("tf32", "fp32"), ("fp16", "bf16"))
            return known()[name], is_own
    raise InputError(f"no {kernel} was measured in any format")


def estimate_op(op: Op, gpu: Gpu) -> Estimate:
    """One launch of a plain operator among others like it, as in a CUDA graph, with operands in L2 where they fit."""
    work = work_of(op, gpu)
    weights, is_own = weights_of(work.kernel, op.compute_dtype)
    seconds, parts = weights.seconds(work)
    found = artifact().find(work.family, GPU, LIBRARY, "")
    if found is not None:
        seconds *= exp(found[1].predict_one(features_of(work, seconds, parts)))
    is_alike = isinstance(op, TensorOp) and kind_named(op.kind).name != op.kind
    source, wider = _basis(gpu, is_own=is_own and not is_alike)
    low, high = exp(-hypot(weights.low, wider)), exp(hypot(weights.high, wider))
    return Estimate(seconds, seconds * low, seconds * high, source, max(parts, key=parts.__getitem__))


def _basis(gpu: Gpu, *, is_own: bool) -> tuple[str, float]:
    """The source of an estimate, and how much wider its interval is than on the GPU of the measurements."""
    alike = 0.0 if is_own else ALIKE
    if gpu.name == GPU:
        return ("measured", 0.0) if is_own else ("unseen", alike)
    if gpu.kernels == "hopper":
        return ("sibling" if is_own else "unseen"), hypot(SIBLING, alike)
    return ("unseen", hypot(UNSEEN, alike)) if is_modelled(gpu) else ("typical", hypot(OTHERS, alike))
