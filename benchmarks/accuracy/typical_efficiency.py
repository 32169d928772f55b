"""What kernels typically reach of the roofline: the numbers of data/typical.toml.

    python benchmarks/accuracy/typical_efficiency.py [TABLE.parquet]

Of each family, how many empty launches a kernel takes and which share of its busiest pipe it reaches, fitted to the
learned estimates of five measured GPUs over shapes of models (least squares of logarithms, so that short and long
kernels count alike). A table of products of other GPUs (columns gpu, dtype, m, n, k, latency_us) is fitted as well.
"""

import sys
from functools import reduce

import numpy as np
from scipy.optimize import least_squares

from infercast.hardware import load_gpu
from infercast.ops import (
    Attention,
    Collective,
    Gemm,
    HyperConnection,
    IndexScores,
    MoE,
    Scan,
    ShortConvolution,
    StateUpdate,
    TopK,
)
from infercast.ops.op import (
    embedding,
    gated_activation,
    kv_write,
    norm,
    quantise,
    rope,
    routing,
    sampling,
    tensor_rate_of,
)
from infercast.predict.families.sparse import latent_attention
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import launch_floor, pipes_of

GPUS = ("a100-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm")
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
PRODUCTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (2048, 8192), (7168, 2048), (1536, 7168))
LAYERS = ((2048, 768, 128, 8), (4096, 14336, 8, 2), (7168, 256, 256, 8), (2880, 2880, 128, 4))
SPARSE = ("index_scores", "top_k", "sparse_attention", "hyper_connection")
"""Families whose kernels no other chips than Hopper and Blackwell run."""
SOME, LOOSE = 1500, 0.2
"""Rows of a table that are looked at, and the error from which on a row counts less."""


def attention(queries, keys, batch, heads=(32, 8, 128, 128), **more):
    """A batch of equal sequences."""
    return Attention(np.full(batch, queries), np.full(batch, keys), *heads, **more)


def operators():
    """Kernels of models, by family."""
    contexts, batches, rows = (256, 1024, 4096, 16384), (1, 8, 32, 128), (1, 8, 64, 512, 2048, 8192)
    latent = {"heads": (16, 1, 576, 512), "latent_kv": True}
    layers = [(tokens, *layer) for tokens in TOKENS for layer in LAYERS]
    return {
        "gemm": [Gemm(m, n, k, dtype) for m in TOKENS for n, k in PRODUCTS for dtype in ("bf16", "fp8", "fp8_block")],
        "attention_prefill": [attention(new, new, batch) for new in (128, 512, 2048, 8192) for batch in (1, 4)],
        "attention_decode": [attention(1, keys, batch) for keys in contexts for batch in batches],
        "latent": [attention(1, keys, batch, **latent) for keys in contexts for batch in batches],
        "moe": [MoE(*layer, dtype=dtype) for layer in layers for dtype in ("bf16", "fp8", "fp8_block")],
        "moe narrow": [
            MoE(*layer, dtype="bf16", weight_dtype=dtype) for layer in layers for dtype in ("int4", "mxfp4")
        ],
        "norm": [norm(many, width, residual=True) for many in rows for width in (2048, 4096, 8192)],
        "activation": [gated_activation(many, width) for many in rows for width in (1024, 3584, 14336)],
        "rope": [rope(many, heads, 128) for many in rows for heads in (10, 40)],
        "quantise": [quantise(many, width, compiled=True) for many in rows for width in (2048, 4096, 8192)],
        "kv_write": [kv_write(many, width) for many in rows for width in (256, 2048)],
        "sampling": [sampling(many, 128256) for many in (1, 8, 64, 512)],
        "embedding": [embedding(many, 4096) for many in rows],
        "routing": [routing(many, 128, 8) for many in rows],
        "scan": [
            Scan(np.array([length]), batch, heads=heads, key_heads=16)
            for length in (128, 512, 2048, 8192)
            for batch in (1, 4, 16)
            for heads in (16, 32, 64)
        ],
        "state_update": [StateUpdate(many, heads=heads, key_heads=16) for many in batches for heads in (16, 32, 64)],
        "convolution": [
            *(ShortConvolution(many, max(1, many // 2048), channels=8192) for many in rows),
            *(ShortConvolution(many, many, channels=8192, update=True) for many in batches),
        ],
        **sparse_operators(),
        "collective": [
            Collective(kind, 1 << size, gpus)
            for kind in ("all_reduce", "all_gather", "all_to_all")
            for size in range(13, 28, 2)
            for gpus in (2, 4, 8)
        ],
    }


def sparse_operators():
    """The same of sparse attention."""
    batches = [(1, keys, many) for keys in (1024, 4096, 16384, 65536) for many in (1, 8, 32, 128)]
    batches += [(new, new + before, 1) for new in (128, 512, 2048, 8192) for before in (0, 4096, 32768)]
    lengths = [tuple(np.array([each]) for each in batch) for batch in batches]
    kinds = (("mla", 2048, "bf16"), ("csa", 512, "fp8"), ("hca", 0, "fp8"))
    return {
        "index_scores": [IndexScores(*each, heads=heads) for each in lengths for heads in (32, 64)],
        "top_k": [TopK(*each, topk=2048) for each in lengths],
        "sparse_attention": [
            latent_attention(*each, heads=64, selected=selected, kind=kind, kv_dtype=kv_dtype)
            for each in lengths
            for kind, selected, kv_dtype in kinds
        ],
        "hyper_connection": [
            HyperConnection(many, hidden=hidden, half=half)
            for many in TOKENS
            for hidden in (4096, 7168)
            for half in ("pre", "post")
        ],
    }


def busiest(op, gpu):
    """Seconds of the busiest pipe at its full rate."""
    return float(np.ravel(reduce(np.maximum, pipes_of(op, gpu).values()))[0])


def is_estimated(op, gpu):
    """Whether a kernel is one that this GPU was measured with."""
    if op.family == "collective":
        return gpu.is_linked(op.gpus)
    if op.family in SPARSE:
        return gpu.kernels in ("hopper", "blackwell")
    return op.family != "gemm" or gpu.supports(tensor_rate_of(op.dtype))


def fit(pipes, floors, seconds):
    """Launches and share, and the tenth and ninetieth percentile of log(measured / fitted)."""

    def misses(logarithms):
        launches, share = np.exp(logarithms)
        return np.log((launches * floors + pipes / share) / seconds)

    found = least_squares(misses, [1.0, -0.3], loss="soft_l1", f_scale=LOOSE)
    return *np.exp(found.x), *np.quantile(-misses(found.x), [0.1, 0.9])


def show(name, numbers):
    """One line."""
    print("{:24} launches {:5.2f}  share {:4.2f}  low {:5.2f}  high {:4.2f}".format(name, *numbers))


def main():
    """All families, then a table's products."""
    predictor, gpus = make_predictor(), [load_gpu(name) for name in GPUS]
    for family, ops in operators().items():
        rows = [
            (busiest(op, gpu), launch_floor(gpu), float(np.ravel(predictor.seconds(op, gpu))[0]))
            for gpu in gpus
            for op in ops
            if is_estimated(op, gpu)
        ]
        show(family, fit(*np.array(rows).T))
    if len(sys.argv) > 1:
        import pandas as pd  # noqa: PLC0415 - only tables need it

        table = pd.read_parquet(sys.argv[1])
        for (name, dtype), rows in table[table.gpu.isin(("mi300x", "mi355x"))].groupby(["gpu", "dtype"]):
            gpu, part = load_gpu(name), rows.sample(min(SOME, len(rows)), random_state=0)
            pipes = np.array([busiest(Gemm(*sizes, dtype), gpu) for sizes in zip(part.m, part.n, part.k, strict=True)])
            show(f"{name} {dtype}", fit(pipes, np.full(len(pipes), launch_floor(gpu)), part.latency_us.values * 1e-6))


if __name__ == "__main__":
    main()
