"""What data/energy.toml says of metered boards: fitted on counted joules (H200) and on published readings (B200).

    python benchmarks/accuracy/fit_energy.py measurements/h200-sxm/power_bursts.json.gz [kernel_power.parquet]

Energy is a sum of four parts, so its four numbers are found by least squares of the logarithm of power, with the
board's limit in it. Of published readings only products count whose loop was long enough for the meter
(energy_points.py). Needs SciPy.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from energy_points import Points, points_of
from infercast.hardware import load_gpu
from infercast.ops import Op
from infercast.predict.board_power import PARTS, BoardPower, board_power, parts_of
from power_tables import Counted, read_counted

FAMILY = "gemm"
"""Whose readings a board that nobody counted is fitted on."""
SURE, BURST_SURE = 0.04, 0.08
"""How far the logarithm of counted power is off by itself: without pauses, and with most of the time paused."""
READ_SURE = 0.08
READ_WEIGHT, FEW = 5.0, 10
WIDE = np.full(4, 1.0)
SILICON = np.array([0.02, 0.5, 0.5, 0.2])
"""How far the logarithms of the four numbers may be from where a fit starts. Readings hardly tell the first, which goes
with silicon, from bytes."""


def main() -> None:
    """Print rows of energy.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counted", type=Path)
    parser.add_argument("table", type=Path, nargs="?")
    arguments = parser.parse_args()
    h200 = board_power(load_gpu("h200-sxm"))
    print("h200-sxm", _text(fit_counted(h200, arguments.counted)))
    print("h200-sxm, every kernel left out in turn: mean, median, 90th percentile of the error of power, %")
    errors = left_out(h200, arguments.counted)
    print("  ", *(f"{100 * each:.1f}" for each in (errors.mean(), np.median(errors), np.quantile(errors, 0.9))))
    if arguments.table is not None:
        points = points_of(arguments.table)
        print("b200-sxm", _text(fit_like(h200, board_power(load_gpu("b200-sxm")), points)))


def fit_counted(board: BoardPower, path: Path, without: str = "") -> BoardPower:
    """The board with its four numbers by all kernels but one."""
    rows = [row for row in read_counted(path, board.idle_watts) if row.name != without]
    design = np.array([_parts(board, row.op, row.seconds, row.warm) for row in rows])
    seconds, watts = (np.array([getattr(row, name) for row in rows]) for name in ("seconds", "watts"))
    most = np.where([row.is_steady for row in rows], board.held_watts, board.burst_watts)
    sure = np.where([row.is_steady for row in rows], SURE, BURST_SURE)

    def misses(logs: np.ndarray) -> np.ndarray:
        power = np.minimum(most, board.idle_watts + design @ np.exp(logs) / seconds)
        return np.asarray(np.log(power / watts) / sure)

    return _solved(board, misses, WIDE)


def left_out(board: BoardPower, path: Path) -> np.ndarray:
    """Errors of each kernel's power by numbers that were found without it."""
    rows = list(read_counted(path, board.idle_watts))
    fitted = {name: fit_counted(board, path, name) for name in {row.name for row in rows}}
    return np.array([abs(power_of(fitted[row.name], row) / row.watts - 1.0) for row in rows])


def power_of(board: BoardPower, row: Counted) -> float:
    """What a kernel is estimated to draw, in a burst or without a pause."""
    if row.is_steady:
        return float(np.ravel(board.watts(row.op, row.seconds, warm=row.warm))[0])
    joules = float(np.ravel(board.dynamic_joules(row.op, row.seconds, warm=row.warm))[0])
    return board.idle_watts + joules / row.seconds


def fit_like(counted: BoardPower, other: BoardPower, points: list[Points]) -> BoardPower:
    """Another board by readings of both: what readings miss of the counted one, they miss of the other."""
    first, second = (
        fit_table(board, [each for each in points if each.gpu == name])
        for board, name in ((counted, "h200-sxm"), (other, "b200-sxm"))
    )
    missed = {name: getattr(counted, name) / getattr(first, name) for name in ("flop", "dram")}
    return replace(second, **{name: getattr(second, name) * factor for name, factor in missed.items()})


def fit_table(board: BoardPower, points: list[Points]) -> BoardPower:
    """The board with its four numbers by published readings, every number of rows of a product with the same weight."""
    (point,) = (each for each in points if each.family == FAMILY)
    chosen = point.is_settled
    columns, time, read = point.parts[chosen], point.seconds[chosen], point.watts[chosen]
    _, kind, count = np.unique(point.shape[chosen, 0].round(), return_inverse=True, return_counts=True)
    trust = (np.maximum(count, FEW)[kind]) ** -0.5

    def misses(logs: np.ndarray) -> np.ndarray:
        power = np.minimum(board.held_watts, board.idle_watts + columns @ np.exp(logs) / time)
        miss = np.log(read / power) / READ_SURE
        # As good as the absolute value far out: a loop that began with an idle meter reads low.
        return np.asarray(np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss**2) - 1)) * trust * READ_WEIGHT)

    return _solved(board, misses, SILICON)


def _parts(board: BoardPower, op: Op, seconds: float, warm: float) -> list[float]:
    return [float(np.ravel(each)[0]) for each in parts_of(board, op, seconds, warm)]


def _solved(board: BoardPower, misses: Callable[[np.ndarray], np.ndarray], prior: np.ndarray) -> BoardPower:
    start = np.log([getattr(board, name) for name in PARTS])
    found = least_squares(lambda logs: np.concatenate([misses(logs), (logs - start) / prior]), start)
    return replace(board, **dict(zip(PARTS, np.exp(found.x).tolist(), strict=True)))


def _text(board: BoardPower) -> str:
    flop, dram, l2 = (1e12 * each for each in (board.flop, board.dram, board.l2))
    return f"active_watts = {board.active_watts:.0f}, flop = {flop:.3f}, dram = {dram:.1f}, l2 = {l2:.1f}"


if __name__ == "__main__":
    main()
