"""A kernel of your own: a predictor learned from a table of dimensions and microseconds, and kernels of a step by it.

What a kernel takes is a sum of non-negative terms (launch, bytes, FLOP, whole rounds of tiles; without a formula of its
work, products of dimensions) times a correction by a Gaussian process over logarithms. Several such models are
averaged, each by how well it does on shapes that it did not see.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.estimate import LARGEST, read_rows
from infercast.forecast.slo import Array
from infercast.hardware import Gpu, load_gpu
from infercast.hardware.gpu import FALLBACKS
from infercast.models.layout import ParallelLayout
from infercast.models.lower import step_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Attention, Op
from infercast.ops.op import Quantity, sum_batch
from infercast.predict.estimate import Estimate
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Adjusted, Predictor, launch_floor
from infercast.shown import ResultMixin
from infercast.units import MICRO

FORMAT, TIMES = "infercast kernel 1", ("microseconds", "latency_us", "time_us", "us")
FEWEST, MOST, MOST_TUNED, MOST_DIMS = 10, 400, 120, 10
"""Shapes that a fit needs, that it uses (drawn at random from more), that its scales are tuned on; and dimensions."""
FOLDS, CHUNK, LONGEST_WORK = 5, 8192, 2000
WORK = ("bytes", "flops", "tiles")
FUNCTIONS: dict[str, Any] = {name: getattr(np, name) for name in ("ceil", "floor", "sqrt", "log2")}
FUNCTIONS |= {"min": np.minimum, "max": np.maximum}
OPERATORS: dict[type, Any] = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide}
OPERATORS |= {ast.Pow: np.power, ast.FloorDiv: np.floor_divide, ast.Mod: np.mod}

Inputs = dict[str, Array]  # Terms and features that a model may use by name, a row a shape; bytes and FLOP in us
PRIOR, PRIOR_SPREAD = (1.1, -1.2, -1.5, -3.0), (1.0, 1.5, 1.5, 1.0)
"""Logarithms of what is expected, and how surely: scales of features, size of the correction, of its slope, noise."""
WIDEST, ELSEWHERE, PER_RATIO = 4.0, 1.5, 0.3
"""Half an interval at most, in logarithms; on another GPU: times wider, and by which share of the GPUs' ratio."""
KINDS = (
    ("none dims", "products dims"),
    ("work dims", "work features", "none features", "both features", "products dims"),
)  # Terms of the sum and features of the process, of each model that is tried: without a formula of work, and with


def _compute(node: ast.expr, sizes: Mapping[str, Array]) -> Any:
    """A formula's tree, node by node: nothing of it is executed."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_compute(left, sizes), _compute(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS and len(args) == FUNCTIONS[name].nin:
            return FUNCTIONS[name](*(_compute(each, sizes) for each in args))
    raise ValueError(f"{ast.unparse(node)} is no number, no function ({', '.join(FUNCTIONS)}) and none of its sizes")


def value_of(formula: str, sizes: Mapping[str, Array], what: str, *, may_be_zero: bool = False) -> Array:
    """A formula over columns, or one sentence about it."""
    try:
        if len(formula) > LONGEST_WORK:
            raise ValueError(f"it has more than {LONGEST_WORK} characters")
        with np.errstate(all="ignore"):
            value = _compute(ast.parse(formula, mode="eval").body, sizes) + 0.0 * next(iter(sizes.values()))
        if not np.all(np.isfinite(value) & (value >= 0) & ((value > 0) | may_be_zero)):
            raise ValueError("it must be above 0 and finite for every row")
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as problem:
        why = problem if type(problem) is ValueError else "it is no arithmetic"
        raise InputError(f"{what} {formula[:80]!r} cannot be used over {', '.join(sizes)}: {why}") from None
    return np.asarray(value)


def amounts_of(work: str, sizes: Mapping[str, Array]) -> dict[str, Array]:
    """What launches do, by ``bytes=...; flops=...; tiles=...``; nothing for an empty text."""
    found: dict[str, Array] = {}
    for part in filter(str.strip, work.split(";")):
        name, _, formula = (each.strip() for each in part.partition("="))
        if name not in WORK:
            raise InputError(f"work {part.strip()[:80]!r} must be NAME=FORMULA with one of {', '.join(WORK)}")
        found[name] = value_of(formula, sizes, "work", may_be_zero=name == "flops")
    if "tiles" in found and len(found) == 1:
        raise InputError("work needs bytes or flops beside tiles")
    return found


def _inputs(work: str, dims: tuple[str, ...], columns: Array, gpu: Gpu, dtype: str) -> Inputs:
    sets = [list(chosen) for many in range(len(dims)) for chosen in combinations(range(len(dims)), many + 1)]
    products = [np.ones(len(columns)), *(np.prod(columns[:, chosen], axis=1) for chosen in sets)]
    amounts, nothing = amounts_of(work, dict(zip(dims, columns.T, strict=True))), np.zeros(len(columns))
    bandwidth, size = gpu.dram_bandwidth * MICRO, amounts.get("bytes", nothing)
    moved, computed = size / bandwidth, amounts.get("flops", nothing) / (gpu.dense_flops(dtype) * MICRO)
    beyond, roof = np.maximum(size - gpu.l2_bytes, 0) / bandwidth, np.maximum(moved, computed)
    terms = [np.ones(len(columns)), moved, computed, roof, beyond, np.maximum(beyond, computed)]
    logs = np.log2(np.maximum(columns, 0.5))
    features = [*logs.T, np.log2(np.maximum(roof, 1e-9)), np.log2(np.maximum(computed, 1e-9) / np.maximum(moved, 1e-9))]
    if "tiles" in amounts:
        full = amounts["tiles"] / gpu.sms
        rounds = np.ceil(full) / full  # Whole rounds over the multiprocessors, in times of what full ones would be
        terms += [roof * rounds, np.ceil(full), computed * rounds, moved * rounds]
        features += [np.log2(full), np.log2(rounds)]
    found = {"products": products, "work": terms, "both": products + terms[1:], "dims": [*logs.T], "features": features}
    stacked = {name: np.stack(each, axis=1) for name, each in found.items()}
    return {**stacked, "none": np.ones((len(columns), 1)), "moved": moved, "computed": computed}


def _rows(inputs: Inputs, which: Array) -> Inputs:
    return {name: each[which] for name, each in inputs.items()}


def _non_negative(matrix: Array, target: Array) -> Array:
    """Coefficients of least squares, none negative: columns come in as they help, and go as they turn negative."""
    found, used = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(3 * min(matrix.shape)):
        helps = np.where(used, -np.inf, matrix.T @ (target - matrix @ found))
        if helps.max() <= 1e-9:
            break
        used[np.argmax(helps)] = True
        while used.any():
            found = np.zeros(len(used))
            found[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
            if found.min() >= 0:
                break
            used &= found > 0
    return found


class Process:
    """A sum of terms times a Gaussian process (Matern 3/2 and a slope) over features in their own spreads."""

    def __init__(self, kind: str, inputs: Inputs, logs: Array, scales: Array | None = None) -> None:
        self._terms, self._over = kind.split()
        features, terms = inputs[self._over], inputs[self._terms]
        self._middle, spread = features.mean(axis=0), features.std(axis=0)
        self._spread = np.where(spread < 1e-9, 1.0, spread)
        self._near, size = (features - self._middle) / self._spread, terms.mean(axis=0) + 1e-30
        self._coefficients = _non_negative(terms / size / np.exp(logs)[:, None], np.ones(len(logs))) / size
        left = logs - self._sum(inputs)
        self.scales = self._tuned(left[:MOST_TUNED]) if scales is None else scales
        self._root = np.linalg.cholesky(_likeness(self._near, None, self.scales))
        self._weights = np.linalg.solve(self._root.T, np.linalg.solve(self._root, left))

    def _sum(self, inputs: Inputs) -> Array:
        shortest = 1e-3  # Microseconds
        return np.asarray(np.log(np.maximum(inputs[self._terms] @ self._coefficients, shortest)))

    def __call__(self, inputs: Inputs) -> tuple[Array, Array]:
        near = (inputs[self._over] - self._middle) / self._spread
        alike = _likeness(near, self._near, self.scales)
        size, slope, noise = np.exp(2 * self.scales[-3:])
        known = np.sum(np.linalg.solve(self._root, alike.T) ** 2, axis=0)
        variance = size + slope * np.mean(near**2, axis=1) + noise - known
        return self._sum(inputs) + alike @ self._weights, np.sqrt(np.maximum(variance, noise))

    def _tuned(self, left: Array) -> Array:
        """The likeliest scales, found one at a time in ever smaller steps."""
        near = self._near[:MOST_TUNED]
        expected, sure = (np.r_[np.full(near.shape[1], each[0]), each[1:]] for each in (PRIOR, PRIOR_SPREAD))

        def unlikely(scales: Array) -> float:
            root = np.linalg.cholesky(_likeness(near, None, scales))
            fit = np.linalg.solve(root, left)
            return float(fit @ fit / 2 + np.log(np.diag(root)).sum() + np.sum(((scales - expected) / sure) ** 2) / 2)

        best: Array = expected
        least = unlikely(best)
        for step, place in ((step, place) for step in (1.0, 0.5, 0.25) for place in range(len(expected))):
            for way in (step, -step):
                while (found := unlikely(moved := best + way * (np.arange(len(best)) == place))) < least - 1e-4:
                    best, least = moved, found
        return best


def _likeness(near: Array, other: Array | None, scales: Array) -> Array:
    """How much shapes have in common with others; without others, with themselves, noise included."""
    size, slope, noise = np.exp(2 * scales[-3:])
    ours, theirs = (each / np.exp(scales[:-3]) for each in (near, near if other is None else other))
    square = np.sum(ours**2, axis=1)[:, None] + np.sum(theirs**2, axis=1) - 2 * ours @ theirs.T
    far = np.sqrt(3 * np.maximum(square, 0))
    found = size * (1 + far) * np.exp(-far) + slope * (near @ (near if other is None else other).T) / near.shape[1]
    return np.asarray(found + (noise + 1e-6) * np.eye(len(near)) if other is None else found)


class Members(NamedTuple):
    """Models of every kind, and what each counts: by its error on folds of shapes that it did not see."""

    processes: list[Process]
    counts: Array

    @classmethod
    def fit(cls, inputs: Inputs, logs: Array, kinds: tuple[str, ...]) -> Members:
        folds, errors = np.arange(len(logs)) % FOLDS, []
        processes = [Process(kind, inputs, logs) for kind in kinds]
        for kind, process in zip(kinds, processes, strict=True):
            missed = np.empty(len(logs))
            for fold in range(FOLDS):
                part = Process(kind, _rows(inputs, folds != fold), logs[folds != fold], process.scales)
                missed[folds == fold] = part(_rows(inputs, folds == fold))[0] - logs[folds == fold]
            errors.append(np.mean(np.minimum(np.abs(missed), 1.0)) + 1e-3)
        belief = -4.0  # Power of a model's error on unseen shapes that it counts by
        counts = np.array(errors) ** belief
        return cls(processes, counts / counts.sum())

    def __call__(self, inputs: Inputs) -> Array:
        return np.asarray(np.tensordot(self.counts, [process(inputs) for process in self.processes], 1))


class OwnKernel(ResultMixin):
    """A predictor of one kernel, from measured shapes; `write` saves it as JSON and `read_kernel` reads it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """``facts``: its file, with shapes and times, scales and counts of each model, and the errors found."""
        self.facts, self.name, self.dims = facts, facts["name"], tuple(facts["dims"])
        self.work, self.dtype, self.gpu = facts["work"], facts["dtype"], load_gpu(facts["gpu"])
        self.errors: dict[str, float] = facts["errors"]
        """Mean, median and 90th percentile, and the share inside the 80 % interval, on shapes left out in turn."""
        inputs, logs = self._inputs(np.array(facts["shapes"], dtype=float), self.gpu), np.log(facts["microseconds"])
        kinds = zip(KINDS[bool(self.work)], facts["scales"], strict=True)
        processes = [Process(kind, inputs, logs, np.array(scales)) for kind, scales in kinds]
        self._members = Members(processes, np.array(facts["counts"]))

    def _words(self) -> str:
        return f"{self.name} on {self.gpu.name}: median error {self.errors['median_error']:.1%} on unseen shapes"

    def document(self) -> dict[str, Any]:
        spans = zip(self.dims, zip(*self.facts["shapes"], strict=True), strict=True)
        named = {"name": self.name, "gpu": self.gpu.name, "dtype": self.dtype, "work": self.work or "no formula"}
        ranges = {name: f"{min(each)} to {max(each)}" for name, each in spans}
        return {**named, "dims": ranges, "shapes": len(self.facts["shapes"]), **self.errors}

    def _inputs(self, columns: Array, gpu: Gpu) -> Inputs:
        return _inputs(self.work, self.dims, columns, gpu, self.dtype)

    def predict(self, gpu: str | Path | Gpu | None = None, **dims: Any) -> Estimate:
        """Seconds of one launch with an 80 % interval; on another GPU than the table's by its roofline, with a wider
        one.
        """
        if {*dims} != {*self.dims}:
            raise InputError(f"kernel {self.name} takes {', '.join(self.dims)}, not {', '.join(dims) or 'nothing'}")
        columns = np.broadcast_arrays(*(np.asarray(dims[name], dtype=float) for name in self.dims))
        flat = np.stack([each.ravel() for each in columns], axis=1)
        if flat.size and not 0 <= flat.min() <= flat.max() <= LARGEST:
            raise InputError(f"{', '.join(self.dims)} must be between 0 and {LARGEST}")
        device = self.gpu if gpu is None else gpu if isinstance(gpu, Gpu) else load_gpu(gpu)
        parts = [self._at(flat[start : start + CHUNK], device) for start in range(0, max(len(flat), 1), CHUNK)]
        found = [np.concatenate(each).reshape(columns[0].shape) for each in zip(*parts, strict=True)]
        seconds, low, high, bound = (each if each.ndim else each.item() for each in found)
        source = "few-shot" if device.name == self.gpu.name else "unseen" if self.work else "typical"
        return Estimate(seconds, low, high, source, bound)

    def _at(self, columns: Array, device: Gpu) -> tuple[Array, ...]:
        home = self.gpu
        here, there = (self._inputs(columns, each) for each in (device, home))
        logs, spread = self._members(there)
        known = np.array(self.facts["shapes"], dtype=float)
        ends = np.log2(np.maximum([known.min(axis=0), known.max(axis=0)], 0.5))
        asked, doubt_an_octave = np.log2(np.maximum(columns, 0.5)), 0.1
        beyond = np.maximum(np.maximum(ends[0] - asked, asked - ends[1]), 0.0).sum(axis=1)
        half = np.minimum(self.facts["width"] * spread + doubt_an_octave * beyond, WIDEST)
        floors = [launch_floor(each) / MICRO for each in (device, home)]
        roofs = [floor + np.maximum(x["moved"], x["computed"]) for floor, x in zip(floors, (here, there), strict=True)]
        ratios = np.log([roofs[0] / roofs[1]])
        if not self.work:
            peaks = home.dense_flops(self.dtype) / device.dense_flops(self.dtype)
            ratios = np.log([home.dram_bandwidth / device.dram_bandwidth, peaks])[:, None]
        if device.name != home.name:
            logs, half = logs + ratios.mean(axis=0), ELSEWHERE * half + PER_RATIO * np.abs(ratios).sum(axis=0)
        pipe = (
            np.where(here["moved"] > here["computed"], "dram", "tensor") if self.work else np.full(len(logs), "unknown")
        )
        bound = np.where(roofs[0] < 2 * floors[0], "launch" if self.work else "unknown", pipe).astype(object)
        return (*(np.exp(each) * MICRO for each in (logs, logs - half, logs + half)), bound)

    def write(self, path: Path | str) -> None:
        Path(path).write_text(json.dumps(self.facts, indent=1) + "\n", encoding="utf-8")


def fit_kernel(
    table: Path | str | Mapping[str, Any], gpu: str = "h200-sxm", *, work: str = "", dtype: str = "bf16"
) -> OwnKernel:
    """Fit a predictor of a kernel to a CSV file, or to columns by name: whole-number dimensions and microseconds.
    ``work`` says what a launch does, by formulas over the dimensions: ``bytes=2*(m*k+k*n+m*n); flops=2*m*n*k;
    tiles=ceil(m/128)*ceil(n/128)``. FLOP run at the rate of the tensor cores for ``dtype``.
    """
    if dtype not in FALLBACKS:
        raise UnknownNameError("dtype", dtype, FALLBACKS)
    name, given = ("kernel", table) if isinstance(table, Mapping) else (Path(table).stem, _read_table(Path(table)))
    dims, rows, times = _columns(given)
    shapes, which = np.unique(rows, axis=0, return_inverse=True)
    logs = np.bincount(which.ravel(), np.log(times)) / np.bincount(which.ravel())
    if len(shapes) < FEWEST:
        raise InputError(f"a fit needs at least {FEWEST} different shapes, not {len(shapes)}")
    drawn = np.random.default_rng(0).permutation(len(shapes))[:MOST]
    shapes, logs, kinds = shapes[drawn], logs[drawn], KINDS[bool(work)]
    inputs = _inputs(work, dims, shapes.astype(float), load_gpu(gpu), dtype)
    folds = np.arange(len(logs))[::-1] % FOLDS
    said = np.empty((2, len(logs)))
    for fold in range(FOLDS):
        learned = Members.fit(_rows(inputs, folds != fold), logs[folds != fold], kinds)
        said[:, folds == fold] = learned(_rows(inputs, folds == fold))
    members, away = Members.fit(inputs, logs, kinds), np.abs(said[0] - logs) / said[1]
    widths = np.array([_width(away[folds != fold]) for fold in range(FOLDS)])
    errors = np.abs(np.expm1(said[0] - logs))
    found = {"mean_error": errors.mean(), "median_error": np.median(errors), "p90_error": np.quantile(errors, 0.9)}
    found |= {"inside_share": np.mean(away <= widths[folds])}
    return OwnKernel({
        **{"format": FORMAT, "name": name, "gpu": gpu, "dtype": dtype, "work": work, "dims": list(dims)},
        **{"shapes": shapes.tolist(), "microseconds": np.exp(logs).tolist(), "counts": members.counts.tolist()},
        "scales": [process.scales.tolist() for process in members.processes],
        **{"width": _width(away), "errors": {name: float(each) for name, each in found.items()}},
    })  # fmt: skip


def _width(away: Array) -> float:
    """What 80 % of distances lie below, and of one more that is not among them."""
    return float(np.quantile(away, min(1.0, 0.8 * (1 + 1 / len(away)))))


def _read_table(path: Path) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for line, row in enumerate(read_rows(path), start=2):
        for name, text in row.items():
            try:
                columns.setdefault(name, []).append(float({"true": 1, "false": 0}.get((text or "").lower(), text)))
            except (TypeError, ValueError):
                raise FileFormatError(path, f"{name} must be a number, not {text!r}", line=line) from None
    return columns


def _columns(table: Mapping[str, Any]) -> tuple[tuple[str, ...], Array, Array]:
    time = next((name for name in TIMES if name in table), None)
    if time is None:
        raise InputError(f"a table needs a column of times, {' or '.join(TIMES)}; it has {', '.join(table)}")
    dims = tuple(name for name in table if name != time)
    if not 1 <= len(dims) <= MOST_DIMS or not all(name.isidentifier() and name not in ("gpu", "self") for name in dims):
        raise InputError(f"a table needs 1 to {MOST_DIMS} dimensions with plain names, not {', '.join(dims)}")
    values = {name: np.asarray(table[name], dtype=float) for name in (time, *dims)}
    for name, each in values.items():
        valid = (each >= 0) & (each <= LARGEST) & (each % 1 == 0) if name != time else (each > 0) & np.isfinite(each)
        if each.shape != values[time].shape or not valid.all():
            what = "above 0 and finite" if name == time else f"whole numbers from 0 to {LARGEST}"
            raise InputError(f"{name} must be {what}, one a row")
    return dims, np.stack([values[name] for name in dims], axis=1).astype(np.int64), values[time]


def read_kernel(path: Path | str) -> OwnKernel:
    """A predictor that `OwnKernel.write` or ``infercast kernel fit`` saved."""
    try:
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
        kernel = OwnKernel(facts if facts["format"] == FORMAT else {})
        kernel.predict(None, **dict(zip(kernel.dims, facts["shapes"][0], strict=True)))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except Exception:
        raise FileFormatError(path, "is no file of `infercast kernel fit`") from None
    return kernel


class WithOwnKernels(Adjusted):
    """Another predictor, with kernels of some families replaced by own ones, or with those on top of each launch."""

    def __init__(self, predictor: Predictor, own: Mapping[str, tuple[OwnKernel, bool]]) -> None:
        """``own``: by family, the kernel and whether it comes on top. Operators without its dimensions stay."""
        super().__init__(predictor)
        self._own = own

    def describe(self, gpu: Gpu) -> str:
        return f"{self._predictor.describe(gpu)}; {', '.join(self._own)} by a kernel file"

    def estimate(self, op: Op, gpu: Gpu) -> Estimate:
        own, is_added = self._own.get(op.family, (None, False))
        sizes = None if own is None else sizes_of(op, own)
        if own is None or sizes is None:
            return self._predictor.estimate(op, gpu)
        found = own.predict(gpu, **sizes)
        if not is_added:
            return found
        base = self._predictor.estimate(op, gpu)
        seconds, low, high = found.seconds + base.seconds, found.low + base.low, found.high + base.high
        return Estimate(seconds, low, high, found.source, base.bound)

    def seconds(self, op: Op, gpu: Gpu) -> Quantity:
        return self.estimate(op, gpu).seconds if op.family in self._own else self._predictor.seconds(op, gpu)


def sizes_of(op: Op, own: OwnKernel) -> dict[str, Any] | None:
    """Dimensions of a model's operator by name: its fields, bytes and FLOP, means over a batch; None if one lacks."""
    known = {name: getattr(op, name, None) for name in own.dims}
    if isinstance(op, Attention):
        batch, tokens = sum_batch(np.ones_like(op.keys), op.sequences), sum_batch(op.queries, op.sequences)
        keys = sum_batch(op.keys, op.sequences)
        known |= {"batch": batch, "tokens": tokens, "q_len": tokens / batch, "kv_len": keys / batch}
    found = {name: known[name] for name in own.dims}
    return found if all(np.issubdtype(np.asarray(each).dtype, np.number) for each in found.values()) else None


def with_own_kernels(predictor: str | Predictor, files: Iterable[str], engine: str, model: ModelConfig) -> Predictor:
    """``FILE@FAMILY`` replaces kernels of a family, ``FILE@+FAMILY`` comes on top of each."""
    own: dict[str, tuple[OwnKernel, bool]] = {}
    ones = np.ones(1, dtype=np.int64)
    ops = [call.op for call in step_calls(model, ParallelLayout(), ones, ones, sampled=1)]
    for text in files:
        path, _, place = text.rpartition("@")
        family = place.removeprefix("+")
        if not path:
            raise InputError(f"--kernel-file {text} must be FILE@FAMILY, such as my.json@gemm, or FILE@+FAMILY")
        if family not in (names := {op.family for op in ops} | {"quantise", "collective"}):
            raise UnknownNameError(f"kernel family of {model.name}", family, names)
        own[family] = kernel, _ = read_kernel(path), place != family
        among = [op for op in ops if op.family == family]
        if among and not any(sizes_of(op, kernel) for op in among):
            raise InputError(f"kernel {kernel.name} takes {', '.join(kernel.dims)}, which is not all in {among[0]}")
    return WithOwnKernels(make_predictor(predictor, engine) if isinstance(predictor, str) else predictor, own)
