"""Fit the efficiencies of plain PyTorch operators on an H200, and say how far off they are on hidden shapes.

    python benchmarks/accuracy/fit_operators.py             errors by operator, each shape hidden in one of five folds
    python benchmarks/accuracy/fit_operators.py --write     fits on all rows too: operators.npz and the table

Rows: measurements/h200-sxm/torch (calls in CUDA graphs) and attention by Triton, FlashAttention 2 and cuDNN of
measurements/h200-sxm/probe.parquet (warm operands). A fold hides whole shapes, in all formats and kernels. Fold 0 was
never looked at while pipes, features and settings were chosen. Needs infercast[fit] and scipy.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.bundled import DATA
from infercast.hardware import load_gpu
from infercast.lab.fit.train import Settings, boost, file_hash, origin_of
from infercast.ops import Op
from infercast.ops.tensor import Lstm, Product, Sdpa, TensorOp, conv2d
from infercast.predict import operators
from infercast.predict.fitted import Entry, save_artifact
from training import revision

HOME = Path(__file__).parents[2]
MEASURED = HOME / "measurements/h200-sxm"
RESULTS = HOME / "benchmarks/results/kernels.md"
FOLDS = 5
SETTINGS = Settings(trees=300, depth=5, learning_rate=0.08)
FIRST = {"launch": 1.5, "dram": 1.1}
"""Weights of pipes before any row was seen; of all others 0.7, ..."""
PRIOR = 1.5  # ... and how far off they may be, as a logarithm
FEW = 45  # Rows below which an interval is that of more kernels
BEGIN, END = "<!-- operators -->\n", "<!-- end of operators -->\n"


NOISE = 0.05


class Row(NamedTuple):
    name: str
    op: Any
    seconds: float
    fold: int
    weight: float = 1.0


def fold_of(shape: object) -> int:
    return int(hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8], 16) % FOLDS


def torch_op(name: str, dtype: str, case: dict[str, Any]) -> Op:
    get = case.get
    if name in ("linear", "bmm"):
        return Product(case["m"], case["n"], case["k"], get("b", 1), dtype=dtype, bias=get("bias", False))
    if name == "conv2d":
        padding = 0 if case["stride"] == case["kernel"] else case["kernel"] // 2
        sides = (case["n"], case["c"], case["h"], case["out"], case["kernel"], case["stride"])
        return conv2d(*sides, padding=padding, groups=case["groups"], channels_last=case["last"], dtype=dtype)
    if name == "lstm":
        return Lstm(case["n"], case["steps"], case["size"], case["size"], case["layers"], dtype=dtype)
    if name.startswith("sdpa_"):
        queries = case["kv"] if case["causal"] else case["q"]
        sizes = (case["b"], case["heads"], queries, case["kv"], case["dim"])
        return Sdpa(*sizes, causal=case["causal"], dtype=dtype, kernel=name.removeprefix("sdpa_"))
    return _tensor_op(name, dtype, case)


def _tensor_op(name: str, dtype: str, case: dict[str, Any]) -> TensorOp:
    if "elements" in case:
        return TensorOp(name, case["elements"], dtype=dtype)
    if name == "embedding":
        return TensorOp(name, case["tokens"], case["cols"], count=case["vocabulary"], dtype=dtype)
    if "rows" in case:
        wider, chosen = 2 if name == "cat_last" else 1, min(case["k"], case["cols"]) if name == "topk" else 0
        kind = {"cat_last": "cat", "transpose_copy": "transpose"}.get(name, name)
        return TensorOp(kind, case["rows"], wider * case["cols"], count=chosen, dtype=dtype)
    images, channels, pixels = case["n"], case["c"], case["h"] ** 2
    if name == "group_norm":
        return TensorOp(name, images * 32, channels // 32 * pixels, dtype=dtype)
    if name == "channels_last":
        return TensorOp(name, channels, pixels, batch=images, dtype=dtype)
    pooled = images * channels * ((case["h"] - 1) // 2 + 1) ** 2 * (4.0 if dtype == "fp32" else 2.0)
    return TensorOp(name, images * channels, pixels, dtype=dtype, written=pooled if name == "max_pool" else None)


def torch_rows() -> list[Row]:
    found = []
    for path in sorted((MEASURED / "torch").glob("operators*.csv.gz")):
        with gzip.open(path, "rt", newline="") as file:
            for row in csv.DictReader(file):
                name, dtype, case = row["operator"], row["format"], json.loads(row["case"])
                if case.get("b") == 1 and name == "bmm":
                    continue  # no batch: what a linear layer with its weights the other way round takes
                op, seconds = torch_op(name, dtype, case), 1e-6 * float(row["microseconds"])
                found.append(Row(f"{name.removeprefix('sdpa_')}/{dtype}", op, seconds, fold_of([name, case])))
    return found


def probe_rows() -> list[Row]:
    table = pd.read_parquet(MEASURED / "probe.parquet")
    kernels = {"flash2": "flash_attention", "cudnn": "cudnn_attention", "triton": "triton"}
    found = []
    for row in table[table.op.isin(["decode", "prompts"])].itertuples():
        is_prompt, length = row.op == "prompts", int(row.length)
        sizes = (int(row.rows), int(row.heads), length if is_prompt else 1, length, int(row.width))
        op = Sdpa(*sizes, causal=is_prompt, dtype=row.dtype, kernel=kernels[row.by], kv_heads=int(row.kv_heads))
        found.append(Row(f"{op.kernel}/{op.dtype}", op, 1e-6 * row.warm_us, fold_of([row.op, *sizes, op.kv_heads])))
    return found


class Family:
    """All rows that one forest is of."""

    def __init__(self, rows: list[Row]) -> None:
        gpu = load_gpu(operators.GPU)
        self.rows, self.work = rows, [operators.work_of(row.op, gpu) for row in rows]
        self.target, self.weight = np.log([row.seconds for row in rows]), np.array([row.weight for row in rows])
        self.folds = np.array([row.fold for row in rows])
        self.pipes = np.array([[*each.pipes.values()] for each in self.work])
        self.kernels = np.array([f"{work.kernel}/{row.op.dtype}" for work, row in zip(self.work, rows, strict=True)])

    def weights(self, kernel: str, used: Any) -> operators.Weights:
        """Of one kernel, on the rows that are used; few rows leave them near what is usual."""
        mine = used & (self.kernels == kernel)
        pipes, target, trust = self.pipes[mine], self.target[mine], np.sqrt(self.weight[mine]) / NOISE
        first = np.log([FIRST.get(name, 0.7) for name in self.work[0].pipes])

        def missed(values: Any) -> Any:
            power = 1.0 + 3.0 / (1.0 + np.exp(-values[-1]))
            weighted = pipes * np.exp(values[:-1])
            seconds = weighted[:, 0] + ((weighted[:, 1:] + 1e-15) ** power).sum(axis=1) ** (1.0 / power)
            return np.concatenate([(np.log(seconds) - target) * trust, (values[:-1] - first) / PRIOR, values[-1:]])

        found = least_squares(missed, np.append(first, 0.0), loss="soft_l1", max_nfev=60).x
        weights = tuple(round(float(each), 4) for each in np.exp(found[:-1]))
        return operators.Weights(weights, round(float(1.0 + 3.0 / (1.0 + np.exp(-found[-1]))), 3))

    def fit(self, used: Any) -> tuple[dict[str, operators.Weights], Any, Any]:
        """Weights, forest, and the logarithms of all rows' estimates."""
        weights = {kernel: self.weights(kernel, used) for kernel in sorted(set(self.kernels))}
        timed = [weights[kernel].seconds(work) for kernel, work in zip(self.kernels, self.work, strict=True)]
        features = np.array([operators.features_of(w, *each) for w, each in zip(self.work, timed, strict=True)])
        base = np.log([seconds for seconds, _ in timed])
        forest = boost(features[used], (self.target - base)[used], SETTINGS, self.weight[used])
        return weights, forest, base + forest.predict(features)

    def hidden(self) -> Any:
        """The logarithms of all rows' estimates, each by a fit without its fold."""
        found = np.zeros(len(self.rows))
        for fold in range(FOLDS):
            is_hidden = self.folds == fold
            found[is_hidden] = self.fit(~is_hidden)[2][is_hidden]
        return found

    def ends(self, kernel: str, missed: Any, used: Any) -> tuple[float, float]:
        """Of the 80 % interval, by what hidden shapes missed; one of few rows has its operator's or its family's."""
        used = used & (self.weight == 1.0)
        operator, dtype = kernel.partition("/")[0], kernel.rpartition("/")[2]
        alike = np.array([each.partition("/")[0] == operator for each in self.kernels])
        same = alike & np.array([each.endswith(f"/{dtype}") for each in self.kernels])
        among = (used & mine for mine in (self.kernels == kernel, same, alike))
        low, high = np.quantile(missed[next((mine for mine in among if mine.sum() >= FEW), used)], [0.1, 0.9])
        return min(float(low), -0.01), max(float(high), 0.01)


def families() -> dict[str, Family]:
    by_name = defaultdict(list)
    gpu = load_gpu(operators.GPU)
    for row in [*torch_rows(), *probe_rows()]:
        by_name[operators.work_of(row.op, gpu).family].append(row)
    return {name: Family(rows) for name, rows in by_name.items()}


class Line(NamedTuple):
    name: str
    rows: int
    mean: float
    median: float
    tenth: float
    inside: float
    unseen: float  # Mean of the fold that nothing was chosen on


def judged(family: Family, estimates: Any) -> list[Line]:
    """Errors of each operator and format on hidden shapes, and how many lie in the interval that other folds say."""
    missed = family.target - estimates
    inside = np.zeros(len(missed), dtype=bool)
    for fold in range(FOLDS):
        others = family.folds != fold
        for kernel in set(family.kernels):
            low, high = family.ends(kernel, missed, others)
            mine = ~others & (family.kernels == kernel)
            inside[mine] = (missed[mine] >= low) & (missed[mine] <= high)
    errors, names = np.abs(np.expm1(-missed)), np.array([row.name for row in family.rows])
    lines = []
    for name in sorted(set(names)):
        mine = (names == name) & (family.weight == 1.0)
        unseen = errors[mine & (family.folds == 0)]
        numbers = (errors[mine].mean(), np.median(errors[mine]), np.quantile(errors[mine], 0.9), inside[mine].mean())
        lines.append(Line(name, int(mine.sum()), *map(float, numbers), float(unseen.mean()) if len(unseen) else 0.0))
    return lines


def table(lines: list[Line]) -> str:
    head = (
        "| operator | rows | mean % | median % | p90 % | inside 80 % | fold 0 mean % |\n|---|--:|--:|--:|--:|--:|--:|\n"
    )
    shares = ((line, [100 * value for value in line[2:]]) for line in lines)
    return head + "".join(
        f"| {line.name} | {line.rows} | " + " | ".join(f"{value:.1f}" for value in values[:3])
        + f" | {values[3]:.0f} | {values[4]:.1f} |\n" for line, values in shares
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="families, with commas between")
    options = parser.parse_args()
    lines, models, kernels, groups = [], [], {}, []
    for name, family in families().items():
        if options.only and name not in options.only.split(","):
            continue
        estimates = family.hidden()
        lines += judged(family, estimates)
        print(table(lines[-len({row.name for row in family.rows}) :]), flush=True)
        if not options.write:
            continue
        everything = np.ones(len(family.rows), dtype=bool)
        weights, forest, _ = family.fit(everything)
        missed, ends = family.target - estimates, {}
        for kernel, found in weights.items():
            mine = (family.kernels == kernel) & (family.weight == 1.0)
            ends[kernel] = family.ends(kernel, missed, everything)
            error = float(np.abs(np.expm1(-missed[mine])).mean())
            low, high = (round(each, 4) for each in ends[kernel])
            kernels[kernel] = found._replace(low=low, high=high, rows=int(mine.sum()), error=round(error, 4))._asdict()
        low, high = np.quantile(missed, [0.1, 0.9])
        error = float(np.abs(np.expm1(-missed)).mean())
        entry = Entry(name, operators.GPU, operators.LIBRARY, "", len(missed), 0.0, 1.0, float(low), float(high), error)
        models.append((entry, forest))
        groups += [*family.folds]
    if options.write:
        paths = [*sorted((MEASURED / "torch").glob("operators*.csv.gz")), MEASURED / "probe.parquet"]
        origin = origin_of({path.name: file_hash(path) for path in paths}, revision())
        header = {"kernels": kernels, "folds": FOLDS}
        save_artifact(
            DATA / "fitted/operators.npz", models, header, np.array(groups), inputs=operators.INPUTS, origin=origin
        )
        text = RESULTS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        RESULTS.write_text(before + BEGIN + table(sorted(lines)) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
