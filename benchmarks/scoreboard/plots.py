"""Pictures of a record: signed errors of every run, by source and by GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from groups import QUANTITIES, Run, grouped

LEAST = 3
"""Groups of fewer runs are left out."""
TICKS = (-2, -1, 0, 1, 2)
LABELS = ("1/4", "1/2", "1", "2", "4")
FURTHEST = 2.6
DOTS: dict[str, Any] = {"rasterized": True}
"""A thousand of them are smaller as pixels."""
COLOURS = ("#1f6fb4", "#d1603d", "#3a8f5c")


def draw(record: Mapping[str, Any], folder: Path) -> None:
    """Write the pictures of grade A."""
    runs = [run for run in record["runs"].values() if run["grade"] == "A"]
    _strips(grouped(runs, "source"), folder / "scoreboard_sources.svg")
    _strips(grouped(runs, "gpu"), folder / "scoreboard_gpus.svg")


def _strips(groups: Mapping[str, Sequence[Run]], path: Path) -> None:
    """A panel for each quantity, a line for each group, a dot for each run."""
    import matplotlib as mpl  # noqa: PLC0415 - only who draws needs it

    mpl.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams |= {"svg.hashsalt": "infercast", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    names = [name for name, runs in groups.items() if len(runs) >= LEAST][::-1]
    figure, panels = plt.subplots(1, 3, figsize=(11, 1.1 + 0.36 * len(names)), sharey=True, layout="constrained")
    for panel, (quantity, title), colour in zip(panels, QUANTITIES.items(), COLOURS, strict=True):
        panel.axvspan(log2(0.8), log2(1.25), color="#e6e6e6", lw=0)
        panel.axvline(0, color="#888888", lw=0.8)
        for height, name in enumerate(names):
            logs = np.array([log2(max(1e-3, 1 + run[quantity]["error"])) for run in groups[name] if quantity in run])
            if not logs.size:
                continue
            shake = (np.arange(logs.size) * 0.618034 % 1 - 0.5) * 0.5
            panel.plot(
                np.clip(logs, -FURTHEST, FURTHEST), height + shake, "o", color=colour, ms=2.6, alpha=0.5, mew=0, **DOTS
            )
            panel.plot([np.median(logs)] * 2, [height - 0.36, height + 0.36], color="black", lw=1.6)
        panel.set(xlim=(-FURTHEST - 0.1, FURTHEST + 0.1), title=title, xticks=TICKS)
        panel.set_xticklabels(LABELS)
        panel.set_yticks(range(len(names)), [f"{name} ({len(groups[name])})" for name in names])
    panels[1].set_xlabel("predicted over measured; grey: within 25 %, black: the median")
    figure.savefig(path, metadata={"Date": None}, dpi=160)
    plt.close(figure)
