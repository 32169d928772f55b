"""Whole modules of sparse attention, projections included: what the sum of their kernels' estimates misses.

Published tables time modules. Kernels of one module partly run side by side, and small ones follow each other faster
than alone, so their sum is near but not right; how near is learned by what the sum is made of. Steps of an engine are
made of kernels and do not ask this family: it says how far the sum of kernels is to be believed.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from infercast.hardware import Gpu
from infercast.ops.op import Quantity
from infercast.ops.sparse import Batch
from infercast.predict.families.family import Ceiling, Family
from infercast.predict.families.pipes import Array
from infercast.predict.physics.attention_batch import Batch as Lengths
from infercast.predict.physics.attention_batch import batch_of
from infercast.predict.physics.sparse_batch import phase_of
from infercast.predict.physics.terms import Physics, columns, fill, log2

PARTS = ("products", "small", "scores", "choice", "attention")
FEATURES = (
    "log_sequences",
    "log_tokens",
    "log_mean_queries",
    "log_mean_keys",
    "log_heads",
    "width",
    "narrow",
    "fill",
    *(f"{name}_share" for name in PARTS),
    "log_products",
    "log_attention",
    "log_seconds",
)


@dataclass(frozen=True)
class SparseModule(Batch):
    """One attention module over batches; of each kind of its kernels the seconds that they are estimated to take."""

    _: KW_ONLY
    kind: str
    heads: int
    weight_bytes: float
    """Of one value of its projections."""
    narrow: bool
    """Whether its cache is."""
    products: Array
    small: Array
    """Norms, rotations, copies and the like."""
    scores: Array
    choice: Array
    attention: Array
    family: str = "sparse_module"
    compute_dtype: str = "bf16"

    @property
    def flops(self) -> Quantity:
        """Its kernels count theirs."""
        return 0.0 * self.products

    bytes_read = bytes_written = flops


class Summing:
    """The sum of a module's kernels on one GPU."""

    def __init__(self, op: SparseModule, gpu: Gpu) -> None:
        self.op, self.gpu = op, gpu

    def physics(self, size: Lengths, *, engine: bool = False) -> Physics:
        """One module for each batch."""
        del engine
        op, terms = self.op, {name: getattr(self.op, name) for name in PARTS}
        seconds = sum(terms.values())
        tokens = size.total(size.queries)
        features = columns(
            log2(size.size),
            log2(tokens),
            log2(tokens / size.size),
            log2(size.total(size.keys) / size.size),
            log2(float(op.heads)),
            op.weight_bytes,
            float(op.narrow),
            fill(tokens, self.gpu.sms),
            *(term / seconds for term in terms.values()),
            log2(op.products * 1e6),
            log2(op.attention * 1e6),
            log2(seconds * 1e6),
        )
        return Physics(seconds, terms, features)


def _limits(op: SparseModule, gpu: Gpu) -> dict[str, Array]:
    del gpu
    return {"products": np.ravel(op.flops)}


SPARSE_MODULE = Family(
    name="sparse_module",
    position=14,
    archive="sparse",
    op=SparseModule,
    step_sizes=("sequences", "queries", "keys"),
    sizes=batch_of,
    kind=lambda op: (op.kind, phase_of(op)),
    core=Summing,
    features={"sparse_module": FEATURES},
    shares=PARTS,
    pipes=lambda op, gpu: dict(_limits(op, gpu)),
    limits=_limits,
    variants=lambda op, *_: (f"{op.kind} {phase_of(op)}",),
    typical=lambda _: ("sparse_attention",),
    ceiling=Ceiling(is_known=lambda _: False),
)


def part_of(family: str) -> str:
    """Which kind of a module's kernels those of a family are."""
    return _PARTS.get(family, "small")


_PARTS = {
    "gemm": "products",
    "index_scores": "scores",
    "top_k": "choice",
    "sparse_attention": "attention",
}
