"""Servers at the wall against the power of their GPU boards: fits data/server_power.toml and says how well.

MLPerf's power submissions put a SPEC analyser at the wall, and most of them limit the power of each board. A busy board
that could draw more then draws its limit, so that both sides are known. Before the run the server idles.

    python benchmarks/accuracy/wall.py            # the fit
    python benchmarks/accuracy/wall.py --runs     # and whole servers, from kernels to the wall, which takes a minute
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import infercast
from infercast.hardware.load import servers
from infercast.serve.workload.synthetic import synthetic_workload

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


class Run(NamedTuple):
    """A run of MLPerf as we simulate it, with vLLM and a full queue, and what its server drew at the wall."""

    model: str
    gpu: str
    lengths: tuple[int, int]
    clients: int
    wall_watts: float
    """Offline; the whole server of eight GPUs, or the desktop of one."""
    options: dict[str, Any]


RUNS = (
    Run("llama-2-70b", "h100-sxm", (294, 294), 512, 5894.0,
        {"quantization": "fp8", "tensor_parallel_size": 2, "power_limit_w": 450}),
    Run("llama-2-70b", "h200-sxm", (294, 294), 512, 6153.6, {"quantization": "fp8", "power_limit_w": 500}),
    # None of what follows is in the fit, nor is a B200 or a desktop.
    Run("llama-2-70b", "b200-sxm", (294, 294), 512, 10445.9, {"quantization": "nvfp4"}),
    Run("llama-3.1-8b", "b200-sxm", (778, 73), 512, 9571.4, {"quantization": "fp8"}),
    Run("llama-3.1-405b", "b200-sxm", (9400, 680), 128, 9925.8,
        {"quantization": "nvfp4", "tensor_parallel_size": 8}),
    Run("llama-2-7b", "rtx-4090", (1000, 100), 32, 543.0, {"quantization": "fp8"}),
)  # fmt: skip


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


def whole_chain() -> None:
    """Watts at the wall from the model, the GPU and the load alone."""
    off = []
    for run in RUNS:
        deployment = infercast.deploy(run.model, run.gpu, **run.options)
        inputs, outputs = run.lengths
        load = synthetic_workload(
            concurrency=run.clients, count=3 * run.clients, input_lengths=inputs, output_lengths=outputs
        )
        forecast = infercast.simulate(deployment, load)
        assert forecast.wall is not None
        server = forecast.wall.servers[0]
        watts = forecast.wall.watts * (1 if server.whole else server.gpus / forecast.gpus)
        off.append(watts / run.wall_watts - 1.0)
        print(f"  {run.model} on {run.gpu}: {watts:,.0f} W, measured {run.wall_watts:,.0f} W, {100 * off[-1]:+.1f} %")
    print(f"  mean {100 * np.mean(np.abs(off)):.1f} %, median {100 * np.median(np.abs(off)):.1f} %")


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
    if "--runs" in sys.argv:
        print("servers from kernels to the wall:")
        whole_chain()


if __name__ == "__main__":
    main()
