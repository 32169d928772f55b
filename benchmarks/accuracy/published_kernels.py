"""What kernels of AMD's architectures reach: the numbers of [cdna3] and [cdna4] in data/typical.toml.

    python benchmarks/accuracy/published_kernels.py GEMM.parquet TUNED_FMOE.csv RUNS.csv

GEMM.parquet holds products of ROCm's aiter (columns gpu, dtype, m, n, k, latency_us, source), TUNED_FMOE.csv is its
table of experts (``aiter/configs/tuned_fmoe.csv`` of the package amd-aiter), RUNS.csv the collected runs. Products are
fitted row by row: launches, the share of the tensor cores' rate and that of memory's, which add up. Runs of closed
loops have a token time that is linear in the same numbers of all families: a decode step, and the share of others'
prompts. They move what tables say, and what is typical where there are none, as little as they must: least squares of
logarithms, each number with a prior. Each GPU of an architecture is left out once, and each architecture is forecast
by the other's.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "scoreboard"))
from publishers import as_published

from infercast.forecast.estimate import read_rows
from infercast.forecast.kernels import decode_shape, prefill_shape, step_calls
from infercast.hardware import load_gpu
from infercast.ops import Gemm, MoE
from infercast.predict.roofline import MOVING, launch_floor, pipes_of
from published.compare import set_up
from published.run import RowReader
from published.table import read_collected

LOOSE, EACH = 0.2, 250
"""The error from which on a row counts less, and rows of each size of product that are looked at."""
RUN_ERROR = 0.08
"""How far a run may be off for its own reasons, as a standard deviation of logarithms."""
CURRENT = {"cdna3": ((0, 5, 12),), "cdna4": ((0, 5, 8), (0, 5, 9), (0, 5, 10), (0, 5, 12))}
"""Releases of SGLang whose kernels are those of today."""
FORMATS = {"QuantType.No": "bf16", "QuantType.per_Token": "fp8", "QuantType.per_1x128": "fp8_block"}
PRIORS = {
    "gemm/fp8_block": ((3.0, 0.33, 0.5), (0.15, 0.15, 0.15)),
    "gemm/bf16": ((3.6, 0.5, 0.8), (0.15, 0.15, 0.15)),
    "gemm/mxfp4": ((4.0, 0.57, 0.73), (0.15, 0.15, 0.15)),
    "moe/fp8_block": ((28.0, 0.15, 0.85), (0.3, 0.4, 0.1)),
    "moe/mxfp4": ((28.0, 0.15, 0.75), (0.3, 0.4, 0.1)),
    "attention": ((8.0, 0.4, 0.6), (0.4, 0.3, 0.3)),
    "collective": ((8.0, 1.0, 0.5), (0.4, 0.01, 0.3)),
    "small": ((1.5, 1.0, 0.7), (0.4, 0.01, 0.3)),
}
"""Launches, share of arithmetic and share of memory, with the standard deviations of their logarithms: products and
experts by tables, the others by what is typical of measured GPUs."""


def mi308x():
    """The MI300X with 80 compute units, of which aiter has most rows of experts."""
    whole = load_gpu("mi300x")
    part = 80 / whole.sms
    rates = {name: part * rate for name, rate in whole.tensor_flops.items()}
    return replace(whole, name="mi308x", sms=80, tensor_flops=rates, l2_bandwidth=80 * 64 * whole.boost_clock)


def parts_of(op, gpu):
    """Seconds of one empty launch, of arithmetic and of moving bytes."""
    pipes = pipes_of(op, gpu)
    moved = [np.ravel(value) for name, value in pipes.items() if name in MOVING]
    computed = [np.ravel(value) for name, value in pipes.items() if name not in MOVING]
    widest = max(len(each) for each in (*moved, *computed))
    zero = [np.zeros(widest)]
    return np.broadcast_arrays(launch_floor(gpu), np.max(computed or zero, axis=0), np.max(moved or zero, axis=0))


def fit_rows(parts, seconds):
    """The three numbers, and the tenth and ninetieth percentile of log(measured / fitted)."""

    def misses(logarithms):
        launches, share, memory = np.exp(logarithms)
        return np.log((launches * parts[0] + parts[1] / share + parts[2] / memory) / seconds)

    found = least_squares(misses, [1.0, -0.7, -0.3], loss="soft_l1", f_scale=LOOSE)
    return np.exp(found.x), -misses(found.x)


def show(name, numbers, off):
    """One line."""
    low, high = np.quantile(off, [0.1, 0.9])
    error = 100 * np.median(np.abs(np.expm1(off)))
    print("{:24} launches {:6.2f}  share {:4.2f}  memory {:5.2f}".format(name, *numbers), end="  ")
    print(f"low {low:5.2f}  high {high:4.2f}  median error {error:.0f} %  n {len(off)}")


def products(path, gpus):
    """Rows of products, as many of each size."""
    table = pd.read_parquet(path)
    table = table[(table.source == "aiter_amd") & np.isfinite(table.latency_us)]
    for (name, dtype), rows in table.groupby(["gpu", "dtype"]):
        sizes = (np.log2(rows.m) / 1.5).round()
        part = pd.concat(each.sample(min(EACH, len(each)), random_state=0) for _, each in rows.groupby(sizes))
        op = Gemm(*(part[column].to_numpy(float) for column in "mnk"), dtype)
        show(f"{name} product {dtype}", *fit_rows(parts_of(op, gpus[name]), part.latency_us.to_numpy() * 1e-6))


def experts(path, gpus):
    """Rows of experts, all of them."""
    table = pd.read_csv(path)
    table = table[np.isfinite(table.us) & (table.us > 0) & table.act_type.str.contains("Silu")]
    table = table[table.q_type.isin(FORMATS) & ~table.q_dtype_a.str.contains("int8")]
    for (units, kind), rows in table.groupby(["cu_num", "q_type"]):
        gpu = gpus[{80: "mi308x", 256: "mi355x"}[units]]
        sizes = zip(rows.token, rows.model_dim, rows.inter_dim, rows.expert, rows.topk, strict=True)
        parts = np.hstack([np.stack(parts_of(MoE(*each, dtype=FORMATS[kind]), gpu)) for each in sizes])
        show(f"{gpu.name} experts {FORMATS[kind]}", *fit_rows(parts, rows.us.to_numpy() * 1e-6))


def name_of(call):
    """The line of `PRIORS` that a kernel belongs to."""
    family, dtype = call.op.family, getattr(call.op, "weight_dtype", "") or getattr(call.op, "dtype", "")
    named = f"{'gemm' if family == 'lm_head' else family}/{dtype}"
    return named if named in PRIORS else family if family in PRIORS else "small"


def step_parts(deployment, shape):
    """Seconds of launches, arithmetic and bytes of a step, by lines of `PRIORS`."""
    found = defaultdict(lambda: np.zeros(3))
    for call in step_calls(deployment, shape).all:
        found[name_of(call)] += call.count * np.stack(parts_of(call.op, deployment.gpu))[:, 0]
    return np.stack([found[name] for name in PRIORS])


class Cell:
    """Runs of one GPU, format, layout, load and release; the median of what they show."""

    def __init__(self, run, token_seconds):
        """``run`` stands for all of them."""
        deployment = set_up(run)[1]
        requests, clients = run.workload.requests, run.workload.concurrency
        prompt, answer = (
            round(np.mean([getattr(each, name) for each in requests])) for name in ("num_input", "num_output")
        )
        self.gpu, self.kernels, self.version = run.gpu, load_gpu(run.gpu).kernels, run.version
        self.seconds, self.share, self.gap = token_seconds, (clients - 1) / answer, deployment.host_model.gap_seconds
        self.decode = step_parts(deployment, decode_shape(clients, prompt + answer // 2))
        self.prompt = step_parts(deployment, prefill_shape(prompt))
        self.host = deployment.host_cost(prefill_shape(prompt)).total

    def predicted(self, numbers):
        """Seconds a token: a step, and what of others' prompts falls to each token."""
        launches, share, memory = np.exp(numbers).T

        def step(parts):
            return (parts * np.stack([launches, 1 / share, 1 / memory], axis=1)).sum()

        return step(self.decode) + self.gap + self.share * max(step(self.prompt), self.host)

    def error(self, numbers):
        """As a share of what was measured."""
        return self.predicted(numbers) / self.seconds - 1.0


def cells(path):
    """Plain runs of DeepSeek-R1 under SGLang with clients."""
    found = defaultdict(list)
    for line, row in enumerate(read_rows(path), start=2):
        if (
            row["engine"] != "sglang"
            or not row["infercast_gpu"].startswith("mi3")
            or not row["date"]
            or "s" in row["quality"]
        ):
            continue
        run = read_collected(RowReader(path, line, as_published(row)))
        if not run.problem and run.tpot is not None and run.model.startswith("deepseek-r1") and row["date"]:
            lengths = row["len_dist"]
            found[run.gpu, run.model, run.tensor, lengths, run.workload.concurrency, run.version].append(run)
    return [Cell(runs[0], float(np.median([run.tpot for run in runs]))) for runs in found.values()]


def fit_runs(chosen):
    """Numbers by lines of `PRIORS`, as logarithms."""
    priors = np.log(np.array([prior for prior, _ in PRIORS.values()]))
    spread = np.array([each for _, each in PRIORS.values()])

    def misses(flat):
        numbers = flat.reshape(priors.shape)
        runs = [np.log(cell.predicted(numbers) / cell.seconds) / RUN_ERROR for cell in chosen]
        return np.concatenate([runs, ((numbers - priors) / spread).ravel()])

    return least_squares(misses, priors.ravel()).x.reshape(priors.shape)


def tell(name, chosen, numbers):
    """Errors of some cells."""
    errors = np.array([cell.error(numbers) for cell in chosen])
    print(f"{name:34} {len(errors):3} cells  median {100 * np.median(np.abs(errors)):4.1f} %", end="  ")
    print(f"p90 {100 * np.quantile(np.abs(errors), 0.9):4.1f} %  bias {100 * np.median(errors):+5.1f} %")


def main():
    """Tables, then runs."""
    tables, tuned, runs = map(Path, sys.argv[1:4])
    gpus = {"mi300x": load_gpu("mi300x"), "mi355x": load_gpu("mi355x"), "mi308x": mi308x()}
    products(tables, gpus)
    experts(tuned, gpus)
    known = [cell for cell in cells(runs) if cell.version in CURRENT[cell.kernels]]
    fitted = {}
    for kernels in CURRENT:
        own = [cell for cell in known if cell.kernels == kernels]
        fitted[kernels] = fit_runs(own)
        print(kernels)
        for name, numbers in zip(PRIORS, np.exp(fitted[kernels]), strict=True):
            print("    {:16} launches {:5.2f}  share {:4.2f}  memory {:4.2f}".format(name, *numbers))
        tell(f"{kernels} by itself", own, fitted[kernels])
        tell(f"{kernels} by tables alone", own, np.log(np.array([prior for prior, _ in PRIORS.values()])))
        for gpu in sorted({cell.gpu for cell in own}) if len({cell.gpu for cell in own}) > 1 else ():
            others = fit_runs([cell for cell in own if cell.gpu != gpu])
            tell(f"{gpu} left out", [cell for cell in own if cell.gpu == gpu], others)
    for kernels, other in (("cdna3", "cdna4"), ("cdna4", "cdna3")):
        tell(f"{kernels} by {other}", [cell for cell in known if cell.kernels == kernels], fitted[other])


if __name__ == "__main__":
    main()
