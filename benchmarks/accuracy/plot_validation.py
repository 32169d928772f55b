"""Predicted against measured runs as a picture.

pip install matplotlib && infercast validate FILE... --json | python benchmarks/accuracy/plot_validation.py OUT.svg
"""

import json
import sys

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

QUANTITIES = (
    ("ttft_p50_ms", "TTFT p50, ms"),
    ("tpot_p50_ms", "TPOT p50, ms"),
    ("output_tokens_per_s", "output tokens a second"),
)
MARKERS = {"static": "o", "poisson": "^", "prefix": "s"}
COLOURS = ("#1f6fb4", "#d1603d", "#3a8f5c", "#8457a6", "#b08a1e", "#4fa3a5", "#c2487f", "#6b6b6b")


def model_of(run: dict) -> str:
    return run["file"].removesuffix(".gz").removesuffix(".json").split("__")[0]


def main() -> None:
    runs = json.load(sys.stdin)["runs"]
    plt.rcParams |= {"svg.hashsalt": "infercast", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, panels = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained")
    models = sorted({model_of(run) for run in runs})
    for panel, (quantity, title) in zip(panels, QUANTITIES, strict=True):
        chosen = [run for run in runs if run[quantity] is not None]
        values = [run[quantity][side] for run in chosen for side in ("measured", "predicted")]
        ends = [0.8 * min(values), 1.25 * max(values)]
        panel.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#dddddd", lw=0)
        panel.plot(ends, ends, color="#888888", lw=0.8)
        for run in chosen:
            pair, colour = run[quantity], COLOURS[models.index(model_of(run)) % len(COLOURS)]
            panel.plot(
                pair["measured"], pair["predicted"], MARKERS[run["kind"]], color=colour, ms=4.5, alpha=0.8, mew=0
            )
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=title, xlabel="measured")
        panel.set_box_aspect(1)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("predicted (grey: within 10 %)")
    points = [plt.Line2D([], [], marker="o", ls="", color=COLOURS[n % len(COLOURS)]) for n in range(len(models))]
    kinds = [plt.Line2D([], [], marker=marker, ls="", color="#555555") for marker in MARKERS.values()]
    figure.legend(
        points + kinds, models + list(MARKERS), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )
    figure.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
