"""The table of a trial: every configuration of every shape, what was said of it before and what was measured."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infercast.hardware import load_gpu
from infercast.ops import MoE
from infercast.predict.expert_launch import FITTED, ExpertTiles, TritonConstants, tiles_of, time_tiles

Array = npt.NDArray[np.float64]

GPU = load_gpu("h200-sxm")
TABLE = Path(__file__).with_name("trial.csv")
SHAPE = ("model", "gpus", "dtype", "tokens", "hidden", "inter", "experts", "topk")
TILE = ("rows", "columns", "depth", "group", "warps", "stages")
COLUMNS = (*SHAPE, "rank", *TILE, "forecast_us", "measured_us")


@dataclass(frozen=True)
class TriedShape:
    """One layer at one number of tokens; the first of the configurations is the default."""

    name: str
    op: MoE
    ranked: npt.NDArray[np.bool_]
    """Which of the configurations the ranking proposed, the default among them; the others were drawn by lot."""
    tiles: ExpertTiles
    forecast: Array
    """Seconds, as said before anything was measured."""
    measured: Array
    noise: float
    """How far two measurements of the default lie apart, as a share."""

    def estimate(self, constants: TritonConstants = FITTED) -> Array:
        """Seconds of each configuration by the model as it is now."""
        return np.asarray(time_tiles(self.op, GPU, self.tiles, constants).seconds)


def read_trial(path: Path = TABLE) -> list[TriedShape]:
    """All shapes, in the order of the table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [_shape(list(own)) for _, own in groupby(rows, key=lambda row: [row[name] for name in SHAPE])]


def halves(shapes: Sequence[TriedShape]) -> tuple[list[TriedShape], list[TriedShape]]:
    """Those that constants are fitted on and those that are held back: every other shape."""
    return list(shapes[::2]), list(shapes[1::2])


def _shape(rows: list[dict[str, str]]) -> TriedShape:
    first = rows[0]
    usual = [float(row["measured_us"]) for row in rows if row["rank"] == "0"]
    others = [row for row in rows if row["rank"] != "0"]
    tokens, hidden, inter, experts, topk = (int(first[name]) for name in SHAPE[3:])
    kept = [first, *others]
    measured = [sum(usual) / len(usual), *(float(row["measured_us"]) for row in others)]
    return TriedShape(
        name=f"{first['model']}, TP {first['gpus']}, {first['dtype']}, {tokens:,}",
        op=MoE(tokens, hidden, inter, experts, topk, dtype=first["dtype"], weight_dtype=first["dtype"]),
        ranked=np.array([row["rank"] != "" for row in kept]),
        tiles=tiles_of([tuple(int(row[name]) for name in TILE) for row in kept]),
        forecast=1e-6 * np.array([float(row["forecast_us"]) for row in kept]),
        measured=1e-6 * np.array(measured),
        noise=max(usual) / min(usual) - 1.0,
    )
