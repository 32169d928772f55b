"""How well `infercast kernel fit` does from 40 measured shapes of a kernel: errors on all its other shapes.

    python benchmarks/accuracy/own_kernel.py [measurements/h200-sxm] [--draws 3] [--points 40]

Each kernel is fitted with a formula of its work and without, from shapes drawn at random. Prints a table with the
median and the 90th percentile of the absolute error of latency on the shapes that were not drawn (at most 2,000), the
share inside the 80 % interval, and the median that the fit itself states by cross-validation, in per cent, as means
over the draws.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from infercast.forecast.own_kernel import fit_kernel

MOST = 2000
PAIRS = "(q*kv*(1-causal) + causal*(q*min(q,kv) - min(q,kv)**2/2))"
ATTENTION = f"bytes=2*b*heads*dim*(2*q+2*kv); flops=4*b*heads*{PAIRS}*ceil(dim/32)*32; tiles=b*heads*ceil(q/128)"
PLAIN = "bytes=2*b*heads*(dim*(2*q+2*kv)+6*q*kv); flops=4*b*heads*q*kv*dim; tiles=b*heads*ceil(q/128)*ceil(kv/128)"
CONVOLUTION = (
    "bytes=2*((n*c*h*h+n*out*h*h/stride**2)*(3-2*last)+out*c/groups*kernel**2);"
    "flops=2*n*out*(h/stride)**2*c/groups*kernel**2; tiles=ceil(n*(h/stride)**2/128)*ceil(out/128)"
)
TORCH = {
    "linear": "bytes=2*(m*k+k*n+m*n); flops=2*m*n*k; tiles=ceil(m/128)*ceil(n/128)",
    "bmm": "bytes=2*b*(m*k+k*n+m*n); flops=2*b*m*n*k; tiles=b*ceil(m/128)*ceil(n/128)",
    "conv2d": CONVOLUTION,
    "sdpa_flash_attention": ATTENTION,
    "sdpa_efficient_attention": ATTENTION,
    "sdpa_cudnn_attention": ATTENTION,
    "sdpa_math": PLAIN,
    "softmax": "bytes=4*rows*cols; tiles=rows",
    "layer_norm": "bytes=4*rows*cols; tiles=rows",
}
"""PyTorch's operators with 60 rows or more in bf16."""


class Kernel(NamedTuple):
    title: str
    columns: dict[str, Any]
    work: str
    dtype: str = "bf16"


def torch_kernels(folder: Path) -> list[Kernel]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in TORCH}
    with gzip.open(folder / "torch/operators.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["operator"] in TORCH and row["format"] == "bf16":
                case = {name: int(value) for name, value in json.loads(row["case"]).items()}
                found[row["operator"]].append({**case, "us": float(row["microseconds"])})
    return [
        Kernel(f"PyTorch {name.removeprefix('sdpa_')}", dict(pandas.DataFrame(rows)), TORCH[name])
        for name, rows in found.items()
    ]


MOVED = {"add_norm": 8, "silu_mul": 6, "quant": 3, "add_norm_quant": 7, "kv_write": 4, "head_norm": 4}
SWEPT = [
    ("fp8 products (CUTLASS)", "gemm", "m n k", "dtype=='fp8'",
     "bytes=m*k+k*n+2*m*n; flops=2*m*n*k; tiles=ceil(m/128)*ceil(n/128)"),
    ("decode attention (FlashAttention 3)", "attention_decode", "batch kv_len heads kv_heads head_dim",
     "kv_dtype=='bf16' and sigma==0 and not latent and window==0",
     "bytes=4*batch*kv_len*kv_heads*head_dim; flops=4*batch*kv_len*heads*head_dim;"
     "tiles=batch*kv_heads*ceil(kv_len/512)"),
    ("prompt attention (FlashAttention 3)", "attention_prefill", "batch q_len heads kv_heads head_dim",
     "kv_dtype=='bf16' and not latent and window==0 and prefix==0",
     "bytes=4*batch*q_len*head_dim*(heads+kv_heads); flops=2*batch*q_len*q_len*heads*head_dim;"
     "tiles=batch*heads*ceil(q_len/128)"),
    ("routed experts (Triton)", "moe", "tokens hidden inter experts topk", "dtype=='bf16' and routing=='uniform'",
     "bytes=6*hidden*inter*experts*(1-(1-topk/experts)**tokens)+4*tokens*hidden; flops=6*tokens*topk*hidden*inter"),
    ("Mamba-2 scan (Triton)", "scan", "batch q_len heads key_heads key_dim value_dim chunk",
     "kind=='mamba2' and sigma==0",
     "bytes=4*batch*q_len*(heads*value_dim+key_heads*key_dim);"
     "flops=2*batch*q_len*heads*(chunk*(key_dim+value_dim)/2+2*key_dim*value_dim)"),
    ("sparse latent attention (FlashMLA)", "sparse", "heads topk batch q_len prefix", "op=='mla' and kv_dtype=='bf16'",
     "bytes=1152*batch*q_len*topk; flops=2176*batch*q_len*heads*topk; tiles=batch*q_len*ceil(heads/64)"),
    ("top-k of scores (vLLM)", "sparse", "topk batch q_len prefix", "op=='top_k'",
     "bytes=4*batch*q_len*(q_len/2+prefix); tiles=batch*q_len"),
    ("index scores (DeepGEMM)", "sparse", "heads batch q_len prefix", "op=='index_scores'",
     "bytes=batch*(128*(q_len+prefix)+128*heads*q_len+4*q_len*(q_len+prefix));"
     "flops=256*heads*batch*q_len*(q_len+prefix); tiles=batch*ceil(q_len*heads/128)"),
    *((f"{name} (Triton)", "elementwise", "rows width heads", f"op=='{name}'", f"bytes={bytes_}*rows*width*heads")
      for name, bytes_ in MOVED.items()),
    ("rope (Triton)", "elementwise", "rows width heads", "op=='rope'", "bytes=4*rows*width*heads"),
]  # fmt: skip


def swept_kernels(folder: Path) -> list[Kernel]:
    found = []
    for title, table, dims, where, work in SWEPT:
        rows = pandas.read_parquet(folder / f"{table}.parquet").query(where)
        columns = {name: rows[name].to_numpy() for name in dims.split() if rows[name].nunique() > 1 or name in work}
        found.append(
            Kernel(title, columns | {"us": rows["latency_us"].to_numpy()}, work, "fp8" if "fp8" in title else "bf16")
        )
    return found


def score(kernel: Kernel, work: str, points: int, draw: int) -> tuple[float, ...]:
    """Median and 90th percentile of the error, and the share inside the interval, on unseen shapes; then as stated."""
    columns = {name: np.asarray(values) for name, values in kernel.columns.items()}
    order = np.random.default_rng(draw).permutation(len(columns["us"]))
    seen, unseen = order[:points], order[points:][:MOST]
    fitted = fit_kernel({name: values[seen] for name, values in columns.items()}, work=work, dtype=kernel.dtype)
    found = fitted.predict(**{name: values[unseen] for name, values in columns.items() if name != "us"})
    measured = columns["us"][unseen] * 1e-6
    errors = np.abs(found.seconds / measured - 1)
    inside = np.mean((found.low <= measured) & (measured <= found.high))
    return float(np.median(errors)), float(np.quantile(errors, 0.9)), float(inside), fitted.errors["median_error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("measurements/h200-sxm"))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--points", type=int, default=40)
    asked = parser.parse_args()
    print(
        "| kernel | dimensions | shapes scored | with a formula | inside, % | stated | without | inside, % | stated |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: |")
    means = []
    for kernel in [*torch_kernels(asked.folder), *swept_kernels(asked.folder)]:
        both = []
        for work in (kernel.work, ""):
            scores = [score(kernel, work, asked.points, draw) for draw in range(asked.draws)]
            both += (100 * np.mean(scores, axis=0)).tolist()
        means.append(both)
        left = min(MOST, len(kernel.columns["us"]) - asked.points)
        print(f"| {kernel.title} | {len(kernel.columns) - 1} | {left:,} | {_cells(both)} |", flush=True)
    print(f"| median of {len(means)} | | | {_cells(np.median(means, axis=0))} |")


def _cells(both: Any) -> str:
    parts = (both[:4], both[4:])
    return " | ".join(
        f"{median:.1f} / {p90:.0f} | {inside:.0f} | {stated:.1f}" for median, p90, inside, stated in parts
    )


if __name__ == "__main__":
    main()
