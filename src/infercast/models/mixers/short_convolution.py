"""Gated short convolutions (LFM2): a few taps over each channel, and no other memory of the past.

Facts of vLLM 0.25 (``layers/mamba/short_conv.py``): one product gives two gates and what is convolved; prompts and
decoding sequences of one step are convolved apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.recurrent import RecurrentMixer, State
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.attention import Lengths
from infercast.ops.elementwise import gated_activation
from infercast.ops.op import Size


@dataclass(frozen=True, slots=True)
class GatedConvolution(RecurrentMixer):
    """A convolution of ``taps`` over ``channels``, with a gate before and one after."""

    channels: int
    taps: int = 3
    bias: bool = False

    modules = ("conv.in_proj", "conv.out_proj")
    convolves_decoding = False

    @property
    def label(self) -> str:
        """Channels and taps."""
        return f"conv {self.channels} x {self.taps}"

    @property
    def description(self) -> str:
        """The same in words."""
        return f"short convolution, {self.channels:,} channels of {self.taps} taps"

    def state(self, shard: Shard) -> State:
        """The last tokens of each channel alone."""
        return State("", 0, 0, 0, 0, shard.layout.share(self.channels), self.taps, shard.weights.base)

    def matrices(self, hidden: int) -> int:
        """One product before, one after."""
        return 4 * hidden * self.channels

    def vectors(self, hidden: int) -> int:
        """The convolution, and biases."""
        return self.taps * self.channels + (4 * self.channels + hidden if self.bias else 0)

    def held_bytes(self, shard: Shard) -> float:
        """Channels are split."""
        weights = shard.weights
        return self.matrices(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.recurrent)

    def divides(self, tensor: int) -> bool:
        """Channels must."""
        return self.channels % tensor == 0

    @property
    def split_widths(self) -> dict[str, int]:
        """The output."""
        return {"convolution output": self.channels}

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """The product before, both gates, the product after."""
        weights, width = shard.weights, shard.layout.share(self.channels)
        return [
            *shard.linear("in_proj", tokens, 3 * width, shard.hidden, weights.of_recurrent, layers),
            Call("convolution_gate", gated_activation(tokens, width, weights.base), 2 * layers),
            *shard.linear("out_proj", tokens, shard.hidden, width, weights.of_recurrent, layers),
        ]

    def _scan(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        """There is nothing but the convolution."""
        return []

    def _update(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        """There is nothing but the convolution."""
        return []
