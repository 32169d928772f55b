"""Fit the constants of the launch model (`predict/expert_launch.py`) to kernels of an H200.

    pip install 'infercast[fit]' scipy && python benchmarks/tuning/fit_launch.py

Rows are those of our sweep that ran under vLLM's rules of thumb (measurements/h200-sxm/moe.parquet) and the first of
the two halves of the shapes of `trial.csv`. Prints the constants; `table.py` says how the other half then fares.
"""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from tried import GPU, Array, TriedShape, halves, read_trial

from infercast.engines.vllm.kernels import rule_of_thumb
from infercast.ops import MoE
from infercast.predict.expert_launch import FITTED, ExpertTiles, TritonConstants, tiles_of, time_tiles

SWEEP = Path(__file__).parents[2] / "measurements" / "h200-sxm" / "moe.parquet"
FREE = [each.name for each in fields(TritonConstants) if each.name != "memory"]
"""All constants but the share of the DRAM bandwidth, which a fit would bring above what a GPU can reach."""
NEAR, FAR_WEIGHT = 1.6, 0.3
"""Configurations this much slower than the best of a shape need not be estimated well, only as slow."""
HELD = 0.5
"""How strongly a constant is held where it starts."""


def read_sweep() -> list[tuple[MoE, ExpertTiles, float]]:
    """Layers that ran the rules of thumb, with seconds."""
    table = pd.read_parquet(SWEEP)
    found = []
    for row in table[~table["tuned"].astype(bool)].to_dict("records"):
        usual = rule_of_thumb(row["tokens"], row["experts"], row["dtype"])
        sizes = {name: row[name] for name in ("hidden", "inter", "experts", "topk", "dtype", "routing")}
        op = MoE(row["tokens"], **sizes, weight_dtype=row["dtype"])
        found.append((op, tiles_of([usual]), 1e-6 * row["latency_us"]))
    return found


def residuals(
    constants: TritonConstants, sweep: list[tuple[MoE, ExpertTiles, float]], tried: list[TriedShape]
) -> list[Array]:
    """Logarithms of said over measured: of times, and of gains over the default where several were tried."""
    times = [np.log(time_tiles(op, GPU, tiles, constants).seconds / seconds) for op, tiles, seconds in sweep]
    for shape in tried:
        error = np.log(shape.estimate(constants) / shape.measured)
        weight = np.where(shape.measured < NEAR * shape.measured.min(), 1.0, FAR_WEIGHT)
        times += [weight * error, weight * (error - error[0])]
    return times


def main() -> None:
    """Fit and print."""
    sweep, (tried, _) = read_sweep(), halves(read_trial())
    start = np.log([getattr(FITTED, name) for name in FREE])

    def constants(logs: Array) -> TritonConstants:
        return replace(FITTED, **dict(zip(FREE, np.exp(logs).tolist(), strict=True)))

    def missed(logs: Array) -> Array:
        return np.concatenate([*residuals(constants(logs), sweep, tried), HELD * (logs - start)])

    found = least_squares(missed, start, loss="soft_l1", f_scale=0.1, max_nfev=12, diff_step=0.01)
    for name, value in zip(FREE, np.exp(found.x), strict=True):
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
