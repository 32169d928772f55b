"""Short causal convolutions of recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from infercast.hardware import Gpu
from infercast.ops import ShortConvolution
from infercast.predict.families.family import Ceiling, Family, Shape, Values
from infercast.predict.families.pipes import Array, dram_seconds, floats, lone
from infercast.predict.physics.convolution import CONVOLUTION_FEATURES, TRITON, Convolving

if TYPE_CHECKING:
    from infercast.predict.profile import KernelProfile


def convolution_variant(op: ShortConvolution) -> str:
    """Kernels that are learned apart: of prompts, or of one new token a sequence, and whose."""
    return f"{'update' if op.update else 'prompts'}/{op.kernel or TRITON}"


def _variants(op: ShortConvolution, gpu: Gpu, profile: KernelProfile) -> tuple[str, ...]:
    del gpu, profile
    return (convolution_variant(op),)


def _sizes(op: ShortConvolution) -> tuple[Array, Array]:
    tokens, sequences = np.broadcast_arrays(floats(op.tokens), floats(op.sequences))
    return tokens, sequences


def _size_of_one(op: ShortConvolution) -> tuple[float, float] | None:
    tokens, sequences = lone(op.tokens), lone(op.sequences)
    return None if tokens is None or sequences is None else (tokens, sequences)


def _limits(op: ShortConvolution, gpu: Gpu) -> dict[str, Array]:
    return {"fma": np.ravel(op.flops) / gpu.fma_flops, "dram": np.ravel(dram_seconds(op, gpu))}


def _build(values: Values, tokens: Any, *, update: bool) -> ShortConvolution:
    channels, taps = int(values["channels"]), int(values["taps"])
    return ShortConvolution(tokens, values["batch"], channels=channels, taps=taps, update=update, dtype=values["dtype"])


_OPTIONS = {"taps": 4, "dtype": "bf16"}
CONVOLUTION = Family(
    name="convolution",
    archive="recurrent",
    position=8,
    op=ShortConvolution,
    shapes={
        "convolution": Shape(
            ("batch", "q_len", "channels"),
            _OPTIONS,
            lambda values: _build(values, values["batch"] * values["q_len"], update=False),
        ),
        "convolution_update": Shape(
            ("batch", "channels"), _OPTIONS, lambda values: _build(values, values["batch"], update=True)
        ),
    },
    step_sizes=("tokens", "sequences"),
    sizes=_sizes,
    size_of_one=_size_of_one,
    kind=attrgetter("update", "kernel", "dtype"),
    core=Convolving,
    core_key=attrgetter("channels", "taps"),
    named=lambda op, variant: op if op.kernel else replace(op, kernel=variant.partition("/")[2]),
    features={"convolution": CONVOLUTION_FEATURES},
    shares=("dram", "l2", "values", "launch"),
    pipes=lambda op, gpu: {"fma": op.flops / gpu.fma_flops, "dram": dram_seconds(op, gpu)},
    limits=_limits,
    variants=_variants,
    spread={"convolution": 3.0},
    typical=lambda _: ("convolution",),
    ceiling=Ceiling(
        features=("log_mean",),
        shape=lambda op, _: [np.log2(np.ravel(floats(op.tokens)) / np.maximum(np.ravel(floats(op.sequences)), 1.0))],
        variant=lambda op: "update" if op.update else "prompts",
    ),
)
