"""Estimates of single kernels by name: time and power of one shape, of arrays of shapes, or of a table's rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache, partial
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from infercast.bundled import read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError, reading, require
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.hardware.load import is_modelled, networks
from infercast.lazy_classes import dataclass
from infercast.ops import Collective, Op
from infercast.ops.op import BYTES
from infercast.ops.tensor import Lstm, Product, Sdpa, TensorOp, conv2d, kinds
from infercast.predict.array_api import Plain
from infercast.predict.board_power import SUSTAINED_SPREAD, BoardPower, Reading, board_under, meter_reading, sustained
from infercast.predict.estimate import Estimate
from infercast.predict.families import FAMILIES
from infercast.predict.families.family import Shape, Values
from infercast.predict.identity import kernel_profile
from infercast.predict.kernels import KernelModel
from infercast.predict.learned import WITHIN, KnownKernel, Learned, default_artifact, known_kernels, make_predictor
from infercast.predict.operators import GPU, estimate_op, known
from infercast.predict.roofline import Predictor

if TYPE_CHECKING:
    from infercast.engines.base import Deployment
    from infercast.forecast.kernels import StepCost
    from infercast.serve.step import StepShape

OPERATORS = "operators"  # What rests on calls of PyTorch, in data/kernel_options.toml


@cache
def operator_shapes() -> dict[str, Shape]:
    facts = read_data("kernel_options.toml")[OPERATORS]
    return {name: Shape(tuple(each["sizes"]), each["optional"], partial(_build, name)) for name, each in facts.items()}


def _build(family: str, by: Values) -> Op:
    if family in ("linear", "bmm"):
        bias = bool(by.get("bias"))
        return Product(by["m"], by["n"], by["k"], by.get("batch", 1), dtype=by["dtype"], bias=bias)
    if family == "conv2d":
        sides = ("batch", "channels", "size", "out_channels", "kernel_size", "stride")
        return conv2d(*(by[name] for name in sides), groups=by["groups"], dtype=by["dtype"])
    if family == "lstm":
        return Lstm(by["batch"], by["steps"], by["hidden"], by["hidden"], by["layers"], dtype=by["dtype"])
    kind, groups = str(by.get("kernel", family)), read_data("kernel_options.toml")[OPERATORS][family].get("kinds")
    known_kinds = [name for name, each in kinds().items() if each.group in groups] if groups else [family]
    if kind not in known_kinds:
        raise UnknownNameError(f"kernel of {family}", kind, known_kinds)
    rows, cols = (by["elements"], 1) if "elements" in by else (by["rows"], by["width"])
    count = by["vocabulary"] if "vocabulary" in by else np.minimum(by["k"], cols) if "k" in by else 0
    return TensorOp(kind, rows, cols, count=count, dtype=by["dtype"])


def named_kernels(family: str) -> Mapping[str, Any]:
    named: dict[str, dict[str, Any]] = read_data("kernel_options.toml")["named"]
    return named.get("prefill" if family == "decode" else family, {})


def name_kernel(family: str, kernel: str, values: Values, op: Any, gpu: Gpu) -> tuple[Op, str]:
    """The operator that a kernel runs on a GPU, and the variant that it was learned as; empty: the usual one."""
    if kernel not in named_kernels(family):
        raise UnknownNameError(f"kernel of {family}", kernel, named_kernels(family))
    if gpu.vendor != "NVIDIA" and kernel != "triton" and values.get("dtype") not in ("fp32", "tf32"):
        raise InputError(f"{kernel} of {family} is a kernel of NVIDIA's GPUs, and {gpu.name} is none; leave it out")
    facts = named_kernels(family)[kernel]
    asked = str(values.get(facts.get("of", "dtype")) or values.get("dtype", "bf16"))
    stored = str(values.get("kv_dtype", asked))
    for dtype in (asked, stored):
        if dtype not in facts["formats"]:
            raise InputError(f"{kernel} of {family} has no format {dtype!r}; it has {', '.join(facts['formats'])}")
    basis = facts["formats"][stored]
    if basis == OPERATORS and family == "gemm":
        return Product(values["m"], values["n"], values["k"], dtype=asked), ""
    if basis == OPERATORS and (gpu.kernels == "hopper" or "elsewhere" not in facts):
        return _attention(family, facts["sdpa"], values, stored), ""
    basis = facts["elsewhere"] if basis == OPERATORS else basis
    return (op, basis) if family == "gemm" else (replace(op, kernel=basis), "")


def _attention(family: str, kernel: str, values: Values, dtype: str) -> Sdpa:
    if values.get("window"):
        raise InputError(f"{kernel} was measured without a window; leave out --window")
    queries = values["q_len"] if family == "prefill" else 1
    keys = queries + values.get("prefix", 0) if family == "prefill" else values["kv_len"] + 1
    sizes = (values["batch"], values["heads"], queries, keys, values["head_dim"])
    return Sdpa(*sizes, causal=queries > 1, dtype=dtype, kernel=kernel, kv_heads=values["kv_heads"])


def estimate_operator(op: Any, gpu: Gpu) -> Estimate:
    """One plain operator, or one of each size where sizes are arrays."""
    arrays = {each.name: getattr(op, each.name) for each in fields(op) if np.ndim(getattr(op, each.name))}
    if not arrays:
        return estimate_op(op, gpu)
    sizes = zip(*(np.ravel(size).tolist() for size in np.broadcast_arrays(*arrays.values())), strict=True)
    each = [estimate_op(replace(op, **dict(zip(arrays, size, strict=True))), gpu) for size in sizes]
    seconds, low, high = (np.array([getattr(one, end) for one in each]) for end in ("seconds", "low", "high"))
    return Estimate(seconds, low, high, each[0].source, np.array([str(one.bound) for one in each]))


def list_kernels() -> list[dict[str, Any]]:
    """Kernels that can be asked for: family, name, formats, rows that it was learned from, where, and its error."""
    found = []
    for family, facts in read_data("kernel_options.toml")[OPERATORS].items():
        groups = facts.get("kinds", ())
        names = dict.fromkeys(kind.name for kind in kinds().values() if kind.group in groups) or (family,)
        few = ", ".join([*names][:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        found.append(_listed(family, few, _plain_rows(names)))
    tables = {"gemm": "gemm", "prefill": "attention_prefill", "decode": "attention_decode", "moe": "moe"}
    for family, table in tables.items():
        for kernel, facts in named_kernels(family).items():
            rows = _plain_rows((facts["sdpa"],)) if "sdpa" in facts else []
            for stored, basis in facts["formats"].items():
                variant = f"{stored}/{basis}" if family == "moe" else basis or stored
                entries = (each for each in default_artifact().entries if each.gpu != "*")
                mine = (each for each in entries if (each.family, each.variant) == (table, variant))
                rows += [(stored, each.gpu, each.rows, each.held_out_error) for each in mine]
                rows += _plain_rows(("linear",), stored) if basis == OPERATORS and family == "gemm" else []
            found.append(_listed(family, kernel, rows) | {"formats": ", ".join(facts["formats"])})
    return found


def _plain_rows(names: Iterable[str], dtype: str = "") -> list[tuple[str, str, int, float]]:
    """Format, GPU, rows and error of all plain operators of these names."""
    keys = [key for key in known() if key.partition("/")[0] in names and key.endswith(dtype)]
    return [(key.rpartition("/")[2], GPU, known()[key].rows, known()[key].error) for key in keys]


def _listed(family: str, kernel: str, rows: list[tuple[str, str, int, float]]) -> dict[str, Any]:
    count = sum(row[2] for row in rows)
    return {
        "family": family, "kernel": kernel, "formats": ", ".join(sorted({row[0] for row in rows})), "rows": count,
        "measured_on": ", ".join(sorted({row[1] for row in rows})) or "no GPU: physics alone",
        "error": sum(row[2] * row[3] for row in rows) / max(count, 1),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelPower:
    """Of one launch among many like it."""

    watts: float  # Mean board power, what it draws idle included
    low: float  # Lower end of the 80 % interval of the watts
    high: float  # Upper end of the 80 % interval of the watts
    joules: float  # Of one launch
    flops: float
    is_limited: bool  # Whether the board's limit binds, so that launches without a pause take longer than one alone
    source: str  # Where the numbers come from: one of `predict.estimate.SOURCES`
    meter_watts: float | None = None
    """Meter reading in a loop of at most 3,000 launches, as in published tables; None where none was published. In
    short loops it still shows earlier work, and some tables have operands of zeros."""
    meter_low: float | None = None  # Lower end of its 80 % interval
    meter_high: float | None = None  # Upper end of its 80 % interval

    @property
    def joules_per_flop(self) -> float | None:
        """None where a kernel has no operations to speak of."""
        return self.joules / self.flops if self.flops > 0 else None


def kernel_power(board: BoardPower, op: Op, seconds: float, reading: Reading | None = None) -> KernelPower:
    """Power of a kernel that takes ``seconds``; a meter's own ``reading`` of it takes precedence."""
    dynamic = float(np.ravel(board.dynamic_joules(op, seconds))[0])
    wanted = board.idle_watts + dynamic / seconds
    low, high = -WITHIN * board.spread, WITHIN * board.spread
    held = board.held_watts
    if reading is not None and reading.own > 0.0:
        wanted = min(wanted, held) * reading.factor**reading.own
        low, high = min(low, reading.ends[0]), max(high, reading.ends[1])
    watts = min(wanted, held)
    return KernelPower(
        watts=watts, low=min(wanted * exp(low), held), high=min(wanted * exp(high), board.limit_watts),
        joules=watts * seconds, flops=float(np.ravel(op.flops)[0]), is_limited=wanted > held, source=board.source,
        meter_watts=None if reading is None else reading.watts, meter_low=None if reading is None else reading.low,
        meter_high=None if reading is None else reading.high,
    )  # fmt: skip


DTYPES = frozenset(("dtype", "weight_dtype", "kv_dtype", "state_dtype"))
LARGEST = 2**31 - 1  # The largest side of a tensor; products of three of them are far beyond any GPU
LEAST = {"gpus": 2, "stride": 1, "groups": 1, "layers": 1}  # Sizes of which one is not enough, or none
SHAPES = {name: shape for family in FAMILIES.values() for name, shape in family.shapes.items()}
SHAPES |= {
    kind: Shape(("bytes", "gpus"), {}, lambda by, kind=kind: Collective(kind, by["bytes"], int(by["gpus"])))  # type: ignore[misc]
    for kind in ("reduce_scatter", "all_to_all", "send_recv")
}
"""All but those of plain PyTorch. Engines run these collectives beside other kernels, so none is a kernel of a step."""


def shape_of(family: str) -> Shape:
    if family in SHAPES:
        return SHAPES[family]
    if family not in operator_shapes():
        raise UnknownNameError("kernel family", family, (*SHAPES, *operator_shapes()))
    return operator_shapes()[family]


def resolve(family: str, values: Values, gpu: Gpu) -> tuple[Op, str]:
    """The operator that these values describe, and the variant of a kernel that they name; empty: what engines run."""
    kernel, dtype = values.get("kernel"), values.get("dtype")
    is_plain = family == "gemm" and dtype in ("fp32", "tf32") and values.get("weight_dtype") in (None, dtype)
    if family not in SHAPES or (kernel is None and not is_plain):
        return build_op(family, values), ""
    others = {name: value for name, value in values.items() if name != "kernel"}
    return name_kernel(family, str(kernel or "cublas"), others, build_op(family, others), gpu)


def build_op(family: str, values: Values) -> Op:
    shape = shape_of(family)
    names = {*shape.sizes, *shape.optional}
    if not (names >= values.keys() >= {*shape.sizes}):
        known = ", ".join((*shape.sizes, *shape.optional))
        for name in values:
            if name not in names:
                raise InputError(f"{family} has no {name!r}; it takes {known}")
        missing = next(name for name in shape.sizes if name not in values)
        raise InputError(f"{family} needs {missing}; it takes {known}")
    sizes = values.values()
    # Mostly all is as it should be, which takes less time to see at once.
    if {*map(type, sizes)} != {int} or min(sizes) < 1 or max(sizes) > LARGEST or values.get("gpus", 2) < LEAST["gpus"]:
        for name, value in values.items():
            if name not in DTYPES | {"kernel"}:
                _check_size(name, value, least=LEAST.get(name, int(name in shape.sizes)))
    if "kv_heads" in values and int(values["heads"]) % int(values["kv_heads"]):
        raise InputError(f"heads {values['heads']} must be a multiple of kv_heads {values['kv_heads']}")
    if "experts" in values and int(values["topk"]) > int(values["experts"]):
        raise InputError(f"topk {values['topk']} must be at most experts {values['experts']}")
    for name in DTYPES.intersection(values):
        if values[name] is not None and values[name] not in BYTES:
            raise UnknownNameError(name, str(values[name]), BYTES)
    return shape.build({**shape.optional, **values})


def _check_size(name: str, value: Any, least: int) -> None:
    largest_bytes = 2**50
    most = largest_bytes if name == "bytes" else LARGEST
    low, high = (value, value) if type(value) is int else (np.min(value), np.max(value))
    require(low >= least, name, f"be at least {least}", low)
    require(high <= most, name, f"be at most {most}", high)


def read_rows(path: Path) -> list[dict[str, str]]:
    with reading(path, "a CSV table", csv.Error), path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise FileFormatError(path, "has no rows below its header")
    for line, row in enumerate(rows, start=2):
        if None in row:  # where DictReader puts what is left over
            raise FileFormatError(path, "has more cells than its header has columns", line=line)
    return rows


__all__ = ["KnownKernel", "kernel_basis"]


def kernel_basis(gpu: Gpu) -> list[KnownKernel]:
    return known_kernels(gpu, default_artifact(), kernel_profile())


ALONE, ENGINE, LASTING = CONDITIONS = ("alone", "engine", "sustained")
"""Conditions of a kernel: one launch after a pause, with cold operands, as `infercast measure` times it; among the
other kernels of an engine; launches without a pause, at the clock that the power limit leaves."""
ENDS = ("seconds", "low", "high")


@overload
def estimate(kernel: StepShape, /, gpu: Deployment, *, explain: bool = False) -> StepCost: ...
@overload
def estimate(
    kernel: str | Op,
    /,
    gpu: str | Path | Gpu,
    *,
    condition: str = ALONE,
    predictor: str | Predictor = "learned",
    network: str | None = None,
    **sizes: Any,
) -> Estimate: ...
def estimate(
    kernel: Any, /, gpu: Any, *, condition: str = ALONE, predictor: str | Predictor = "learned",
    network: str | None = None, **sizes: Any,
) -> Any:  # fmt: skip
    """Estimate a kernel on a GPU: seconds, an 80 % interval, source and bound.

    ``condition``: ``alone`` is one launch after a pause, as `infercast measure` times it, ``engine`` one among the
    other kernels of an engine, as steps and simulations count it, ``sustained`` launches without a pause, at the clock
    that the board's power limit leaves.

    A kernel is an operator, or named by its family and sizes as on the command line: ``estimate("gemm", "h200-sxm",
    m=4096, n=14336, k=4096)``. Sizes may be arrays, which give arrays; a million products take about a second.
    ``kernel="fa2"`` among the sizes names one of a family's kernels (`infercast estimate --list-kernels`).
    ``network`` joins nodes, for collectives of more GPUs than one has.

    A step, such as ``decode_shape(32, 1400)`` of `infercast.forecast.kernels`, is estimated on a deployment, kernel by
    kernel; with ``explain``, each kernel carries the terms that its estimate is made of.
    """
    if not isinstance(kernel, str) and not isinstance(gpu, str | Path | Gpu):
        from infercast.forecast.kernels import estimate_step  # noqa: PLC0415 - kernels by themselves need no engine

        return estimate_step(gpu, kernel, **sizes)
    device = with_network(gpu if isinstance(gpu, Gpu) else _device(str(gpu)), network)
    chosen = _known_predictor(predictor) if isinstance(predictor, str) else predictor
    if not isinstance(kernel, str):
        if sizes:
            raise InputError(f"an operator has its own sizes; leave out {', '.join(sizes)}")
        return _checked(chosen, kernel, "", device, condition)
    if list in map(type, sizes.values()):
        sizes = {name: np.array(size) if isinstance(size, list) else size for name, size in sizes.items()}
    shape = SHAPES.get(kernel)
    is_usual = shape is not None and "kernel" not in sizes and sizes.get("dtype") not in ("fp32", "tf32")
    if shape is None or not is_usual or not shape.layout or not PLAIN.issuperset(map(type, sizes.values())):
        return _checked(chosen, *resolve(kernel, sizes, device), device, condition)
    key = (kernel, condition, id(device), id(chosen), *sizes, *map(sizes.get, shape.layout))
    if key in _layouts:
        model, op, varied, _ = _layouts[key]
        numbers = [sizes[name] for name in varied]
        if {*map(type, numbers)} == {int} and min(numbers) >= 1 and max(numbers) <= LARGEST:
            size = shape.size(sizes)
            if size is not None:
                return model.like(op, size, condition)
    op = build_op(kernel, sizes)
    if isinstance(chosen, Learned) and condition in (ALONE, ENGINE) and shape.size(sizes) is not None:
        found = (chosen if condition == ENGINE else chosen.alone).model_of(op, device)
        if found is not None and len(_layouts) < MOST_LAYOUTS:
            _layouts[key] = found, op, [*sizes.keys() - {*shape.layout}], (device, chosen)
    return _checked(chosen, op, "", device, condition)


PLAIN, MOST_LAYOUTS = frozenset((int, str, type(None))), 10_000
_layouts: dict[tuple[object, ...], tuple[KernelModel, Op, list[str], object]] = {}
"""What estimates kernels of a layout, the first of them, and what they differ in; ids are held, so that they stay."""


def estimate_power(
    kernel: str | Op, /, gpu: str | Path | Gpu, *, predictor: str | Predictor = "learned", network: str | None = None,
    **sizes: Any,
) -> KernelPower:  # fmt: skip
    """What the board draws while one kernel runs again and again: watts, an 80 % interval, joules of a launch. On an
    H200 and a B200 also what a meter shows in a short loop, as published tables have it (``meter_watts``).
    """
    found = estimate(kernel, gpu, predictor=predictor, network=network, **sizes)
    if np.size(found.seconds) != 1:
        raise InputError(f"power is of one kernel; sizes name {np.size(found.seconds)}")
    device, seconds = gpu if isinstance(gpu, Gpu) else _device(str(gpu)), float(np.ravel(found.seconds)[0])
    op = resolve(kernel, sizes, device)[0] if isinstance(kernel, str) else kernel
    return kernel_power(board_under(device), op, seconds, meter_reading(op, device, seconds))


# Kept, because making them takes longer than an estimate.
_known_predictor = lru_cache(make_predictor)
_device = lru_cache(load_gpu)


def estimate_kernel(
    predictor: Predictor, gpu: Gpu, family: str, values: dict[str, Any], condition: str = ALONE
) -> Estimate:
    found = _checked(predictor, *resolve(family, values, gpu), gpu, condition)
    if np.ndim(found.seconds) == 0:
        return found
    # Attention over a batch is an array of one batch.
    seconds, low, high = (np.asarray(each).item() for each in (found.seconds, found.low, found.high))
    return replace(found, seconds=seconds, low=low, high=high, bound=str(np.asarray(found.bound).item()))


def rank_tiles(gpu: Gpu, values: dict[str, Any], best: Estimate) -> list[dict[str, Any]]:
    """Tiles that thread blocks could have for a product, and parts of ``k``, quickest first: physics by ratios to its
    own best, which takes as long as the ``best`` that was learned, and the same work at the power that leaves.
    """
    from infercast.predict.families.gemm import MOST_SPLITS, SHORTEST_SPLIT, Machine, Shapes, plan_of  # noqa: PLC0415

    op: Any = build_op("gemm", values)
    machine, power = Machine(op, gpu), power_of(gpu, "gemm", values, best)
    shapes, board = Shapes(float(op.m), float(op.n), float(op.k), machine, Plain), board_under(gpu)
    most, rows = min(op.k // SHORTEST_SPLIT, MOST_SPLITS) if machine.splits else 1.0, list[dict[str, Any]]()
    for tile in machine.tiles:
        blocks = shapes.across[tile.row] * shapes.along[tile.col]
        for parts in sorted({1.0, max(min(machine.slots // blocks, most), 1.0)}):
            _, _, rounds, (*pipes, longer, store), reduce = plan_of(shapes, machine, Plain, tile, blocks, parts)
            seconds = max(shapes.warm[1] * longer, *pipes) + store + reduce + machine.launch
            size = f"{tile.rows:.0f} x {tile.cols:.0f}"
            rows.append({"tile": size, "parts_of_k": int(parts), "waves": float(rounds), "seconds": float(seconds)})
    rows.sort(key=lambda row: row["seconds"])
    first, work = rows[0]["seconds"], power.joules - board.idle_watts * float(best.seconds)
    for row in rows:
        row["times_as_long"] = row["seconds"] / first
        row["seconds"] = row["times_as_long"] * float(best.seconds)
        row["watts"] = min(board.idle_watts + work / row["seconds"], board.held_watts)
    return rows


def power_of(gpu: Gpu, family: str, values: dict[str, Any], found: Estimate) -> KernelPower:
    op, seconds = resolve(family, values, gpu)[0], float(found.seconds)
    return kernel_power(board_under(gpu), op, seconds, meter_reading(op, gpu, seconds))


def _checked(predictor: Predictor, op: Op, variant: str, gpu: Gpu, condition: str) -> Estimate:
    if condition not in CONDITIONS:
        raise UnknownNameError("condition", condition, CONDITIONS)
    if op.family in ("tensor", "product", "conv2d", "lstm", "sdpa"):  # Plain PyTorch has its own predictor
        if predictor.is_bound:
            raise InputError("plain operators are estimated as learned, not by the roofline; leave out --predictor")
        found = estimate_operator(op, gpu)
        return replace(_lasting(found, op, gpu) if condition == LASTING else found, condition=condition)
    gpus = getattr(op, "gpus", 1)
    if gpus > gpu.gpus_per_node and gpu.network_bandwidth <= 0:
        raise InputError(
            f"a collective of {gpus} GPUs needs a network: a node of {gpu.name} has {gpu.gpus_per_node}; name one "
            f"(--network {', '.join(networks())}) or use at most {gpu.gpus_per_node} GPUs"
        )
    if not isinstance(predictor, Learned) or not is_modelled(gpu):  # knows of no difference
        return replace(predictor.estimate(op, gpu), condition=condition)
    named = (variant,) if variant else None
    found = (predictor if condition == ENGINE else predictor.alone).estimate(op, gpu, named)
    if getattr(op, "kind", "") == "send_recv":  # nobody measured one: NCCL's other collectives stand for it
        found = replace(found, source="unseen")
    return replace(_lasting(found, op, gpu) if condition == LASTING else found, condition=condition)


def _lasting(found: Estimate, op: Op, gpu: Gpu) -> Estimate:
    """The same at the clock that a long load leaves; what is not known of that widens the interval."""
    longer: Any = sustained(op, gpu, found.seconds)
    known = np.where(longer > 1.0, SUSTAINED_SPREAD, 0.0)
    low, high = (np.sqrt(np.log(end / found.seconds) ** 2 + known**2) for end in (found.low, found.high))
    seconds: Any = found.seconds * longer
    ends = (seconds * np.exp(-low), seconds * np.exp(high))
    if np.ndim(seconds) == 0:
        seconds, ends = float(seconds), (float(ends[0]), float(ends[1]))
    return replace(found, seconds=seconds, low=ends[0], high=ends[1])


def estimate_table(predictor: Predictor, gpu: Gpu, family: str, path: Path) -> Iterator[dict[str, Any]]:
    shape = shape_of(family)
    known = (*shape.sizes, *shape.optional, "kernel")
    for number, row in enumerate(read_rows(path), start=2):
        values = {name: _value(path, number, name, text) for name, text in row.items() if name in known and text}
        try:
            found, *others = (estimate_kernel(predictor, gpu, family, values, each) for each in CONDITIONS)
        except InputError as problem:
            raise FileFormatError(path, str(problem), line=number) from None
        power = power_of(gpu, family, values, found)
        results = {name: getattr(found, name) for name in (*ENDS, "source", "bound")}
        results |= {f"{each.condition}_{end}": getattr(each, end) for each in others for end in ENDS}
        results |= {name: getattr(power, name) for name in ("watts", "joules", "meter_watts")}
        plain = {name: np.ravel(each)[0].item() for name, each in results.items() if isinstance(each, np.ndarray)}
        yield row | results | plain


def _value(path: Path, line: int, name: str, text: str) -> Any:
    """A whole number, or a word for a dtype."""
    if name.endswith("dtype"):
        return text
    try:
        return int(text)
    except ValueError:
        raise FileFormatError(path, f"{name} must be a whole number, not {text!r}", line=line) from None
