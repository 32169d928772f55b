"""Manifold-constrained hyper-connections: several residual streams, mixed before and after each half of a layer."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import HyperConnection
from infercast.predict.array_api import Number, Physics, Plain, kit_of
from infercast.predict.families.family import Ceiling, Family, Shape, dram_seconds, floats, lone

# Halves of a manifold-constrained hyper-connection: streams of a token are read once and written once.
#
# ``pre`` is a thin product over all streams (cut along its depth where rows are few), the balancing of the mixing
# weights, and the weighted sum: two kernels. ``post`` is one kernel that only moves bytes.


FEATURES = (
    "dram_share", "blocks_share", "launch_share", "log_rows", "log_hidden", "log_rows_per_sm", "fill",
    "log_bytes_over_l2", "log_microseconds",
)  # fmt: skip


class Constants(NamedTuple):
    """Fitted on H100, H200 and L40S and rounded."""

    launch: float
    dram: float
    row_clocks: float
    """Clocks of an SM for a row, whatever its length."""
    cache: float = 0.6


KERNELS = {"pre": Constants(8.0e-6, 0.85, 600.0), "post": Constants(2.6e-6, 0.90, 200.0)}


class Connecting:
    """One half on one GPU."""

    def __init__(self, op: HyperConnection, gpu: Gpu) -> None:
        self.op, self.gpu, self.kernel = op, gpu, KERNELS[op.half]
        width = op.streams * op.hidden
        # ``pre`` reads the streams once for the product and once for the sum; ``post`` reads and writes them.
        self.row_bytes = 2.0 * (2.0 * width + op.hidden)
        self.shared = 4.0 * op.weights * width if op.half == "pre" else 0.0

    def physics(self, rows: Number, *, engine: bool = False) -> Physics:
        """So many tokens; in an ``engine`` they take as long as in a table."""
        del engine
        x, gpu, kernel = kit_of(rows), self.gpu, self.kernel
        moved = rows * self.row_bytes + self.shared
        cold = x.miss_share(moved, gpu.l2_bytes * kernel.cache, 2.0)
        terms = {
            "dram": moved * (cold / (gpu.dram_bandwidth * kernel.dram) + (1.0 - cold) / (gpu.l2_bandwidth * 0.4)),
            "blocks": rows / gpu.sms * kernel.row_clocks / gpu.boost_clock,
            "launch": x.like(moved, kernel.launch),
        }
        seconds = terms["launch"] + x.soft_max(3.0, terms["dram"], terms["blocks"] + 1e-12)
        features = x.columns(
            *[terms[name] / seconds for name in ("dram", "blocks", "launch")],
            x.log2(rows),
            Plain.log2(self.op.hidden),
            x.log2(rows / gpu.sms),
            x.fill(rows, gpu.sms),
            *x.logs(moved / gpu.l2_bytes, seconds * 1e6),
        )
        return Physics(seconds, terms, features)


def _ceiling_shape(op: HyperConnection, gpu: Gpu) -> list[Any]:
    return [np.log2(np.maximum(np.ravel(np.asarray(op.rows)), 1) / gpu.sms)]


def _shape(half: str) -> Shape:
    return Shape(
        ("rows", "hidden"),
        {},
        lambda values: HyperConnection(values["rows"], hidden=int(values["hidden"]), half=half),
    )


HYPER_CONNECTION = Family(
    name="hyper_connection",
    position=13,
    archive="sparse",
    op=HyperConnection,
    shapes={f"hyper_connection_{half}": _shape(half) for half in ("pre", "post")},
    step_sizes=("rows",),
    sizes=lambda op: floats(op.rows),
    size_of_one=lambda op: lone(op.rows),
    kind=lambda op: (op.half,),
    core=Connecting,
    core_key=attrgetter("hidden", "streams", "half"),
    features={"hyper_connection": FEATURES},
    shares=("dram", "blocks", "launch"),
    pipes=lambda op, gpu: {"dram": dram_seconds(op, gpu)},
    variants=lambda op, *_: (op.half,),
    spread={"hyper_connection": 8.0},
    ceiling=Ceiling(features=("log_rounds",), shape=_ceiling_shape, variant=attrgetter("half")),
)
