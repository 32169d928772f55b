"""How far the power of kernels is off: joules that were counted, and published readings with whole shape groups hidden.

    python benchmarks/accuracy/energy.py --counted measurements/h200-sxm/power_bursts.json.gz
    python benchmarks/accuracy/energy.py --table kernel_power.parquet [--every 5] [--predicted]

Readings of a table are not only the kernel's power: the meter gives the mean of a second, so that in short loops it
still shows what ran before. What it will read is learned on four groups in five by what makes the bundled archive
(fit_power.py), and scored on the fifth. Steps and runs do not use it, because energies add up there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from energy_points import Array, Points, by_family, points_of
from fit_energy import left_out
from fit_power import learn
from infercast.hardware import load_gpu
from infercast.lab.fit.train import HELD_OUT_SHARE
from infercast.predict.board_power import BoardPower, board_power

EIGHTY = 1.2816
GPUS = ("h200-sxm", "b200-sxm")


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
    reader, _ = learn(known, board)
    read, (low, high) = reader.read(tested, board), reader.ends(tested).T
    miss = np.log(tested.watts / read)
    inside = (miss >= low) & (miss <= high)
    return _error(read, tested), inside, tested.is_settled, _error(tested.power(board), tested)


def print_unseen(points: list[Points]) -> None:
    """B200 from nothing but its datasheet, the H200's joules and what was learned of the H200's readings."""
    print("\n| B200 from H200 | rows | all loops | in interval | settled loops | rows | in interval | physics alone |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    known, board, errors = board_power(load_gpu(GPUS[0])), board_power(load_gpu(GPUS[1]), known=GPUS[0]), []
    for family, of_gpu in by_family(points):
        if set(GPUS) <= of_gpu.keys():
            (reader, _), tested = learn(of_gpu[GPUS[0]], known), of_gpu[GPUS[1]]
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


def _cell(error: Iterable[float]) -> str:
    values = np.asarray(list(error))
    return " / ".join(f"{100 * each:.1f}" for each in (values.mean(), np.median(values), np.quantile(values, 0.9)))


if __name__ == "__main__":
    main()
