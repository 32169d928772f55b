"""Power and energy of a board, the power limit that lowers its clock under heavy products, and what meters read.

Kernels add the energy of their operations, bytes and busy multiprocessors to idle power. Boards that were not metered
are scaled from one that was: idle and active power with the geometric mean of silicon x clock and TDP, the energy of
an operation with TDP / (tensor rate x sustained clock), that of a byte with its power `BYTES_FOLLOW`. How far a step
falls below the full clock follows from the rate and duration of its products, by vLLM steps on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from infercast.bundled import DATA, read_data
from infercast.hardware import Gpu, load_gpu
from infercast.lazy_classes import NamedTuple, dataclass, field, fields, replace
from infercast.ops import Collective, Gemm, MoE, Op
from infercast.ops.op import BYTES, Quantity, bytes_of, quantise, tensor_rate_of
from infercast.predict.array_api import Array, miss_share
from infercast.predict.families import FAMILIES
from infercast.predict.fitted import Artifact, Forest, Inputs, load_artifact

REFERENCE = "h200-sxm"  # The board that others are scaled from: its joules were counted
BYTES_FOLLOW = 0.7
GDDR_PICOJOULES = 30.0
GDDR_IDLE = 0.6
"""Idle power of a board with GDDR as a share of one with stacked memory: published RTX 50 draw 5 to 18 % less."""
MOST_WORK = 4.0  # Chips without tensor cores spend far more on an operation, but not on a byte
PICO = 1e-12
SIBLINGS = {"blackwell": ("b200-sxm",), "blackwell-ultra": ("b200-sxm",), "hopper": ("h200-sxm", "h100-sxm")}
"""Metered boards of an architecture; of several the one with the nearest bandwidth is taken."""
SPREAD = {"sibling": 0.12, "unseen": 0.2, "typical": 0.25}
"""Standard deviation of the logarithm of a run's power, where a board was not metered."""
BLOCK_BYTES, BLOCK_FLOPS = 32 * 1024, 4.0e6  # Bytes or operations of a busy multiprocessor, at least
TILE_ROWS = 16  # Rows of the smallest tile of kernels for experts ...
PADDED_ROW = 0.4  # ... and the share that one of zeros costs in 16 bits: narrow weights are unpacked for each tile
COLLECTIVE_SHARE = 0.15  # Share of the multiprocessors that carry a collective: 16 to 32 of NCCL's channels
HELD = 0.987  # Share of its limit that a board holds while the limit binds: 691 of 700 W and 986 of 1,000 W
BURST = 1.41  # Times the TDP, the most that a board draws in bursts of milliseconds, before the limit binds
FLOP_EXPONENT, BYTE_EXPONENT, ACTIVE_EXPONENT = 0.8, 0.4, 1.8
"""Powers of the clock that the energies of an operation and of a byte, and active power, follow with the voltage."""
IDLE_FIXED = 0.64  # Share of idle power that stays at the lowest clock: 77 of 120 W on an H200
LEAST_CLOCK = 0.15  # The lowest share of its clock that a board falls to


@dataclass(frozen=True, slots=True)
class BoardPower:
    """What one GPU draws, in watts, and what work costs on it, in joules."""

    idle_watts: float  # A program holds the GPU and its clocks are up; also what is drawn under the work of kernels
    active_watts: float  # On top while a kernel fills all multiprocessors
    flop: float  # Joules of a 16-bit operation of a product
    dram: float  # Joules of a byte of memory
    l2: float  # Joules of a byte that is still in L2
    spread: float  # Standard deviation of the logarithm of the power of a run
    source: str  # Where the numbers come from: one of `predict.estimate.SOURCES`
    limit_watts: float  # What the board may draw
    burst_watts: float  # The most that the board draws for milliseconds
    sms: int
    formats: Mapping[str, float] = field(hash=False)  # Operations of other formats as shares of a 16-bit one
    families: Mapping[str, Mapping[str, float]] = field(hash=False)
    """What an operation (``flop``) or a byte (``byte``) of a family costs more than one of a product."""
    clock: float = 1.0  # Share of the unhindered clock that the numbers are for

    @property
    def held_watts(self) -> float:
        return HELD * self.limit_watts

    def dynamic_joules(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        """Energy of one launch above idle power; ``warm``: share of its bytes in L2; none in an engine."""
        work, more = work_of(op), self.families.get(op.family, {})
        share = self.formats.get(tensor_rate_of(op.compute_dtype), 1.0) * more.get("flop", 1.0)
        byte = (self.dram + (self.l2 - self.dram) * warm) * more.get("byte", 1.0)
        busy = self.active_watts * occupied(op, work, self.sms) * seconds
        most = (self.burst_watts - self.idle_watts) * seconds
        joules = np.minimum(work.flops * (self.flop * share) + work.bytes * byte + busy, most)
        return joules if isinstance(joules, np.ndarray) and joules.ndim else float(joules)

    def watts(self, op: Op, seconds: Quantity, *, warm: Quantity = 0.0) -> Quantity:
        power = self.idle_watts + self.dynamic_joules(op, seconds, warm=warm) / seconds
        held = np.minimum(self.held_watts, power)
        return held if isinstance(held, np.ndarray) and held.ndim else float(held)

    def at_clock(self, fraction: float) -> BoardPower:
        """The same board at a share of its clock: its voltage, and with it the energy of work, falls too."""
        change = fraction / self.clock
        return replace(
            self, idle_watts=self.idle_watts * (IDLE_FIXED + (1.0 - IDLE_FIXED) * change**ACTIVE_EXPONENT),
            active_watts=self.active_watts * change**ACTIVE_EXPONENT, flop=self.flop * change**FLOP_EXPONENT,
            dram=self.dram * change**BYTE_EXPONENT, l2=self.l2 * change**FLOP_EXPONENT, clock=fraction,
        )  # fmt: skip


@cache
def energy_data() -> dict[str, Any]:
    return read_data("energy.toml")


def board_power(gpu: Gpu, limit_watts: float | None = None, *, known: str | None = None) -> BoardPower:
    """What is known of a GPU's power, or scaled from a ``known`` one; ``limit_watts``: if not its TDP."""
    if known is None and gpu.name in (boards := energy_data()["boards"]):
        board = _metered(gpu.name, gpu, boards[gpu.name].get("source", "measured"))
    else:
        names = SIBLINGS.get(gpu.architecture, ())
        sibling = min(
            names, key=lambda name: abs(math.log(load_gpu(name).dram_bandwidth / gpu.dram_bandwidth)), default=None
        )
        base = known or sibling or REFERENCE
        source = "sibling" if base == sibling else "unseen" if gpu.vendor == "NVIDIA" else "typical"
        board = _scaled(_metered(base, gpu, source), load_gpu(base), gpu)
    return board if limit_watts is None else replace(board, limit_watts=limit_watts)


def _metered(name: str, gpu: Gpu, source: str) -> BoardPower:
    data = energy_data()
    row = {**data["boards"].get(data["boards"][name].get("base"), {}), **data["boards"][name]}
    return BoardPower(
        **{name: row[name] for name in ("idle_watts", "active_watts")},
        **{name: row[name] * PICO for name in ("flop", "dram", "l2")}, spread=SPREAD.get(source, row["spread"]),
        source=source, limit_watts=gpu.tdp, burst_watts=BURST * gpu.tdp, sms=gpu.sms, formats=data["formats"],
        families=data["families"],
    )  # fmt: skip


def _scaled(board: BoardPower, known: Gpu, gpu: Gpu) -> BoardPower:
    chip = (_silicon(gpu) * gpu.boost_clock) / (_silicon(known) * known.boost_clock)
    power = (chip * gpu.tdp / known.tdp) ** 0.5
    work = _joules_per_flop(gpu) / _joules_per_flop(known)
    gddr = (gpu.memory == "gddr") - (known.memory == "gddr")
    moved = min(work, MOST_WORK) ** BYTES_FOLLOW
    return replace(
        board, idle_watts=board.idle_watts * power * GDDR_IDLE**gddr, active_watts=board.active_watts * power,
        flop=board.flop * work, dram=board.dram * moved + GDDR_PICOJOULES * PICO * gddr, l2=board.l2 * moved,
    )  # fmt: skip


def _silicon(gpu: Gpu) -> float:
    """Square millimetres of its multiprocessors with their share of the die."""
    return float(energy_data()["silicon"][gpu.architecture]) * gpu.sms


def _joules_per_flop(gpu: Gpu) -> float:
    return float(gpu.tdp / (max(gpu.whole_tensor_flops, gpu.dense_flops("bf16")) * gpu.sustained_fraction**0.5))


class BoardWork(NamedTuple):
    flops: Quantity
    bytes: Quantity


def work_of(op: Op) -> BoardWork:
    if isinstance(op, Collective):
        return BoardWork(op.flops, 2.0 * op.link_bytes)
    moved = op.bytes_read + op.bytes_written
    return BoardWork(_tiled_flops(op), moved + _others_bytes(op)) if isinstance(op, MoE) else BoardWork(op.flops, moved)


def _tiled_flops(op: MoE) -> Quantity:
    """Operations of whole tiles: an expert multiplies at least `TILE_ROWS`, and half a tile more than its rows."""
    hit = np.maximum(op.experts_hit, 1e-9)
    padded = hit * np.maximum(TILE_ROWS, op.routed_rows / hit + TILE_ROWS / 2) - op.routed_rows
    share = PADDED_ROW if bytes_of(op.weight_dtype or op.dtype) == 2.0 else 1.0
    tiled: Quantity = op.flops * (1.0 + share * padded / np.maximum(op.routed_rows, 1e-9))
    return tiled


def _others_bytes(op: MoE) -> Quantity:
    """Experts of other GPUs: kernels that take all pairs of tokens and experts write zeros for those and read them."""
    if op.num_local >= op.experts:
        return 0.0
    others: Quantity = np.maximum(op.tokens * op.topk - op.routed_rows, 0.0)
    first = (op.matrices - 1) * op.inter * 2
    return others * (2 * first + 2 * op.inter + 6 * op.hidden)


def occupied(op: Op, work: BoardWork, sms: int) -> Quantity:
    """Share of the multiprocessors that a launch keeps busy, from 0 to 1."""
    if isinstance(op, Collective):
        return COLLECTIVE_SHARE
    share: Quantity = np.minimum(np.maximum(work.bytes / BLOCK_BYTES, work.flops / BLOCK_FLOPS) / sms, 1.0)
    return share


FREE_SHARE, FULL_SHARE = 0.30, 0.75
"""Shares of the tensor cores' peak: up to the first the board stays within its limit, at the second it is far above."""
SETTLE_SECONDS = 0.08  # Time constant of the clock, down and up again: it goes 63 % of the way
LOST = 0.60
"""Exponent of the sustained share of the boost clock: kernels wait for memory too, so they lose less than the clock."""
NARROW = 0.65  # What an operation of a narrow format draws, as a share of a 16-bit one
READING, MULTIPLYING = Gemm(1, 16384, 16384), Gemm(8192, 8192, 8192)
"""A product that only reads weights, and one that only multiplies: the two loads that a limit is derived from."""
READING_SHARE, MULTIPLYING_SHARE = 0.85, 0.8
"""Shares of the bandwidth and of the tensor cores' peak at which they do at the full clock."""
SLOWER_READING, FEW_CLOCKS, SLOWER_CACHES = 0.1, 0.55, 0.45
"""Reading memory slows with the first power of the clock's share, below the second share with the third: unchecked."""
THROTTLED = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.throttled))
SUSTAINED = {
    "gemm": (FREE_SHARE, FULL_SHARE, 1.1), "gemm/narrow": (0.0, 0.5, 0.5), "attention": (0.0, 0.5, 1.6),
    "moe": (0.0, 0.5, 1.0),
}  # fmt: skip
"""Of one kernel launched without a pause: shares of its format's peak at which it begins to lose and loses most, and
that loss as a multiple of a step's. From rows of our sweep at the limit: 3.5 to 5.3 % off, where bursts are 8 to 16
% off."""
SUSTAINED_SPREAD = 0.07  # Logarithm of how far off that is, either end of the 80 % interval
HALVINGS = 30


class Limits(NamedTuple):
    unthrottled_load: float  # Share of the tensor cores' peak up to which products stay within the limit
    max_slowdown: float  # The largest share by which products take longer ...
    always: float  # ... than all kernels do, by this share


@lru_cache(maxsize=64)
def power_limits(gpu: Gpu) -> Limits:
    """By the board's own limit, or by a lower one that an operator has set."""
    most = float(gpu.sustained_fraction**-LOST) - 1.0
    if gpu.board_limit >= gpu.tdp:
        return Limits(FREE_SHARE, most, 0.0)
    board, limit = board_power(gpu.unlimited or gpu, math.inf), gpu.board_limit
    reads = float(READING.bytes_read) / (READING_SHARE * gpu.dram_bandwidth)
    multiplies = float(MULTIPLYING.flops) / (MULTIPLYING_SHARE * (gpu.unlimited or gpu).dense_flops("bf16"))
    reading = min(float(board.watts(READING, reads)), 0.95 * gpu.tdp)
    free = max((limit - reading) / (gpu.tdp - reading), 0.0) * FREE_SHARE
    always = _slower_reading(_clock_under(board, READING, reads, limit, _slower_reading))
    whole, held = (
        _clock_under(board, MULTIPLYING, multiplies, each, lambda clock: 1 / clock) for each in (gpu.tdp, limit)
    )
    return Limits(free, max((1.0 + most) * whole / held / always - 1.0, 0.0), always - 1.0)


def _slower_reading(clock: float) -> float:
    """How many times longer reading memory takes at a share of the clock."""
    return float(clock**-SLOWER_READING * max(FEW_CLOCKS / clock, 1.0) ** SLOWER_CACHES)


def _clock_under(board: BoardPower, op: Gemm, seconds: float, limit: float, slower: Callable[[float], float]) -> float:
    """Share of the clock at which a load of ``seconds`` at the full clock draws no more than ``limit``."""
    low, high = LEAST_CLOCK, 1.0
    if float(board.watts(op, seconds)) <= limit:
        return high
    for _ in range(HALVINGS):
        clock = (low + high) / 2
        drawn = float(board.at_clock(clock).watts(op, seconds * slower(clock)))
        low, high = (clock, high) if drawn <= limit else (low, clock)
    return low


def board_under(gpu: Gpu) -> BoardPower:
    """What a board draws under the limit and at the clock that an operator has set."""
    board = board_power(gpu.unlimited or gpu, gpu.board_limit)
    return board if gpu.clock_share == 1.0 else board.at_clock(gpu.clock_share)


def throttle(gpu: Gpu, products: float, seconds: float) -> float:
    """How many times longer the products of a step take, given the operations of all (narrow formats count less)."""
    limits = power_limits(gpu)
    load = tensor_load(gpu.dense_flops("bf16"), products, seconds, limits.unthrottled_load)
    return 1.0 + limits.max_slowdown * load * throttle_fraction(seconds)


def tensor_load(peak: float, products: float, seconds: float, free: float) -> float:
    """Share of the largest slowdown that repeated steps of these operations settle at, from 0 to 1."""
    share = (products / max(seconds, 1e-12) / peak - free) / (FULL_SHARE - free)
    return min(max(share, 0.0), 1.0)


def throttle_fraction(seconds: float) -> float:
    """Share of that slowdown that a single step reaches after a pause."""
    turns = seconds / SETTLE_SECONDS
    return 1.0 - (1.0 - math.exp(-turns)) / turns


def throttle_decoding(gpu: Gpu, products: Any, seconds: Any) -> Any:
    """The same of one of many decode steps: reading draws as much. ``seconds`` leave attention and the head out."""
    share = products / np.maximum(seconds, 1e-12) / gpu.dense_flops("bf16")
    return 1.0 + power_limits(gpu).max_slowdown * np.clip(share / FULL_SHARE, 0.0, 1.0)


def sustained(op: Op, gpu: Gpu, seconds: Quantity) -> Quantity:
    """How many times longer than in a burst of ``seconds`` a kernel takes that is launched without a pause."""
    narrow = op.family == "gemm" and weight_of(op.compute_dtype) < 1.0
    found = SUSTAINED.get("gemm/narrow" if narrow else op.family)
    if found is None:
        return 1.0
    free, full, lost = found
    share = np.reshape(op.flops, np.shape(seconds)) / seconds / gpu.dense_flops(tensor_rate_of(op.compute_dtype))
    longer: Quantity = 1.0 + lost * power_limits(gpu).max_slowdown * np.clip((share - free) / (full - free), 0.0, 1.0)
    return longer


def longest_limited(gpu: Gpu, products: Any) -> Any:
    """Duration above which a step of these operations never reaches the limit."""
    return products / (max(power_limits(gpu).unthrottled_load, 1e-6) * gpu.dense_flops("bf16"))


def weight_of(dtype: str) -> float:
    return 1.0 if dtype in ("bf16", "fp16", "fp32", "tf32") else NARROW


# Power readings of kernels repeated in a loop: their physics, and a learned correction for metered boards.

PARTS = ("active_watts", "flop", "dram", "l2")  # What of a board the energy of a launch is a sum of
MOST_LAUNCHES, METER_SECONDS = 3000, 1.3
DEFAULT_KERNEL = 0.0  # The number that a fit gives the default engine's kernel of a family
CONSTANT = {"mla": (0.33, 0.5), "sparse_attention": (0.33, 0.5)}
"""Tables of whole modules repeat one number: share of an operation's energy on zeros, and of a byte's (assumed)."""
COPIES, COPIED = 6, ("bf16", "fp8")
"""Copies of the weights that tables of the default engine's products go round, and in which formats."""
KEPT, SHARPNESS = 0.55, 4.0  # Share of L2 that holds what a loop comes back to, and how sharp that is
SIZES = (
    *("m", "n", "k", "tokens", "hidden", "inter", "experts", "topk", "local_experts", "heads", "kv_heads", "head_dim"),
    *("window", "images", "rows", "read_per_row", "chunk", "channels", "queries", "keys", "sequences"),
)
FEATURES = (
    *("log_loop", "raw_share", *(f"{name}_share" for name in PARTS), *(f"log2_{name}" for name in SIZES)),
    *("rate_bits", "weight_bits", "kv_bits", "operators", "updates", "kernel"),
)


@dataclass(frozen=True, slots=True)
class Loops:
    """Kernels of one family on one GPU, each repeated in a loop while a meter is read. A published table repeats a
    launch at most `MOST_LAUNCHES` times with the same operands: what is small stays in L2, and a loop shorter than
    `METER_SECONDS` is over before the meter has *settled*.
    """

    parts: Array  # What each of a board's four numbers is multiplied by in the energy of a launch
    seconds: Array  # Of a launch
    lasts: Array  # Seconds that a loop lasts at most
    shape: Array  # Sizes and formats of the kernel

    @property
    def is_settled(self) -> Array:
        return np.asarray(self.lasts > METER_SECONDS)

    def raw_watts(self, board: BoardPower) -> Array:
        """Power by a board's numbers, if no limit bound."""
        numbers = np.array([getattr(board, name) for name in PARTS])
        return np.asarray(board.idle_watts + self.parts @ numbers / self.seconds)

    def power(self, board: BoardPower) -> Array:
        return np.minimum(board.held_watts, self.raw_watts(board))

    def features(self, board: BoardPower) -> Array:
        numbers = np.array([getattr(board, name) for name in PARTS])
        shares = self.parts * numbers / (self.seconds * board.limit_watts)[:, None]
        columns = [np.log(self.lasts), self.raw_watts(board) / board.limit_watts, *shares.T, *self.shape.T]
        return np.column_stack(columns)


def loops_of(family: str, calls: Sequence[tuple[Op, int]], gpu: Gpu, seconds: Any, *, copies: int = 1) -> Loops:
    """Loops of operators with their launches, of ``seconds`` once, going round ``copies`` of the operands."""
    seconds = np.atleast_1d(np.asarray(seconds, dtype=float))
    board, rows = board_power(gpu), seconds.size
    moved = sum(_flat(work_of(op).bytes, rows) * count for op, count in calls) * copies
    warm = 1.0 - miss_share(np.asarray(moved), KEPT * gpu.l2_bytes, SHARPNESS)
    total = np.zeros((rows, len(PARTS)))
    # A module's kernels share its time as they share its work: what is active is counted once.
    for op, count in calls:
        launches = count * np.column_stack([_flat(each, rows) for each in parts_of(board, op, seconds, warm)])
        total[:, 1:] += launches[:, 1:]
        total[:, 0] = np.maximum(total[:, 0], launches[:, 0])
    operation, byte = CONSTANT.get(family, (1.0, 1.0))
    total *= np.array([1.0, operation, byte, byte])
    return Loops(total, seconds, MOST_LAUNCHES * seconds * copies, _shape(calls, rows))


def tabled_calls(op: Op) -> tuple[tuple[Op, int], ...]:
    """What tables time as one: a product in a narrow format comes with the kernel that quantises its input."""
    if not isinstance(op, Gemm) or op.dtype in ("bf16", "fp16"):
        return ((op, 1),)
    quantised = replace(quantise(op.m, 1), read_per_row=2.0 * op.k, written_per_row=1.0 * op.k)  # type: ignore[arg-type]
    return ((op, 1), (quantised, 1))


def copies_of(op: Op) -> int:
    """Sets of operands that a table of the default engine goes round."""
    return COPIES if isinstance(op, Gemm) and op.dtype in COPIED and op.weight_dtype in (None, op.dtype) else 1


def parts_of(board: BoardPower, op: Op, seconds: Any, warm: Any) -> list[Any]:
    """What each of the four numbers is multiplied by in the energy of a launch."""
    nothing = replace(board, active_watts=0.0, flop=0.0, dram=0.0, l2=0.0, burst_watts=np.inf)
    return [replace(nothing, **{name: 1.0}).dynamic_joules(op, seconds, warm=warm) for name in PARTS]  # type: ignore[arg-type]


def _shape(calls: Sequence[tuple[Op, int]], rows: int) -> Array:
    """Sizes and formats of the operator that does most, and which kernel it is."""
    op = max((op for op, _ in calls), key=lambda each: float(np.sum(np.ravel(each.flops))))
    names = {each.name for each in fields(op)}  # type: ignore[arg-type]
    sizes = (getattr(op, name) if name in names else 0 for name in SIZES)
    columns = [np.log2(np.maximum(_flat(0 if size is None else size, rows), 0.5)) for size in sizes]
    rate = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "fp4": 4.0}.get(tensor_rate_of(op.compute_dtype), 32.0)
    dtype = str(getattr(op, "dtype", "bf16"))
    weight = 8.0 * BYTES.get(getattr(op, "weight_dtype", None) or dtype, 2.0)
    cached = 8.0 * BYTES.get(getattr(op, "kv_dtype", None) or "bf16", 2.0)
    updates = float(bool(getattr(op, "update", op.family == "state_update")))
    columns += [_flat(each, rows) for each in (rate, weight, cached, float(len(calls)), updates, DEFAULT_KERNEL)]
    return np.column_stack(columns)


def _flat(value: Any, rows: int) -> Array:
    return np.asarray(np.broadcast_to(np.ravel(np.asarray(value, dtype=float)), rows))


POWER = Inputs(
    "power", {"power": FEATURES}, ("data/energy.toml", "predict/board_power.py"),
)  # fmt: skip
ARCHIVE = DATA / "fitted" / "power.npz"
ENGINE = "*"
OWN = frozenset(("encoder_attention", "recurrent", "attention_decode"))
"""Families whose settled loops read a kernel's own power: random operands, nothing compiles, no joules disagree."""
RECURRENT = frozenset(("scan", "state_update", "convolution"))
SIMPLE = frozenset(("gemm", "encoder_attention", "moe", "quantise"))


@dataclass(frozen=True, slots=True)
class Reading:
    watts: float
    low: float  # Lower end of the 80 % interval, from readings of shapes that were held out
    high: float
    factor: float  # Times the power by physics
    own: float  # How much of the factor is the kernel's own power: from 0, none of it, to 1
    ends: tuple[float, float]  # Ends of the 80 % interval of the factor's logarithm


@dataclass(frozen=True, slots=True)
class Reader:
    """A learned factor from power by physics to what a meter reads, of one family on one GPU. It is the kernel's own
    only where the loop settles and operands are random (`OWN`). Steps and runs never use it.
    """

    forest: Forest
    short: tuple[float, float]
    """Of the logarithm of the factor's error on held-out shapes, the 10th and the 90th percentile ..."""
    settled: tuple[float, float]  # ... and the same of loops that settle

    def factors(self, loops: Loops, board: BoardPower) -> Any:
        return np.exp(self.forest.predict(loops.features(board)))

    def read(self, loops: Loops, board: BoardPower) -> Any:
        return np.minimum(loops.power(board) * self.factors(loops, board), board.limit_watts)

    def ends(self, loops: Loops) -> Any:
        """Ends of the 80 % interval of the logarithm of each reading."""
        return np.where(loops.is_settled[:, None], self.settled, self.short)


def family_of_reading(op: Op) -> str | None:
    """The published family that a kernel belongs to; None where no table has kernels like it."""
    if any(np.size(getattr(op, name, 1)) > 1 for name in SIZES):
        return None
    if op.family == "attention":
        if getattr(op, "latent_kv", False) or getattr(op, "head_dim", 0) != getattr(op, "value_dim", 0):
            return None
        return "attention_decode" if np.all(np.asarray(op.queries) == 1) else "attention_prefill"  # type: ignore[attr-defined]
    return op.family if op.family in SIMPLE else "recurrent" if op.family in RECURRENT else None


def meter_reading(op: Op, gpu: Gpu, seconds: float) -> Reading | None:
    """What a meter shows while a kernel is repeated as in published tables; None without readings of its like."""
    family = family_of_reading(op)
    if getattr(op, "dtype", "") == "fp16":  # tables have 16 bits as bf16; kernels and operands are as large
        op = replace(op, dtype="bf16")  # type: ignore[type-var]
    return None if family is None else module_reading(family, tabled_calls(op), gpu, seconds, copies=copies_of(op))


def module_reading(
    family: str, calls: Sequence[tuple[Op, int]], gpu: Gpu, seconds: float, *, copies: int = 1
) -> Reading | None:
    """The same of a whole module: its kernels with their launches; families ``mla`` and ``sparse_attention``."""
    reader = reader_of(family, gpu.name)
    if reader is None or gpu.board_limit < gpu.tdp or gpu.clock_share != 1.0:
        return None
    board, loops = board_power(gpu), loops_of(family, calls, gpu, seconds, copies=copies)
    watts, (low, high) = float(reader.read(loops, board)[0]), reader.ends(loops)[0]
    ends = min(float(low), 0.0), max(float(high), 0.0)
    # The factor is believed bit by bit, so that power has no step where loops begin to settle.
    settles = min(max(float(loops.lasts[0]) / METER_SECONDS - 1.0, 0.0), 1.0)
    return Reading(
        watts=watts, low=watts * math.exp(ends[0]), high=min(watts * math.exp(ends[1]), board.limit_watts),
        factor=float(reader.factors(loops, board)[0]), own=settles if family in OWN else 0.0, ends=ends,
    )  # fmt: skip


@cache
def reader_of(family: str, gpu: str) -> Reader | None:
    """The factor of a family on a GPU by its name, where readings were published."""
    archive = power_archive()
    found = None if archive is None else archive.find(family, gpu, ENGINE, "")
    if archive is None or found is None:
        return None
    entry, forest = found
    low, high = archive.header["settled"][f"{family} {gpu}"]
    return Reader(forest, (entry.low, entry.high), (low, high))


@cache
def power_archive() -> Artifact | None:
    return load_artifact(ARCHIVE, POWER) if ARCHIVE.exists() else None
