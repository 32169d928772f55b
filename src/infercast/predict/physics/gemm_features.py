"""What a learner is told of a matrix product.

Trees only ask whether a value is above a border, so logarithms need not be taken to walk them: columns are made in
their own units, and ``log_`` in a name says how a learner sees them.
"""

from __future__ import annotations

import numpy as np

from infercast.predict.physics.gemm_machine import Machine
from infercast.predict.physics.gemm_plan import Plan, Shapes
from infercast.predict.physics.numbers import Kit, Number
from infercast.predict.physics.terms import Array, log2

SHARES = ("tensor", "l2", "latency", "dram", "store", "reduce", "launch", "quantise")
"""The terms of an estimate: the first four overlap, the others add up."""
# Tiles whose last-round fill is told to the learner: libraries choose among these and others.
FILL_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (192, 192))
# fmt: off
FEATURES: tuple[str, ...] = (
    "log_m", "log_n", "log_k", "log_seconds", "log_n_over_k", *(f"{name}_share" for name in SHARES),
    "miss", "log_bytes_over_l2", "log_weights_over_l2", "log_intensity_over_balance", "log_rounds", "round_fill",
    "log_tile_m", "log_tile_n", "log_split", *(f"fill_{rows}x{cols}" for rows, cols in FILL_TILES),
    "log_rounds_128x128", "m_fill_8", "m_fill_64", "m_fill_256", "n_fill_256", "k_fill_512", "log_bytes_x",
    "log_bytes_w", "scaled", "log_flops_per_sm_clock", "sustained", "log_dram_per_clock", "rows_share",
    "log_rows_per_sm")
# fmt: on
LOGARITHMIC = tuple(name.startswith("log_") for name in FEATURES)


def columns(s: Shapes, a: Machine, x: Kit, seconds: Number, terms: tuple[Number, ...], plan: Plan) -> list[Number]:
    """As in ``FEATURES``, without their logarithms; what is the same for all products is a plain number."""
    tile, split, rounds, _, _ = plan
    ceil, per_sm, m, n, k, each = x.ceil, a.per_sm, s.m, s.n, s.k, 1.0 / seconds
    _, _, m64, m128 = s.across
    n64, n128, n192, n256 = s.along
    m192, m256 = ceil(m * (1 / 192)), ceil(m * (1 / 256))
    # Rounds over whole rounds: how full the last one is on average.
    return [
        *(m, n, k, seconds * 1e6, n / k),
        *[term * each for term in terms],
        *(s.warm[0], s.moved * a.per_cache_byte, s.weights * a.per_cache_byte, s.outputs * k / s.moved * a.balance),
        *(rounds, rounds / ceil(rounds), tile.rows, tile.cols, split),
        *((r := m64 * n64 * per_sm) / ceil(r), (r := m64 * n128 * per_sm) / ceil(r)),
        *((r := m128 * n64 * per_sm) / ceil(r), (square := m128 * n128 * per_sm) / ceil(square)),
        *((r := m128 * n256 * per_sm) / ceil(r), (r := m256 * n128 * per_sm) / ceil(r)),
        *((r := m192 * n192 * per_sm) / ceil(r), square),
        *((r := m * (1 / 8)) / ceil(r), m * (1 / 64) / m64, m * (1 / 256) / m256),
        *(n * (1 / 256) / n256, (r := k * (1 / 512)) / ceil(r)),
        *a.fixed_features,
        *(m * each * a.row_seconds, m * a.per_chip),
    ]


def matrix(values: list[Number], rows: int, logarithmic: tuple[bool, ...] = LOGARITHMIC) -> Array:
    """A row of features for each product, as learners see them."""
    stacked = np.empty((rows, len(logarithmic)))
    for number, (value, is_logarithm) in enumerate(zip(values, logarithmic, strict=True)):
        stacked[:, number] = log2(value) if is_logarithm else value
    return stacked
