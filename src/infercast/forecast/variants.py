"""Models that do not exist, by the million: what a step would cost if one were wider, deeper or had other heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from infercast.engines.base import engine_named, put_on
from infercast.errors import InputError, UnknownNameError
from infercast.forecast.deploy import load_model
from infercast.forecast.kernels import decode_shape, prefill_shape
from infercast.forecast.slo import Array
from infercast.hardware import Gpu, load_gpu
from infercast.lazy_classes import dataclass, fields, replace
from infercast.models.layout import ParallelLayout
from infercast.models.lower import head_calls, token_calls
from infercast.models.mixers.mixer import SequenceBatch
from infercast.models.spec import ModelConfig, parameter_count, stage_weight_bytes
from infercast.ops import Attention, Call, MoE, Op
from infercast.predict import board_power as power
from infercast.predict.estimate import exposed_seconds
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.serve.step import StepShape
from infercast.shown import ResultMixin

NEEDED = ("layers", "hidden", "heads", "kv_heads", "inter")
NAMES = (*NEEDED, "head_dim", "vocabulary", "experts", "topk", "quantization")
DEFAULTS = {"head_dim": 128, "vocabulary": 128_256, "experts": 0, "topk": 2, "quantization": "bf16"}
RESULTS = ("seconds", "gpu_seconds", "parameters", "flops", "weight_bytes", "kv_bytes_per_token", "fits")
FRONTS = ("parameters", "flops")
MOST = 5_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Variants(ResultMixin):
    """One element per variant."""

    sizes: dict[str, Array]  # Numbers of layers, heads and so on, and the format
    seconds: Array  # Seconds of a step, as its GPU or the default engine's host takes longer
    gpu_seconds: Array  # GPU time of its kernels, in seconds
    parameters: Array  # Number of parameters of the model
    flops: Array  # FLOP of a step
    weight_bytes: Array  # Bytes of all weights
    kv_bytes_per_token: Array  # Bytes of keys and values of a token
    fits: Array  # Whether weights and the tokens of the step fit in one GPU
    front: str = FRONTS[0]  # What stands for quality at a given latency

    def _words(self) -> str:
        return f"{np.size(self.seconds):,} variants"

    def pareto(self, by: str = "") -> Array:
        """Places, in flat arrays, of variants that fit and have more of ``by``, or the ``front``, than all as fast."""
        seconds, worth = np.ravel(self.seconds), np.ravel(getattr(self, by or self.front)).astype(float)
        order = np.lexsort((-worth, seconds))
        order = order[np.ravel(self.fits)[order]]
        best = np.maximum.accumulate(np.r_[-1.0, worth[order]])
        return np.asarray(order[worth[order] > best[:-1]])

    def document(self) -> dict[str, Any]:
        front = {name: each.tolist() for name, each in self.columns(self.pareto()).items()}
        rows = [dict(zip(front, row, strict=True)) for row in zip(*front.values(), strict=True)]
        return {"variants": self.seconds.size, "fitting": int(self.fits.sum()), "by": self.front, "front": rows}

    def columns(self, which: Any = ...) -> dict[str, Array]:
        """Sizes and results by name as flat arrays, for tables of search frameworks; of all variants, or of some."""
        results = {name: getattr(self, name) for name in RESULTS}
        return {name: np.ravel(each)[which] for name, each in (self.sizes | results).items()}


def variant_grid(axes: dict[str, Sequence[Any]], samples: int | None = None, seed: int = 0) -> dict[str, Array]:
    """All combinations of sizes that make a model, or a number drawn at random from them."""
    values = {name: np.array(axes.get(name, [DEFAULTS.get(name)])) for name in NAMES}
    many = [len(each) for each in values.values()]
    number = int(np.prod(many, dtype=float))
    if number > MOST and samples is None:
        raise InputError(f"{number:,} combinations are above {MOST:,}; take fewer values, or draw some with samples")
    rows = np.arange(number) if samples is None else np.random.default_rng(seed).integers(0, number, samples)
    places = np.unravel_index(rows, many)
    found = {name: each[place] for (name, each), place in zip(values.items(), places, strict=True)}
    kept = is_model(found)
    if not kept.any():
        raise InputError("no combination makes a model: heads must be a multiple of kv_heads, topk at most experts")
    return {name: each[kept] for name, each in found.items()}


def is_model(sizes: dict[str, Array]) -> Array:
    fits = (sizes["experts"] == 0) | (sizes["topk"] <= sizes["experts"])
    return np.asarray((sizes["heads"] % sizes["kv_heads"] == 0) & fits)


def estimate_variants(
    gpu: str | Path | Gpu, *, batch: int = 1, context: int = 1024, prompt: int | None = None, front: str = FRONTS[0],
    predictor: str | Predictor = "learned", **sizes: Any,
) -> Variants:  # fmt: skip
    """A step of models with ``layers``, ``hidden``, ``heads``, ``kv_heads``, ``inter``: numbers or arrays. Models are
    like Llama's: grouped attention, a gated feed-forward of ``inter`` values, a head of its own; with ``experts``, like
    Mixtral's, ``topk`` of them of ``inter`` values each. ``head_dim``, ``vocabulary`` and ``quantization`` (bf16, fp8,
    ...) may be said, too. The step decodes ``batch`` sequences after ``context`` tokens, or computes a ``prompt`` of
    that many. Equal kernels are estimated once, so a million cost little.
    """
    if front not in FRONTS:
        raise UnknownNameError("measure of a front", front, FRONTS)
    missing = [name for name in NEEDED if name not in sizes]
    unknown = [name for name in sizes if name not in NAMES]
    if missing or unknown:
        wrong = f"needs {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
        raise InputError(f"a variant {wrong}; it takes {', '.join(NAMES)}")
    columns = _columns({**DEFAULTS, **sizes})
    if not is_model(columns).all():
        raise InputError("heads must be a multiple of kv_heads, and topk at most experts, in every variant")
    device = gpu if isinstance(gpu, Gpu) else load_gpu(gpu)
    chosen = make_predictor(predictor) if isinstance(predictor, str) else predictor
    shape = decode_shape(batch, context) if prompt is None else prefill_shape(prompt)
    flat = {name: each.ravel() for name, each in columns.items()}
    found = np.zeros((len(RESULTS), columns["layers"].size))
    like = {False: "llama-3.1-8b", True: "mixtral-8x7b"}  # Dense and with experts: everything but the sizes is theirs
    for name, routed in product(np.unique(flat["quantization"]).tolist(), like):
        which = np.flatnonzero((flat["quantization"] == name) & ((flat["experts"] > 0) == routed))
        if which.size:
            group = {key: each[which] for key, each in flat.items()}
            found[:, which] = _estimate_group(device, chosen, shape, like[routed], name, group)
    results = {name: each.reshape(columns["layers"].shape) for name, each in zip(RESULTS, found, strict=True)}
    return Variants(columns, **results | {"fits": results["fits"] > 0}, front=front)


def _columns(sizes: dict[str, Any]) -> dict[str, Array]:
    given: dict[str, Array] = {}
    for name in NAMES:
        try:
            given[name] = each = np.asarray(sizes[name])
        except ValueError:
            raise InputError(f"{name} must be a number or an array, not lists of unequal length") from None
        least = 0 if name == "experts" else 1
        if name != NAMES[-1] and not (each.size and np.issubdtype(each.dtype, np.integer) and each.min() >= least):
            raise InputError(f"{name} must be whole numbers of at least {least}, not {str(sizes[name])[:80]}")
    try:
        return dict(zip(NAMES, np.broadcast_arrays(*given.values()), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {each.shape}" for name, each in given.items() if each.ndim)
        raise InputError(f"sizes must be numbers or arrays of one shape; these do not match: {shapes}") from None


def _estimate_group(
    gpu: Gpu, predictor: Predictor, shape: StepShape, like: str, quantization: str, sizes: dict[str, Array]
) -> Array:
    engine, layout = engine_named(), ParallelLayout()
    known = load_model(like, engine=engine, quantization=None if quantization == "bf16" else quantization)
    model, settings = put_on(engine, known, gpu, engine.settings(), layout)
    names = [name for name in NAMES[1:-1] if model.has_experts or name not in ("experts", "topk")]
    lows = [sizes[name].min() for name in names]
    steps = [max(1, np.gcd.reduce(sizes[name] - low)) for name, low in zip(names, lows, strict=True)]
    places = [(sizes[name] - low) // step for name, low, step in zip(names, lows, steps, strict=True)]
    spans = [int(place.max()) + 1 for place in places]
    if np.prod(spans, dtype=float) > 2.0**62:
        raise InputError("sizes differ too much to tell all variants apart; take fewer values of each")
    codes, where = np.unique(np.ravel_multi_index(places, spans), return_inverse=True)
    found = zip(names, lows, steps, np.unravel_index(codes, spans), strict=True)
    distinct = {name: low + step * place for name, low, step, place in found}
    launch, padded = engine.graphs(settings).launch(shape.num_tokens, shape.is_decode)
    layers = sizes["layers"]

    def summed(parts: Sequence[tuple[Array, Array]]) -> Array:
        """Of (once, in each layer), over all variants."""
        once, each = (sum((part[place] for part in parts), np.zeros(len(codes))) for place in (0, 1))
        return np.asarray(once[where] + layers * each[where])

    one, two = (_calls(_sized(model, distinct, count), layout, shape, padded) for count in (1, 2))
    work: dict[tuple[bool, ...], list[tuple[Array, Array]]] = {key: [] for key in product((False, True), repeat=2)}
    operations, flops = [], []
    for (call, by_tokens), (twice, _) in zip(one, two, strict=True):
        in_layer = twice.count - call.count
        seconds = np.ravel(exposed_seconds(replace(call, count=1), _seconds(predictor, call.op, gpu)))
        slows = call.op.family in power.THROTTLED
        work[slows, by_tokens or not shape.is_decode].append(((call.count - in_layer) * seconds, in_layer * seconds))
        done = np.broadcast_to(np.ravel(call.op.flops), len(codes))
        flops.append(((call.count - in_layer) * done, in_layer * done))
        if slows and by_tokens:
            weight = power.weight_of(call.op.compute_dtype)
            operations.append((weight * flops[-1][0], weight * flops[-1][1]))
    gaps, waits, hosts = _host(gpu, model, settings, shape, launch, layers)
    limited, steady = summed(work[True, True]), summed(work[False, True])
    slower = power.throttle_decoding if shape.is_decode else _throttle
    factor = slower(gpu, summed(operations), limited + steady + (0.0 if shape.is_decode else gaps))
    gpu_seconds = factor * limited + steady + summed([*work[True, False], *work[False, False]])
    host = hosts + (0.0 if shape.is_decode else waits * (gpu_seconds + gaps))
    sized = _sized(model, {name: sizes[name] for name in names}, layers)
    cache = sized.stacks[0].mixer.caches(sized.shard(layout))[0].bytes_per_token * layers
    weights = stage_weight_bytes(sized, layout, 0)
    memory_share = 0.92  # Of a GPU's memory, for weights and cache
    fits = weights + cache * (shape.num_tokens + shape.total_computed) <= memory_share * gpu.driver_bytes
    seconds = np.maximum(gpu_seconds + gaps, host)
    return np.stack([seconds, gpu_seconds, parameter_count(sized), summed(flops), weights, cache, fits])


def _throttle(gpu: Gpu, products: Array, seconds: Array) -> Array:
    """As `throttle` of many steps."""
    limits, turns = power.power_limits(gpu), seconds / power.SETTLE_SECONDS
    free = limits.unthrottled_load
    load = np.clip((products / seconds / gpu.dense_flops("bf16") - free) / (power.FULL_SHARE - free), 0.0, 1.0)
    return np.asarray(1.0 + limits.max_slowdown * load * (1.0 - (1.0 - np.exp(-turns)) / turns))


def _sized(model: ModelConfig, sizes: dict[str, Array], layers: Any) -> ModelConfig:
    """The same model with arrays for sizes: its kernels are those of all variants."""
    stack, head_dim = model.stacks[0], sizes["head_dim"]
    halves: Any = stack.mixer, stack.feed_forward
    heads = {"heads": sizes["heads"], "kv_heads": sizes["kv_heads"]}
    mixer = replace(halves[0], **heads, head_dim=head_dim, value_dim=head_dim, rotary_dim=head_dim)
    half = {name: sizes[name] for name in ("inter", "experts", "topk") if name in sizes}
    stack = replace(stack, layers=layers, mixer=mixer, feed_forward=replace(halves[1], **half))
    wide: Any = {name: sizes[name] for name in ("hidden", "vocabulary")}
    return replace(model, **wide, stacks=(stack,))


def _calls(model: ModelConfig, layout: ParallelLayout, shape: StepShape, padded: int) -> list[tuple[Call, bool]]:
    """The kernels of a step, and whether the number of tokens alone decides their time."""
    queries = np.array(shape.new_tokens)
    batch = SequenceBatch(queries, queries + np.array(shape.computed))
    stack = model.stacks[0]
    attention = [replace(call, count=stack.layers * call.count)
                 for call in stack.mixer.sequence_calls(model.shard(layout), batch)]  # fmt: skip
    others = [*attention, *head_calls(model, layout, max(1, shape.num_sampled))]
    return [*((call, True) for call in token_calls(model, layout, padded)), *((call, False) for call in others)]


def _seconds(predictor: Predictor, op: Op, gpu: Gpu) -> Array:
    arrays = {each.name: getattr(op, each.name) for each in fields(op)}  # type: ignore[arg-type]
    arrays = {
        name: each for name, each in arrays.items() if isinstance(each, np.ndarray) and name not in ("queries", "keys")
    }
    if not isinstance(op, Attention | MoE):
        return np.broadcast_to(np.ravel(predictor.seconds(op, gpu)), max(map(len, arrays.values())))
    rows, where = np.unique(np.stack(list(arrays.values())), axis=1, return_inverse=True)
    single = [replace(op, **dict(zip(arrays, row, strict=True))) for row in rows.T.tolist()]
    return np.array([float(np.ravel(predictor.seconds(each, gpu))[0]) for each in single])[where.ravel()]


def _host(
    gpu: Gpu, model: ModelConfig, settings: Any, shape: StepShape, launch: Any, layers: Array
) -> tuple[Array, float, Array]:
    """What the GPU idles between kernels, the share that the default engine's host waits, and its own time."""
    engine, layout = engine_named(), ParallelLayout()
    host = engine.default_host().on_cpu(gpu.cpu).behind_server()
    values, where = np.unique(layers, return_inverse=True)
    deep = [replace(model, stacks=(replace(model.stacks[0], layers=count),)) for count in values.tolist()]
    models = [engine.host_model(host, each, layout, gpu, settings) for each in deep]
    costs = [each.cost(launch, len(shape.new_tokens), shape.num_tokens, len(shape.prompts)).total for each in models]
    return np.array([each.gap_seconds for each in models])[where], models[0].waited_share, np.array(costs)[where]
