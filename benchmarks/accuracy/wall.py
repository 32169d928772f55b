"""Servers at the wall against the power of their GPU boards: fits data/server_power.toml and says how well.

MLPerf's power submissions put a SPEC analyser at the wall, and most of them limit the power of each board. A busy board
that could draw more then draws its limit, so that both sides are known. Before the run the server idles.

    python benchmarks/accuracy/wall.py
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from infercast.hardware.servers import servers

Array = npt.NDArray[np.float64]


class Row(NamedTuple):
    """One server in one state."""

    kind: str
    server: str
    work: str
    board_watts: float
    """Of one of eight GPUs."""
    wall_watts: float
    weight: float = 1.0


SXM_IDLE, PCIE_IDLE = 75.0, 50.0
"""Watts of a board without a program at low clocks: between 65 and 85, and 40 and 60."""
ROWS = (
    # inference_results_v4.0, closed/NVIDIA/results/DGX-H100_H100-SXM-80GBx8_TRT_MaxQ, performance/run_1/spl.txt;
    # limits: power_limit of the MaxQ classes in closed/NVIDIA/configs.
    Row("baseboard", "DGX H100", "gptj offline", 350, 4794.4),
    Row("baseboard", "DGX H100", "gptj server", 350, 4834.8),
    Row("baseboard", "DGX H100", "bert-99 offline", 400, 5061),
    Row("baseboard", "DGX H100", "bert-99.9 offline", 450, 5705),
    Row("baseboard", "DGX H100", "llama2-70b offline", 450, 5894.0),
    Row("baseboard", "DGX H100", "llama2-70b server", 450, 5912.7),
    Row("baseboard", "DGX H100", "idle", SXM_IDLE, 2245, 2.0),
    # inference_results_v4.0, closed/Dell/results/XE9680_H100_SXM_80GBx8_TRT_MaxQ; closed/Dell/configs/*/custom.py.
    Row("baseboard", "Dell XE9680", "gptj offline", 350, 4611.9),
    Row("baseboard", "Dell XE9680", "gptj server", 350, 4602.2),
    Row("baseboard", "Dell XE9680", "llama2-70b offline", 450, 5727.4),
    Row("baseboard", "Dell XE9680", "llama2-70b server", 450, 5742.6),
    Row("baseboard", "Dell XE9680", "idle", SXM_IDLE, 1985, 2.0),
    # inference_results_v4.1, closed/NVIDIA/results/H200-SXM-141GBx8_TRT_MaxQ; limits from closed/NVIDIA/configs.
    Row("baseboard", "H200 x 8", "gptj offline", 350, 4768.0),
    Row("baseboard", "H200 x 8", "gptj server", 350, 4713.7),
    Row("baseboard", "H200 x 8", "llama2-70b offline", 500, 6153.6),
    Row("baseboard", "H200 x 8", "llama2-70b server", 500, 6280.8),
    # inference_results_v3.1, closed/NVIDIA/results/H100-PCIe-80GBx8_TRT_MaxQ.
    Row("cards", "H100 PCIe x 8", "gptj offline", 200, 2192),
    Row("cards", "H100 PCIe x 8", "bert-99 offline", 290, 3045),
    Row("cards", "H100 PCIe x 8", "idle", PCIE_IDLE, 785, 1.0),
)
GPUS = 8


def fit(rows: list[Row]) -> Array:
    """Base watts and factor with the least relative errors."""
    wall = np.array([row.wall_watts for row in rows])
    weights = np.sqrt([row.weight for row in rows]) / wall
    terms = np.column_stack([np.ones(len(rows)), [GPUS * row.board_watts for row in rows]])
    found: Array = np.linalg.lstsq(terms * weights[:, None], wall * weights, rcond=None)[0]
    return found


def errors(rows: list[Row], found: Array) -> Array:
    """Relative errors at the wall."""
    wall = np.array([row.wall_watts for row in rows])
    predicted = found[0] + found[1] * GPUS * np.array([row.board_watts for row in rows])
    return predicted / wall - 1.0


def main() -> None:
    """Print fits, errors, and errors of each server that the fit has not seen."""
    for kind in ("baseboard", "cards"):
        rows = [row for row in ROWS if row.kind == kind]
        found, written = fit(rows), servers()[kind]
        off = errors(rows, found)
        print(
            f"{kind}: base {found[0]:.0f} W, factor {found[1]:.3f}; written: {written.base_watts:g}, {written.factor:g}"
        )
        print(f"  {len(rows)} rows: mean {100 * abs(off).mean():.1f} %, largest {100 * abs(off).max():.1f} %")
        for server in dict.fromkeys(row.server for row in rows):
            seen, held = ([row for row in rows if (row.server == server) == own] for own in (False, True))
            if seen:
                off = abs(errors(held, fit(seen)))
                busy = [each for each, row in zip(off, held, strict=True) if row.work != "idle"]
                print(f"  {server} held back: {100 * off.mean():.1f} %, while busy {100 * np.mean(busy):.1f} %")


if __name__ == "__main__":
    main()
