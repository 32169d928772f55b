"""One GPU's view of a model: all that a half of a layer needs to know to be held and computed there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from infercast.models.formats import WeightFormat
from infercast.models.layout import ParallelLayout
from infercast.ops import Call, Gemm
from infercast.ops.elementwise import quantise
from infercast.ops.op import Quantity, Size


class Shard(NamedTuple):
    """What all layers of a model have in common, and the layout that splits them."""

    hidden: int
    architecture: str
    """As config.json names it, for rules of an engine that go by that name."""
    weights: WeightFormat
    cache_dtype: str
    """The format that keys and values are cached in."""
    layout: ParallelLayout

    def linear(
        self,
        name: str,
        tokens: Size,
        outputs: int,
        inputs: int,
        formats: tuple[str, str],
        layers: int,
        *,
        quantised: bool = False,
    ) -> list[Call]:
        """A linear module as kernels: the product, and the quantising of its input where the format asks for it.

        ``formats`` are those of weights and inputs; inputs arrive and outputs leave in the base format. ``quantised``
        inputs arrive in their own: the norm or activation before has quantised them, where the engine fuses that.
        """
        base, apart, (weight, activation) = self.weights.base, self.weights.quantised_apart, formats
        calls = []
        if activation != base and (apart or not quantised):
            op = quantise(tokens, inputs, base, activation, compiled=not apart, apart=apart)
            calls.append(Call(f"{name}_quantise", op, layers))
        product = Gemm(tokens, outputs, inputs, activation, weight, base)
        calls.append(Call(name, product, layers, slower=self._slower(tokens, activation, weight)))
        return calls

    def _slower(self, tokens: Size, activation: str, weight: str) -> Quantity:
        """As `WeightFormat.quicker_rows` has it."""
        above, most, factor = self.weights.quicker_rows
        if not most or (activation, weight) != ("fp8", "fp8"):
            return 1.0
        few = (np.asarray(tokens) > above) & (np.asarray(tokens) <= most)
        return np.asarray(np.where(few, factor, 1.0))
