"""A linear layer as kernels: the product, and the quantising of its input where the format asks for it."""

from __future__ import annotations

from infercast.ops import Call, Gemm
from infercast.ops.elementwise import quantise
from infercast.ops.op import Size


def linear(
    name: str,
    tokens: Size,
    outputs: int,
    inputs: int,
    formats: tuple[str, str],
    base: str,
    count: int,
    *,
    quantised: bool = False,
) -> list[Call]:
    """``formats`` is (weight format, activation format); inputs arrive and outputs leave in ``base``.

    ``quantised`` inputs arrive in the activation format: the norm or activation before has quantised them.
    """
    weight, activation = formats
    calls = []
    if activation != base and not quantised:
        calls.append(Call(f"{name}_quantise", quantise(tokens, inputs, base, activation, compiled=True), count))
    calls.append(Call(name, Gemm(tokens, outputs, inputs, activation, weight, base), count))
    return calls
