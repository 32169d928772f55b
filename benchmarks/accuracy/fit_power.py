"""Learn what meters read of kernels, as a factor of power by physics: src/infercast/data/fitted/power.npz.

    pip install 'infercast[fit]' && python benchmarks/accuracy/fit_power.py kernel_power.parquet [OUT.npz]

One forest for each family and GPU, on all rows. Its interval, and the error that is printed, come from a trial fit
without a fifth of the shape groups; energy.py scores groups that neither has seen. Where tables of other boards come
up, they are learned in the same way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from energy_points import Array, Points, points_of
from infercast.hardware import load_gpu
from infercast.lab.fit.train import HELD_OUT_SHARE, Settings, boost, file_hash, origin_of
from infercast.predict.board_power import ENGINE, POWER, BoardPower, Reader, board_power
from infercast.predict.fitted import Entry, save_artifact
from training import revision

SETTINGS = Settings(trees=120, depth=6, refinements=3)
SMALL = Settings(trees=60, depth=6, learning_rate=0.2, refinements=3)
SETTINGS_OF = {
    "gemm": Settings(trees=300, depth=6, learning_rate=0.2, refinements=8),
    **dict.fromkeys(("quantise", "recurrent", "encoder_attention"), SMALL),
}
"""Products have hundreds of shape groups, so that more trees find more; the last three have few or are much alike."""
FEW = 20
"""Settled loops below which their interval is that of all."""
WIDE = (-0.3, 0.3)
"""The interval where all rows are of one group."""


def main() -> None:
    """Print what was learned of each family, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(points_of(arguments.table), arguments.table, arguments.out or Path(folder) / "power.npz")


def write(points: list[Points], table: Path, out: Path) -> None:
    """Fit all families and write them with their manifest."""
    models, settled = [], {}
    print("| family | GPU | rows | error, % |\n| --- | --- | --: | --: |")
    for each in sorted(points, key=lambda found: (found.family, found.gpu)):
        reader, error = learn(each, board_power(load_gpu(each.gpu)))
        low, high = reader.short
        entry = Entry(each.family, each.gpu, ENGINE, "", each.watts.size, 0.0, 1.0, low, high, error)
        models.append((entry, reader.forest))
        settled[f"{each.family} {each.gpu}"] = reader.settled
        print(f"| {each.family} | {each.gpu} | {each.watts.size:,} | {100 * error:.1f} |", flush=True)
    hashes = {table.name: file_hash(table)}
    provenance = {"what": "log(what a meter read / power by physics)", "data": hashes, "settled": settled}
    groups = np.unique(np.concatenate([each.group for each in points]))
    save_artifact(out, models, provenance, groups, inputs=POWER, origin=origin_of(hashes, revision()))
    print(f"{out}: {out.stat().st_size:,} bytes")


def learn(points: Points, board: BoardPower) -> tuple[Reader, float]:
    """A reader of all these rows, and its mean error on groups that a trial fit has not seen."""
    features, target = points.features(board), np.log(points.watts / points.power(board))
    settings = SETTINGS_OF.get(points.family, SETTINGS)
    trial = points.group // HELD_OUT_SHARE % HELD_OUT_SHARE == 0
    short = settled = WIDE
    error = 0.0
    if trial.any() and not trial.all():
        forest = boost(features[~trial], target[~trial], settings)
        miss, long = target[trial] - forest.predict(features[trial]), points.is_settled[trial]
        short, settled = (_ends(miss[which]) if which.sum() > FEW else _ends(miss) for which in (~long, long))
        error = float(np.mean(np.abs(np.expm1(-miss))))
    return Reader(boost(features, target, settings), short, settled), error


def _ends(miss: Array) -> tuple[float, float]:
    low, high = np.quantile(miss, [0.1, 0.9])
    return float(low), float(high)


if __name__ == "__main__":
    main()
