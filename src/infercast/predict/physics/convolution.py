"""Short causal convolutions: every channel of a token with the same channel of the few tokens before it.

Triton's kernels move tokens through memory or L2 and spend cycles on every value; a block goes through a few tokens one
after another. The older CUDA kernel has a block for each channel of each sequence, which takes 512 tokens at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.hardware.gpu import Gpu
from infercast.ops.dtypes import bytes_of
from infercast.ops.recurrent import ShortConvolution
from infercast.predict.physics.either import Number, kit_of
from infercast.predict.physics.terms import Physics

CONVOLUTION_FEATURES = (
    "log_tokens",
    "log_sequences",
    "log_mean",
    "log_channels",
    "log_bytes_over_l2",
    "dram_share",
    "l2_share",
    "values_share",
    "launch_share",
    "log_microseconds",
)
OVERLAP = 4.0
CHAIN = 8.0
"""Tokens that a block of Triton's kernel takes one after another."""
SPAN = 512.0
"""Tokens that a block of the CUDA kernel takes at a time."""


class _Kernel(NamedTuple):
    """Fitted to tables of L40S, H100 and H200 together."""

    launch: float
    """Cycles of a launch with one token ..."""
    row: float
    """... and of each further one that a block takes after it."""
    value: float
    """Cycles of a multiprocessor with one value."""
    dram: float
    """Share of the memory's bandwidth that it reaches."""
    cache: float
    """Share of L2 that holds what it reads and writes."""
    cliff: float
    """How sharply the hits end there."""
    l2: float
    """Share of L2's bandwidth."""
    block: float = 0.0
    """Cycles of a multiprocessor with a block of one channel and one sequence ..."""
    span: float = 0.0
    """... and with each span of tokens in it."""


TRITON, CUDA = "triton", "cuda"
KERNELS = {
    (TRITON, False): _Kernel(3730.0, 353.0, 0.33, 0.71, 1.08, 10.7, 0.39),
    (TRITON, True): _Kernel(3020.0, 496.0, 0.94, 0.69, 1.57, 10.3, 0.45),
    (CUDA, False): _Kernel(8500.0, 0.0, 0.0, 0.78, 1.8, 6.0, 0.53, 64.0, 148.0),
    (CUDA, True): _Kernel(6000.0, 1000.0, 0.7, 0.64, 1.3, 7.0, 0.40),
}


class Convolving:
    """Convolutions of one width on one GPU."""

    def __init__(self, op: ShortConvolution, gpu: Gpu) -> None:
        kernel = op.kernel if (op.kernel, op.update) in KERNELS else TRITON
        self.op, self.gpu, self.kernel = op, gpu, KERNELS[kernel, op.update]

    def physics(self, size: tuple[Number, Number], *, engine: bool = False) -> Physics:
        """So many tokens of so many sequences; in an ``engine`` they take as long as in a table."""
        del engine
        op, gpu, kernel, (tokens, sequences) = self.op, self.gpu, self.kernel, size
        x, value = kit_of(tokens), bytes_of(op.dtype)
        mean = tokens / x.larger(sequences, 1.0)
        moved = 2.0 * value * op.channels * (tokens + (op.taps - 1) * sequences)
        missed = x.miss_share(moved, gpu.l2_bytes * kernel.cache, kernel.cliff)
        per_sm = op.channels / gpu.sms / gpu.boost_clock
        blocks = sequences * (kernel.block + kernel.span * x.ceil(mean / SPAN))
        terms = {
            "dram": moved * missed / (gpu.dram_bandwidth * kernel.dram),
            "l2": moved / (gpu.l2_bandwidth * kernel.l2),
            "values": (tokens * kernel.value + blocks) * per_sm,
            "launch": (kernel.launch + kernel.row * x.smaller(mean, CHAIN)) / gpu.boost_clock,
        }
        seconds = terms["launch"] + x.soft_max(OVERLAP, terms["dram"] + 1e-12, terms["l2"], terms["values"])
        features = x.columns(
            *x.logs(tokens, sequences, mean, op.channels + 0.0 * mean, moved / gpu.l2_bytes),
            *(term / seconds for term in terms.values()),
            x.log2(seconds * 1e6),
        )
        return Physics(seconds, terms, features)
