"""Matrix-product libraries on a GPU: fitted efficiencies and delays, and what they come to on one chip.

All constants are shared by all GPUs: they were fitted by least squares on log latency over A100, L40S, H100 and H200
together (SGLang rows), never on one GPU. The L2 shares are not identified by that fit; they were chosen by leaving one
of these GPUs out.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.hardware.kernels import facts_of, is_modelled
from infercast.ops.dtypes import bytes_of, tensor_rate_of
from infercast.ops.gemm import Gemm
from infercast.predict.physics.formats import as_run
from infercast.predict.physics.numbers import Number

# Rows and columns of ``y`` a thread block owns. Small ones serve decode, where ``m`` is a few tokens.
TILES = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 192), (128, 256))
ROWS, COLS = (sorted({tile[side] for tile in TILES}) for side in (0, 1))
PER_ROW, PER_COL = ([1 / side for side in sides] for sides in (ROWS, COLS))
# From this compute capability on, copies are asynchronous (TMA), two blocks share operands, and stores overlap.
ASYNCHRONOUS, MULTICAST = 9, 2.0
# Chips whose L2 has two partitions, which hold some data twice.
PARTITIONED = ("8.0", "9.0", "10.0", "10.3")
# The clock that the constants in seconds below belong to, and how much of a launch does not scale with the clock.
REFERENCE_CLOCK, CLOCK_FREE_LAUNCH = 1.83e9, 0.45
# One step over ``k`` stages this many bytes of a row. Partial sums are fp32.
STEP_BYTES, PARTIAL_BYTES = 128.0, 4.0
# Formats whose kernels (CUTLASS, DeepGEMM) take scales and a fixed schedule without split-K.
SCALED = ("fp8", "fp8_block", "int8", "nvfp4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Constants:
    """Efficiencies and delays of a kernel library, the same on every GPU. Fitted: not to be read as hardware facts."""

    tensor: float = 1.05  # share of peak FLOP/s before the power limit
    throttle: float = 1.36  # exponent of the sustained share of the boost clock
    throttle_after: float = 143e-6  # seconds of multiplying after which half of the throttling is felt
    small_tile: float = 40.7  # side of a tile at which half of the rate is lost, without asynchronous copies
    whole_rounds: float = 0.509  # 1: a partly full round costs a whole one; 0: work is spread evenly
    step: float = 447.0  # cycles that a step over k takes at least
    l2: float = 1.1  # share of the L2 bandwidth for operands
    dram: float = 0.775  # share of the DRAM bandwidth
    warm: float = 0.231  # share of the L2 bandwidth at which warm weights stream
    miss_sharpness: float = 21.8
    copies_margin: float = 0.937  # L2 bytes that a byte of the rotating copies needs
    split_cache: float = 0.659  # share of L2 that holds distinct data where it has two partitions
    stream: float = 75.1  # bytes a clock that one SM can pull from DRAM
    store: float = 2.13e-6  # seconds to store one 128 x 128 tile
    reduce: float = 2.18e-6  # delay of adding partial sums
    reduce_l2: float = 0.252  # share of the L2 bandwidth at which they are added
    launch: float = 3.28e-6
    cold_start: float = 0.368e-6  # until the first bytes of cold weights arrive
    power: float = 5.18  # of the soft maximum
    async_step: float = 0.471  # these five: factors where copies are asynchronous
    async_store: float = 0.444
    async_dram: float = 1.1
    async_launch: float = 0.76
    async_cold: float = 2.46
    split: bool = True  # whether the library splits k


CUBLAS = Constants()
# fmt: off
CUTLASS = Constants(
    tensor=0.75, throttle=2.2, throttle_after=4.08e-3, small_tile=24.5, whole_rounds=0.7, step=256.0, l2=0.7,
    dram=0.758, warm=0.641, miss_sharpness=20.0, copies_margin=0.963, split_cache=0.499, stream=72.7, store=2.09e-6,
    launch=2.43e-6, cold_start=0.319e-6, power=3.78, async_step=0.774, async_store=0.145, async_dram=0.978,
    async_launch=1.45, async_cold=3.55, split=False)
# fmt: on
# Products in fp32 have no tensor cores: steps are short and nothing splits k. From two kernels of an H200, the routers
# of GLM-5 (256 experts, hidden size 6,144): 52 us for 32 rows, 508 us for 8,192.
PLAIN = replace(CUBLAS, step=963.0, split=False)
# Quantising ``x``: launch seconds, share of the DRAM bandwidth, and seconds an SM needs for a row at least.
QUANTISE_LAUNCH, QUANTISE_DRAM, QUANTISE_ROW = 2.0e-6, 0.595, 0.194e-6
# Where an engine takes whole chunks of a row (data/kernels.toml, quantisers): values of a chunk, threads of a row.
CHUNK, ROW_THREADS = 2048.0, 1024


@cache
def _quantisers() -> dict[str, dict[str, float]]:
    quantisers: dict[str, dict[str, float]] = read_data("kernels.toml")["quantisers"]
    return quantisers


class Tile:
    """A tile on one GPU, or arrays of them."""

    __slots__ = ("col", "cols", "covered", "flop", "l2", "row", "rows", "store")

    def __init__(self, rows: Number, cols: Number, flop: Number, l2: Number, store: Number) -> None:
        """Seconds of a round: ``flop`` to multiply and ``l2`` to read for each 1 of ``k``, ``store`` to store."""
        self.rows, self.cols, self.flop, self.l2, self.store = rows, cols, flop, l2, store

    def placed(self, rows: int, cols: int) -> Tile:
        """On the menu: its places among `ROWS` and `COLS`, and up to which ``m`` a lower tile is never slower."""
        self.row, self.col = ROWS.index(rows), COLS.index(cols)
        self.covered = max((height for height, width in TILES if width == cols and height < rows), default=0)
        return self


class Machine:
    """A library's constants on one GPU and for one number format, as plain rates and delays."""

    def __init__(self, op: Gemm, gpu: Gpu) -> None:
        op = as_run(op, gpu)
        major = gpu.compute_capability.partition(".")[0]
        late = major.isdigit() and int(major) >= ASYNCHRONOUS
        slow = REFERENCE_CLOCK / gpu.boost_clock
        facts = facts_of(gpu) if is_modelled(gpu) else None
        per_launch = (CLOCK_FREE_LAUNCH + (1 - CLOCK_FREE_LAUNCH) * slow) * (facts.launch if facts else 1.0)
        self.gpu, self.batch, self.scaled = gpu, float(op.batch), op.dtype in SCALED
        self.constants = c = CUTLASS if self.scaled else PLAIN if op.dtype == "fp32" else CUBLAS
        self.bytes_x, self.bytes_w = bytes_of(op.dtype), bytes_of(op.weight_dtype or op.dtype)
        self.input_bytes, self.weight_bytes = self.batch * self.bytes_x, self.batch * self.bytes_w
        self.output_bytes, self.peak = self.batch * bytes_of(op.out_dtype), gpu.dense_flops(tensor_rate_of(op.dtype))
        self.per_sm, self.slots = self.batch / gpu.sms, gpu.sms / self.batch
        self.whole, self.part = c.whole_rounds, 1 - c.whole_rounds
        self.slower, self.throttle_after = gpu.sustained_fraction**-c.throttle - 1, c.throttle_after
        self.steps_per_k, self.step = (
            self.bytes_x / STEP_BYTES,
            c.step * (c.async_step if late else 1.0) / gpu.boost_clock,
        )
        self.cache = gpu.l2_bytes * (c.split_cache if gpu.compute_capability in PARTITIONED else 1.0)
        self.copies_margin, self.miss_sharpness = c.copies_margin, c.miss_sharpness
        self.warm_byte = 1 / (gpu.l2_bandwidth * c.warm)
        self.miss_byte = 1 / (gpu.dram_bandwidth * c.dram * (c.async_dram if late else 1.0)) - self.warm_byte
        self.drawn = gpu.dram_bandwidth / (c.stream * gpu.boost_clock * gpu.sms)
        self.splits, self.reduce = c.split, c.reduce * slow
        self.reduce_value = self.batch * PARTIAL_BYTES / (gpu.l2_bandwidth * c.reduce_l2)
        self.launch = c.launch * (c.async_launch if late else 1.0) * per_launch
        self.cold_start = c.cold_start * (c.async_cold if late else 1.0)
        self.quantise = QUANTISE_LAUNCH * per_launch
        self.quantise_value = self.batch * (bytes_of("bf16") + self.bytes_x) / (QUANTISE_DRAM * gpu.dram_bandwidth)
        self.quantise_row, self.quantise_chunk = self.batch * QUANTISE_ROW / gpu.sms, 0.0
        if op.dtype == "fp8" and (chunked := _quantisers().get(op.quantiser)):
            slots = facts.threads_per_sm // ROW_THREADS if facts else 2
            self.quantise_row = self.batch * chunked["row"] * 2 / (slots * gpu.sms)
            self.quantise_chunk = self.batch * chunked["chunk"] / gpu.sms
        self.per_cache_byte, self.balance = 1 / gpu.l2_bytes, self.batch * 2 * gpu.dram_bandwidth / self.peak
        self.per_chip, self.row_seconds = 1 / gpu.sms, 1e-6 / gpu.sms
        self.tiles = tuple(self._tile(late, slow, rows, cols) for rows, cols in TILES)
        self.tile_table = np.array([[t.rows, t.cols, t.flop, t.l2, t.store] for t in self.tiles]).T
        self.fixed_features = (
            *(self.bytes_x, self.bytes_w, float(not c.split), self.peak / (gpu.sms * gpu.boost_clock)),
            *(gpu.sustained_fraction, gpu.dram_bandwidth / gpu.boost_clock),
        )

    def _tile(self, late: bool, slow: float, rows: int, cols: int) -> Tile:
        c, gpu = self.constants, self.gpu
        lost = 0.0 if late else 0.5 * c.small_tile * (1 / rows + 1 / cols)
        flop = 2 * rows * cols * (1 + lost) * gpu.sms / (self.peak * c.tensor)
        l2_rate = gpu.l2_bandwidth * c.l2 * (MULTICAST if late else 1.0) / gpu.sms
        store = c.store * (c.async_store if late else 1.0) * slow / (128 * 128)
        l2 = (rows * self.bytes_x + cols * self.bytes_w) / l2_rate
        return Tile(float(rows), float(cols), flop, l2, store * rows * cols).placed(rows, cols)

    @cached_property
    def singles(self) -> Machine:
        """The same with constants in single precision, as arrays: numpy takes them faster than Python's numbers."""
        twin = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, float):
                setattr(twin, name, np.array(value, dtype=np.float32))
        twin.tile_table = self.tile_table.astype(np.float32)
        twin.tiles = tuple(
            Tile(*(np.array(value) for value in values)).placed(*sides)
            for values, sides in zip(twin.tile_table.T, TILES, strict=True)
        )
        return twin
