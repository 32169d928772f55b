"""The table of benchmarks/results/tuning.md: what was said of launch configurations, and what an H200 measured.

    python benchmarks/tuning/table.py [TRIAL.csv]

Reads `trial.csv` beside this file, the trial of all shapes on an H200 (vLLM 0.25, Triton 3.6, driver 580), or one of
your own that `try_experts.py` wrote.
"""

import sys
from pathlib import Path

import numpy as np
from tried import GPU, TABLE, Array, TriedShape, halves, read_trial

from infercast.predict.ceilings import default_ceilings
from infercast.predict.learned import make_predictor

HEAD = (
    "layer, tokens",
    "refit on it",
    "% of ceiling",
    "default, us",
    "apart, %",
    "said",
    "first",
    "best of six",
    "random",
    "order",
    "said now",
    "first now",
    "order now",
)


def spearman(first: list[float], second: list[float]) -> float:
    if len(first) < 3:
        return float("nan")
    ranks = np.array([np.argsort(np.argsort(values)) for values in (first, second)], dtype=np.float64)
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def attained(shape: TriedShape) -> float:
    """What the diagnosis says: the share of the ceiling that the layer is forecast to reach."""
    forecast = float(np.ravel(make_predictor().seconds(shape.op, GPU))[0])
    return min(1.0, float(default_ceilings().seconds(shape.op, GPU)[0]) / forecast)


def gains(shape: TriedShape, now: bool) -> tuple[float, float, float]:
    """Speed-up said and measured of the first of the proposed, and how well said and measured order all of them.

    ``now`` orders them by the model as it is; they are in the order of the trial otherwise.
    """
    own = np.flatnonzero(shape.ranked)
    estimate = shape.estimate() if now else shape.forecast
    first = own[1:][np.argmin(estimate[own[1:]])] if now else own[1]
    order = spearman(estimate[own].tolist(), shape.measured[own].tolist())
    return float(estimate[0] / estimate[first]), float(shape.measured[0] / shape.measured[first]), order


def cells(shape: TriedShape, fitted: bool) -> list[str]:
    """One line."""
    faster = shape.measured[0] / shape.measured
    said, first, order = gains(shape, now=False)
    now = gains(shape, now=True)
    lot = f"{faster[~shape.ranked].max():.2f}" if not shape.ranked.all() else ""
    head = [
        shape.name,
        "yes" if fitted else "no",
        f"{100 * attained(shape):.0f}",
        f"{1e6 * shape.measured[0]:.0f}",
        f"{100 * shape.noise:.1f}",
    ]
    head += [f"{said:.2f}", f"{first:.2f}", f"{faster[shape.ranked][1:].max():.2f}", lot, f"{order:.2f}"]
    return [*head, *(f"{value:.2f}" for value in now)]


def gain_errors(shapes: list[TriedShape], now: bool) -> Array:
    """How far said gains of the proposed are from measured ones, as a logarithm."""
    errors = []
    for shape in shapes:
        estimate, own = shape.estimate() if now else shape.forecast, np.flatnonzero(shape.ranked)[1:]
        errors.append(np.log((estimate[0] / estimate[own]) / (shape.measured[0] / shape.measured[own])))
    return np.asarray(np.abs(np.concatenate(errors)))


def summary(name: str, shapes: list[TriedShape], now: bool) -> str:
    """One line on one half."""
    found = [gains(shape, now) for shape in shapes]
    errors = gain_errors(shapes, now)
    first = float(np.exp(np.mean([np.log(measured) for _, measured, _ in found])))
    numbers = f"gain off by {100 * np.median(errors):.0f} % in the median, {100 * np.quantile(errors, 0.8):.0f} at 80 %"
    order, least = np.mean([order for *_, order in found]), min(measured for _, measured, _ in found)
    return f"{name}: {numbers}; order {order:.2f}; first of the tried {first:.3f} x, {least:.2f} at least"


def main(path: Path) -> None:
    """Print everything."""
    shapes = read_trial(path)
    fitted, _ = halves(shapes)
    print(f"| {' | '.join(HEAD)} |\n| --- |{' --: |' * (len(HEAD) - 1)}")
    for shape in shapes:
        print(f"| {' | '.join(cells(shape, any(shape is each for each in fitted)))} |")
    print()
    for half, own in zip(("fitted on", "held back"), halves(shapes), strict=True):
        print(summary(f"{half}, before", own, now=False))
        print(summary(f"{half}, after", own, now=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE)
