"""A kernel of your own: a predictor learned from a table of dimensions and microseconds, and kernels of a step by it.

What a kernel takes is a sum of non-negative terms (launch, bytes, FLOP, whole rounds of tiles; without a formula of its
work, products of dimensions) times a correction by a Gaussian process over logarithms. Several such models are
averaged, each by how well it does on shapes that it did not see.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
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
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Attention, Op
from infercast.ops.op import Quantity, sum_batch
from infercast.predict.estimate import Estimate
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Adjusted, Predictor, launch_floor
from infercast.shown import Answer
from infercast.units import MICRO

TIMES = ("microseconds", "latency_us", "time_us", "us")
"""Names of the column that holds the time."""
FEWEST, MOST, MOST_TUNED, MOST_DIMS = 10, 400, 120, 10
"""Shapes that a fit needs, that it uses (drawn at random from more), that its scales are tuned on; and dimensions."""
FOLDS, CHUNK = 5, 8192
FORMAT = "infercast kernel 1"
WORK = ("bytes", "flops", "tiles")
LONGEST_FORMULA = 2000


FUNCTIONS: dict[str, tuple[Any, int]] = {
    "ceil": (np.ceil, 1), "floor": (np.floor, 1), "sqrt": (np.sqrt, 1), "log2": (np.log2, 1),
    "min": (np.minimum, 2), "max": (np.maximum, 2),
}  # fmt: skip
OPERATORS: dict[type, Any] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.mod, ast.Pow: np.power,
}  # fmt: skip


class Formula:
    """Arithmetic over the names of dimensions, read as a tree and computed node by node: nothing of it is executed."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise self._wrong("is no arithmetic") from None

    def __call__(self, sizes: Mapping[str, Array]) -> Array:
        try:
            with np.errstate(all="ignore"):
                found = self._value(self._tree, sizes)
        except (RecursionError, OverflowError):
            raise self._wrong("is too deep or too large") from None
        least = 0 if self.name == "flops" else np.nextafter(0, 1)
        if not np.all(np.isfinite(found)) or np.min(found) < least:
            raise self._wrong(f"must be {'0 or more' if self.name == 'flops' else 'above 0'} and finite for every row")
        return np.asarray(found, dtype=float)

    def _value(self, node: ast.expr, sizes: Mapping[str, Array]) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.Name):
            if node.id not in sizes:
                raise UnknownNameError(f"dimension in {self.name}", node.id, sizes)
            return sizes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](self._value(node.left, sizes), self._value(node.right, sizes))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, sizes)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            function, many = FUNCTIONS.get(node.func.id, (None, 0))
            if function is not None and len(node.args) == many:
                return function(*(self._value(each, sizes) for each in node.args))
        raise self._wrong(f"takes numbers, dimensions, + - * / // % ** and {', '.join(FUNCTIONS)}")

    def _wrong(self, why: str) -> InputError:
        return InputError(f"the formula {self.name}={self.text.strip()} {why}")


def read_work(text: str) -> dict[str, Formula]:
    """Formulas of ``bytes=...; flops=...; tiles=...``; none for an empty text."""
    found: dict[str, Formula] = {}
    if len(text) > LONGEST_FORMULA:
        raise InputError(f"work is {len(text)} characters long, above {LONGEST_FORMULA}")
    for part in filter(str.strip, text.split(";")):
        name, equals, formula = part.partition("=")
        if name.strip() not in WORK or not equals:
            raise InputError(f"work {part.strip()!r} must be NAME=FORMULA with one of {', '.join(WORK)}")
        found[name.strip()] = Formula(name.strip(), formula)
    if found and found.keys() <= {"tiles"}:
        raise InputError("work needs bytes or flops beside tiles")
    return found


class Physics(NamedTuple):
    """What shapes ask of a GPU, in microseconds at its datasheet's rates, with terms of a sum and features."""

    moved: Array
    computed: Array
    terms: Array
    features: Array


def physics(work: Mapping[str, Formula], sizes: Mapping[str, Array], gpu: Gpu, dtype: str) -> Physics:
    nothing = np.zeros(next(iter(sizes.values())).shape)
    amounts = {name: nothing + formula(sizes) for name, formula in work.items()}
    bandwidth, bytes_ = gpu.dram_bandwidth * MICRO, amounts.get("bytes", nothing)
    moved, computed = bytes_ / bandwidth, amounts.get("flops", nothing) / (gpu.dense_flops(dtype) * MICRO)
    beyond = np.maximum(bytes_ - gpu.l2_bytes, 0) / bandwidth
    terms = [moved, computed, np.maximum(moved, computed), beyond, np.maximum(beyond, computed)]
    features = [np.log2(np.maximum(each, 1e-9)) for each in (moved, computed) if np.any(each)]
    features[1:] = [each - features[0] for each in features[1:]]
    if "tiles" in amounts:
        full = amounts["tiles"] / gpu.sms
        rounds = np.ceil(full) / full  # Whole rounds over the multiprocessors, in times of what full ones would be
        terms += [terms[2] * rounds, np.ceil(full), computed * rounds, moved * rounds]
        features += [np.log2(full), np.log2(rounds)]
    return Physics(moved, computed, np.stack(terms, axis=-1), np.stack(features, axis=-1))


def _products(columns: Array) -> Array:
    """Products of all sets of dimensions: what bytes and FLOP of most kernels are sums of."""
    each = range(columns.shape[-1])
    sets = [list(chosen) for many in each for chosen in combinations(each, many + 1)]
    return np.stack([np.prod(columns[:, chosen], axis=-1) for chosen in sets], axis=-1)


def _non_negative(matrix: Array, target: Array) -> Array:
    """Least squares without negative coefficients, by the active sets of Lawson and Hanson."""
    many = matrix.shape[1]
    found, used, gradient = np.zeros(many), np.zeros(many, dtype=bool), matrix.T @ target
    for _ in range(3 * many):
        if used.all() or gradient[~used].max() <= 1e-9:
            break
        used[np.argmax(np.where(used, -np.inf, gradient))] = True
        while used.any():
            step = np.zeros(many)
            step[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
            if step[used].min() > 0:
                found = step
                break
            below = used & (step <= 0)
            found += np.min(found[below] / (found[below] - step[below])) * (step - found)
            used &= found > 1e-12
            found[~used] = 0.0
        gradient = matrix.T @ (target - matrix @ found)
    return found


class Inputs(NamedTuple):
    """Terms and features that a model may use, one row a shape."""

    terms: dict[str, Array]
    features: dict[str, Array]

    def of(self, rows: Array) -> Inputs:
        return Inputs(*({name: each[rows] for name, each in group.items()} for group in self))


SHORTEST = 1e-3  # Microseconds
PRIOR, PRIOR_SPREAD = (1.1, -1.2, -1.5, -3.0), (1.0, 1.5, 1.5, 1.0)
"""Logarithms of what is expected, and how surely: scales of features, size of the correction, of its slope, noise."""


class Process:
    """A sum of terms times a Gaussian process (Matern 3/2 and a slope) over features in their own spreads."""

    def __init__(self, kind: str, inputs: Inputs, logs: Array, scales: Array | None = None) -> None:
        self.terms, self.over = kind.split()
        features = inputs.features[self.over]
        self._middle, self._spread = features.mean(axis=0), features.std(axis=0)
        self._spread[self._spread < 1e-9] = 1.0
        self._near = (features - self._middle) / self._spread
        self._offset, self._size, self._coefficients = 0.0, np.ones(1), np.ones(1)
        if self.terms in inputs.terms:
            terms, seconds = inputs.terms[self.terms], np.exp(logs)
            self._size = terms.mean(axis=0) + 1e-30
            self._coefficients = _non_negative(terms / self._size / seconds[:, None], np.ones(len(logs)))
        self._offset = float(np.median(logs - self._mean(inputs)))
        left = logs - self._mean(inputs)
        self.scales = self._tuned(left) if scales is None else scales
        self._root = np.linalg.cholesky(self._covered(self._near, self.scales))
        self._weights = np.linalg.solve(self._root.T, np.linalg.solve(self._root, left))

    def _mean(self, inputs: Inputs) -> Array:
        if self.terms not in inputs.terms:
            return np.full(len(inputs.features[self.over]), self._offset)
        sums: Array = np.maximum(inputs.terms[self.terms] / self._size @ self._coefficients, SHORTEST)
        return np.asarray(np.log(sums) + self._offset)

    def __call__(self, inputs: Inputs) -> tuple[Array, Array]:
        """Logarithms of microseconds, and their standard deviations."""
        near = (inputs.features[self.over] - self._middle) / self._spread
        alike = _likeness(near, self._near, self.scales)
        known = np.linalg.solve(self._root, alike.T)
        size, slope, noise = np.exp(2 * self.scales[-3:])
        variance = size + slope * np.mean(near**2, axis=1) + noise - np.sum(known**2, axis=0)
        return self._mean(inputs) + alike @ self._weights, np.sqrt(np.maximum(variance, noise))

    @staticmethod
    def _covered(near: Array, scales: Array) -> Array:
        return np.asarray(_likeness(near, near, scales) + (np.exp(2 * scales[-1]) + 1e-6) * np.eye(len(near)))

    def _tuned(self, left: Array) -> Array:
        """The likeliest scales, found one at a time in ever smaller steps."""
        near, left = self._near[:MOST_TUNED], left[:MOST_TUNED]
        many = near.shape[1]
        expected, sure = (np.r_[np.full(many, each[0]), each[1:]] for each in (PRIOR, PRIOR_SPREAD))

        def unlikely(scales: Array) -> float:
            try:
                root = np.linalg.cholesky(self._covered(near, scales))
            except np.linalg.LinAlgError:
                return np.inf
            fit = np.linalg.solve(root, left)
            return float(fit @ fit / 2 + np.log(np.diag(root)).sum() + np.sum(((scales - expected) / sure) ** 2) / 2)

        best: Array = expected
        least = unlikely(best)
        for step in (1.0, 0.5, 0.25):
            for place in range(many + 3):
                for way in (step, -step):
                    moved = best + way * (np.arange(many + 3) == place)
                    while (found := unlikely(moved)) < least - 1e-4:
                        best, least = moved, found
                        moved = best + way * (np.arange(many + 3) == place)
        return best


def _likeness(near: Array, other: Array, scales: Array) -> Array:
    size, slope = np.exp(2 * scales[-3:-1])
    ours, theirs = near / np.exp(scales[:-3]), other / np.exp(scales[:-3])
    square = np.sum(ours**2, axis=1)[:, None] + np.sum(theirs**2, axis=1) - 2 * ours @ theirs.T
    far = np.sqrt(3 * np.maximum(square, 0))
    found: Array = size * (1 + far) * np.exp(-far) + slope * (near @ other.T) / near.shape[1]
    return found


KINDS = ("work dims", "work work", "none work", "both work", "products dims"), ("none dims", "products dims")
"""Terms of the sum and features of the process, of each model that is tried: with a formula of work, and without."""
BELIEF = -4.0  # Power of a model's error on unseen shapes that it counts by


def _fit_members(inputs: Inputs, logs: Array, kinds: tuple[str, ...]) -> tuple[list[Process], Array]:
    """Every kind of model, and what each counts: by its error on folds of shapes that it did not see."""
    folds = np.arange(len(logs)) % FOLDS
    members, errors = [Process(kind, inputs, logs) for kind in kinds], []
    for kind, member in zip(kinds, members, strict=True):
        missed = []
        for fold in range(FOLDS):
            part = Process(kind, inputs.of(folds != fold), logs[folds != fold], member.scales)
            missed.append(np.abs(part(inputs.of(folds == fold))[0] - logs[folds == fold]))
        errors.append(np.mean(np.minimum(np.concatenate(missed), 1.0)) + 1e-3)
    counts = np.array(errors) ** BELIEF
    return members, counts / counts.sum()


def _average(members: list[Process], counts: Array, inputs: Inputs) -> tuple[Array, Array]:
    found = [member(inputs) for member in members]
    said, spread = (np.tensordot(counts, [each[place] for each in found], 1) for place in (0, 1))
    return said, spread


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Absolute errors, as shares, on shapes that were left out of the fit in turn."""

    mean: float
    median: float
    p90: float
    inside: float
    """Share of measured times inside the 80 % interval."""


ELSEWHERE, PER_RATIO = 1.5, 0.3
"""On another GPU: how many times wider the interval is, and by which share of the logarithm of the GPUs' ratio more."""


@dataclass(frozen=True, repr=False)
class OwnKernel(Answer):
    """A predictor of one kernel, from measured shapes; `write` saves it as JSON and `read_kernel` reads it."""

    name: str
    gpu: str
    """Where it was measured."""
    dtype: str
    """The format of the tensor cores' rate, for FLOP."""
    work: str
    dims: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    microseconds: tuple[float, ...]
    scales: tuple[tuple[float, ...], ...]
    counts: tuple[float, ...]
    width: float
    """Half an 80 % interval, in standard deviations of the process."""
    accuracy: Accuracy

    def _words(self) -> str:
        share = 100 * self.accuracy.median
        return f"{self.name} on {self.gpu}: {len(self.shapes)} shapes, median error {share:.1f} % on unseen ones"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest of each dimension that was measured."""
        return {
            name: (min(each), max(each)) for name, each in zip(self.dims, zip(*self.shapes, strict=True), strict=True)
        }

    def note(self, gpu: str | Path | Gpu | None = None) -> str:
        """What an estimate rests on if it was measured on another GPU; empty if not."""
        if self.source_on(gpu) == "few-shot":
            return ""
        by = "the ratio of the two rooflines" if self.work else "the ratio of the datasheets, for want of a formula"
        return f"measured on {self.gpu}, carried over by {by}, so the interval is wider"

    @cached_property
    def _formulas(self) -> dict[str, Formula]:
        return read_work(self.work)

    def _inputs(self, columns: Array) -> Inputs:
        return _inputs(self._formulas, self.dims, columns, load_gpu(self.gpu), self.dtype)

    @cached_property
    def _members(self) -> list[Process]:
        inputs, logs = self._inputs(np.array(self.shapes, dtype=float)), np.log(self.microseconds)
        kinds = KINDS[0 if self._formulas else 1]
        return [Process(kind, inputs, logs, np.array(scales)) for kind, scales in zip(kinds, self.scales, strict=True)]

    def predict(self, gpu: str | Path | Gpu | None = None, **dims: Any) -> Estimate:
        """Seconds of one launch with an 80 % interval, or arrays of them; on the GPU of the table unless one is named.

        On another GPU the correction stays and the roofline is that GPU's, with a wider interval.
        """
        if {*dims} != {*self.dims}:
            raise InputError(f"kernel {self.name} takes {', '.join(self.dims)}, not {', '.join(dims) or 'nothing'}")
        columns = np.broadcast_arrays(*(np.asarray(dims[name], dtype=float) for name in self.dims))
        flat = np.stack([each.ravel() for each in columns], axis=1)
        for name, column in zip(self.dims, flat.T, strict=True):
            if column.size and not (column.min() >= 0 and column.max() <= LARGEST):
                raise InputError(f"{name} must be between 0 and {LARGEST}, not {column.min():g} to {column.max():g}")
        parts = [self._at(flat[start : start + CHUNK], gpu) for start in range(0, max(len(flat), 1), CHUNK)]
        found = [np.concatenate(each).reshape(columns[0].shape) for each in zip(*parts, strict=True)]
        seconds, low, high, bound = (each if each.ndim else each.item() for each in found)
        return Estimate(seconds, low, high, self.source_on(gpu), bound)

    def source_on(self, gpu: str | Path | Gpu | None) -> str:
        """Measured here, carried over by the ratio of two rooflines, or by the ratio of the datasheets alone."""
        name = gpu.name if isinstance(gpu, Gpu) else load_gpu(gpu or self.gpu).name
        return "few-shot" if name == load_gpu(self.gpu).name else "unseen" if self.work else "typical"

    def _at(self, columns: Array, gpu: str | Path | Gpu | None) -> tuple[Array, ...]:
        logs, spread = _average(self._members, np.array(self.counts), self._inputs(columns))
        home = load_gpu(self.gpu)
        device = gpu if isinstance(gpu, Gpu) else load_gpu(gpu or self.gpu)
        half, floor = self.width * spread, launch_floor(device) / MICRO
        bound = np.full(len(columns), "unknown", dtype=object)
        sizes = dict(zip(self.dims, columns.T, strict=True))
        if self._formulas:
            here, there = (physics(self._formulas, sizes, each, self.dtype) for each in (device, home))
            roof, other = (np.maximum(each.moved, each.computed) for each in (here, there))
            ratio = np.log((floor + roof) / (launch_floor(home) / MICRO + other))
            bound[:] = np.where(roof < floor, "launch", np.where(here.moved > here.computed, "dram", "tensor"))
            apart = np.abs(ratio)
        else:
            rates = [
                np.log(home.dram_bandwidth / device.dram_bandwidth),
                np.log(home.dense_flops(self.dtype) / device.dense_flops(self.dtype)),
            ]
            ratio, apart = np.full(len(columns), np.mean(rates)), np.abs(rates[0]) + np.abs(rates[1])
        if device.name != home.name:
            logs, half = logs + ratio, ELSEWHERE * half + PER_RATIO * apart
        return (*(np.exp(each) * MICRO for each in (logs, logs - half, logs + half)), bound)

    def write(self, path: Path | str) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def _inputs(work: Mapping[str, Formula], dims: tuple[str, ...], columns: Array, gpu: Gpu, dtype: str) -> Inputs:
    logs, one = np.log2(np.maximum(columns, 0.5)), np.ones((len(columns), 1))
    terms, features = {"products": np.hstack([one, _products(columns)])}, {"dims": logs}
    if work:
        found = physics(work, dict(zip(dims, columns.T, strict=True)), gpu, dtype)
        terms |= {"work": np.hstack([one, found.terms]), "both": np.hstack([terms["products"], found.terms])}
        features["work"] = np.hstack([logs, found.features])
    return Inputs(terms, features)


def fit_kernel(
    table: Path | str | Mapping[str, Any], gpu: str | Path = "h200-sxm", *, work: str = "", dtype: str = "bf16",
    name: str = "",
) -> OwnKernel:  # fmt: skip
    """Fit a predictor of a kernel to a CSV file, or to columns by name: whole-number dimensions and microseconds.

    ``work`` says what a launch does, by formulas over the dimensions: ``bytes=2*(m*k+k*n+m*n); flops=2*m*n*k;
    tiles=ceil(m/128)*ceil(n/128)``. FLOP run at the rate of the tensor cores for ``dtype``.
    """
    if dtype not in FALLBACKS:
        raise UnknownNameError("dtype", dtype, FALLBACKS)
    is_file = not isinstance(table, Mapping)
    dims, shapes, times = _read_table(Path(table)) if is_file else _columns(table)  # type: ignore[arg-type]
    device, formulas = load_gpu(gpu), read_work(work)
    shapes, which = np.unique(shapes, axis=0, return_inverse=True)
    which = which.ravel()
    logs = np.bincount(which, np.log(times)) / np.bincount(which)
    if len(shapes) < FEWEST:
        raise InputError(f"a fit needs at least {FEWEST} different shapes, not {len(shapes)}")
    drawn = np.random.default_rng(0).permutation(len(shapes))[:MOST]
    columns, logs = shapes[drawn].astype(float), logs[drawn]
    inputs, kinds = _inputs(formulas, dims, columns, device, dtype), KINDS[0 if formulas else 1]
    folds = np.arange(len(logs))[::-1] % FOLDS
    said, spread = np.empty(len(logs)), np.empty(len(logs))
    for fold in range(FOLDS):
        learned = _fit_members(inputs.of(folds != fold), logs[folds != fold], kinds)
        said[folds == fold], spread[folds == fold] = _average(*learned, inputs.of(folds == fold))
    members, counts = _fit_members(inputs, logs, kinds)
    away = np.abs(said - logs) / spread
    widths = np.array([_width(away[folds != fold]) for fold in range(FOLDS)])
    errors = np.abs(np.expm1(said - logs))
    accuracy = Accuracy(
        float(errors.mean()), float(np.median(errors)), float(np.quantile(errors, 0.9)),
        float(np.mean(away <= widths[folds])),
    )  # fmt: skip
    return OwnKernel(
        name=name or (Path(table).stem if is_file else "kernel"),  # type: ignore[arg-type]
        gpu=str(gpu),
        dtype=dtype,
        work=work,
        dims=dims,
        shapes=tuple(tuple(row) for row in shapes[drawn].tolist()),
        microseconds=tuple(np.exp(logs).tolist()),
        scales=tuple(tuple(member.scales.tolist()) for member in members),
        counts=tuple(counts.tolist()),
        width=_width(away),
        accuracy=accuracy,
    )


def _width(away: Array) -> float:
    """What 80 % of distances lie below, and of one more that is not among them."""
    return float(np.quantile(away, min(1.0, 0.8 * (1 + 1 / len(away)))))


def _read_table(path: Path) -> tuple[tuple[str, ...], Array, Array]:
    rows = read_rows(path)
    flags = {"true": "1", "false": "0"}
    columns: dict[str, list[float]] = {name: [] for name in rows[0]}
    for line, row in enumerate(rows, start=2):
        for name, text in row.items():
            try:
                columns[name].append(float(flags.get((text or "").lower(), text)))
            except (TypeError, ValueError):
                raise FileFormatError(path, f"{name} must be a number, not {text!r}", line=line) from None
    try:
        return _columns(columns)
    except InputError as problem:
        raise FileFormatError(path, str(problem)) from None


def _columns(table: Mapping[str, Any]) -> tuple[tuple[str, ...], Array, Array]:
    time = next((name for name in TIMES if name in table), None)
    if time is None:
        raise InputError(f"needs a column of times: {', '.join(TIMES)}")
    dims = tuple(name for name in table if name != time)
    if not 1 <= len(dims) <= MOST_DIMS or not all(name.isidentifier() and name not in ("gpu", "self") for name in dims):
        raise InputError(f"needs 1 to {MOST_DIMS} columns of dimensions with plain names, not {', '.join(dims)}")
    times, columns = np.asarray(table[time], dtype=float), [np.asarray(table[name], dtype=float) for name in dims]
    if not np.all(np.isfinite(times)) or np.min(times, initial=1.0) <= 0:
        raise InputError(f"{time} must be above 0 and finite")
    for name, column in zip(dims, columns, strict=True):
        if column.shape != times.shape or not np.all((column >= 0) & (column <= LARGEST) & (column % 1 == 0)):
            raise InputError(f"{name} must be whole numbers from 0 to {LARGEST}, one a row")
    return dims, np.stack(columns, axis=1).astype(np.int64), times


def read_kernel(path: Path | str) -> OwnKernel:
    """A predictor that `OwnKernel.write` or ``infercast kernel fit`` saved."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            found = json.load(file)
        if found.pop("format") != FORMAT:
            raise ValueError
        kernel = OwnKernel(**{**found, "accuracy": Accuracy(**found["accuracy"]), "dims": tuple(found["dims"])})
        kernel.predict(None, **dict(zip(kernel.dims, kernel.shapes[0], strict=True)))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except InputError:
        raise
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
    layout, one = ParallelLayout(), np.ones(1, dtype=np.int64)
    lowered = token_calls(model, layout, 1), attention_calls(model, layout, one, one), head_calls(model, layout, 1)
    ops = [call.op for calls in lowered for call in calls]
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
            raise InputError(
                f"kernel {kernel.name} takes {', '.join(kernel.dims)}, of which {family} has not all; its operator is "
                f"{among[0]}"
            )
    return WithOwnKernels(make_predictor(predictor, engine) if isinstance(predictor, str) else predictor, own)
