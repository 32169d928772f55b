"""How far the power of kernels is off: joules that were counted, and published readings with whole shape groups hidden.

    python benchmarks/accuracy/energy.py --counted measurements/h200-sxm/power_bursts.json.gz
    python benchmarks/accuracy/energy.py --table kernel_power.parquet [--every 5] [--predicted]

Readings of a table are not only the kernel's power: the meter gives the mean of a second, so that in short loops it
still shows what ran before (energy_points.py). What it will read is learned on four groups in five, as a factor of the
power by physics, and scored on the fifth; no forecast uses that factor, because in a step energies add up.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energy_points import Array, Points, by_family, points_of
from fit_energy import left_out
from infercast.fit.boost import Settings, boost
from infercast.fit.train import HELD_OUT_SHARE
from infercast.hardware import load_gpu
from infercast.predict.artifact.forest import Forest
from infercast.predict.energy.model import BoardPower, board_power

SETTINGS = Settings(trees=300, depth=7)
EIGHTY = 1.2816
GPUS = ("h200-sxm", "b200-sxm")


@dataclass(frozen=True)
class Reader:
    """What a meter will read, learned as a factor of power by physics."""

    forest: Forest
    ends: tuple[tuple[float, float], tuple[float, float]]
    """Of the logarithm of the factor's error, the ends of the 80 % interval: loops that settle, and others."""

    def read(self, points: Points, board: BoardPower) -> Array:
        return points.power(board) * np.exp(self.forest.predict(points.features(board)))

    def covers(self, points: Points, read: Array) -> Array:
        low, high = np.where(points.is_settled[:, None], *self.ends).T
        miss = np.log(points.watts / read)
        return (miss >= low) & (miss <= high)


def main() -> None:
    """Print tables in markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counted", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--predicted", action="store_true", help="with latencies as estimated, not as measured")
    arguments = parser.parse_args()
    if arguments.counted is not None:
        print_counted(arguments.counted)
    if arguments.table is not None:
        points = points_of(arguments.table, arguments.every, predicted=arguments.predicted)
        print_hidden(points)
        print_unseen(points)


def print_counted(path: Path) -> None:
    """Kernels with counted joules, by numbers that were found without them."""
    board = board_power(load_gpu("h200-sxm"))
    errors = left_out(board, path)
    inside = np.mean(errors <= np.expm1(EIGHTY * board.spread))
    print(f"{errors.size} counted, each kernel left out: {_cell(errors)} %; {100 * inside:.0f} % in interval")


def print_hidden(points: list[Points]) -> None:
    """Readings of shape groups that nothing was learned from."""
    print("\n| | rows | all loops | in interval | settled loops | rows | in interval | physics alone |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for gpu in GPUS:
        board, errors = board_power(load_gpu(gpu)), []
        for family, of_gpu in by_family(points):
            if gpu in of_gpu and (scored := _hidden(of_gpu[gpu], board)):
                errors.append(scored)
                _print_line(f"{gpu}, {family}", *scored)
        _print_line(f"**{gpu}**", *(np.concatenate(each) for each in zip(*errors, strict=True)))


def _hidden(points: Points, board: BoardPower) -> tuple[Array, Array, Array, Array] | None:
    fold = next(
        (n for n in range(HELD_OUT_SHARE) if 0 < np.sum(points.group % HELD_OUT_SHARE == n) < points.group.size), 0
    )
    hidden = points.group % HELD_OUT_SHARE == fold
    if hidden.all() or not hidden.any():
        return None
    known, tested = points.part(~hidden), points.part(hidden)
    reader = learn(known, board)
    read = reader.read(tested, board)
    return _error(read, tested), reader.covers(tested, read), tested.is_settled, _error(tested.power(board), tested)


def learn(points: Points, board: BoardPower) -> Reader:
    """A reader of all these rows; its interval comes from groups that a trial fit has not seen."""
    target = np.log(points.watts / points.power(board))
    trial = points.group // HELD_OUT_SHARE % HELD_OUT_SHARE == 0
    ends = ((-0.1, 0.1), (-0.3, 0.3))
    if trial.any() and not trial.all():
        features = points.features(board)
        forest = boost(features[~trial], target[~trial], SETTINGS)
        miss, settled = target[trial] - forest.predict(features[trial]), points.is_settled[trial]
        ends = tuple(_ends(miss[which]) if which.sum() > 20 else _ends(miss) for which in (settled, ~settled))  # type: ignore[assignment]
    return Reader(boost(points.features(board), target, SETTINGS), ends)


def print_unseen(points: list[Points]) -> None:
    """B200 from nothing but its datasheet, the H200's joules and what was learned of the H200's readings."""
    print("\n| B200 from H200 | rows | all loops | in interval | settled loops | rows | in interval | physics alone |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    known, board, errors = board_power(load_gpu(GPUS[0])), board_power(load_gpu(GPUS[1]), known=GPUS[0]), []
    for family, of_gpu in by_family(points):
        if set(GPUS) <= of_gpu.keys():
            reader, tested = learn(of_gpu[GPUS[0]], known), of_gpu[GPUS[1]]
            read = reader.read(tested, board)
            inside = np.abs(np.log(tested.watts / read)) <= EIGHTY * board.spread
            errors.append((_error(read, tested), inside, tested.is_settled, _error(tested.power(board), tested)))
            _print_line(family, *errors[-1])
    _print_line("**all**", *(np.concatenate(each) for each in zip(*errors, strict=True)))


def _print_line(name: str, error: Array, inside: Array, settled: Array, physics: Array) -> None:
    cells = [f"{error.size:,}", _cell(error), f"{100 * inside.mean():.0f}", "-", "0", "-", "-"]
    if settled.any():
        cells[3:] = [
            _cell(error[settled]),
            f"{settled.sum():,}",
            f"{100 * inside[settled].mean():.0f}",
            _cell(physics[settled]),
        ]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _error(read: Array, points: Points) -> Array:
    return np.abs(read / points.watts - 1.0)


def _ends(miss: Array) -> tuple[float, float]:
    low, high = np.quantile(miss, [0.1, 0.9])
    return float(low), float(high)


def _cell(error: Iterable[float]) -> str:
    values = np.asarray(list(error))
    return " / ".join(f"{100 * each:.1f}" for each in (values.mean(), np.median(values), np.quantile(values, 0.9)))


if __name__ == "__main__":
    main()
