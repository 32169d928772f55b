"""An ordinary feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.feed_forward.feed_forward import UNPADDED, FeedForward, Multiples
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.elementwise import gated_activation, plain_activation
from infercast.ops.op import Size

MODULES = ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj", "mixer.up_proj")


@dataclass(frozen=True, slots=True)
class DenseFeedForward(FeedForward):
    """An ordinary feed-forward network, gated (three matrices) or not (two)."""

    inter: int
    gated: bool = True
    bias: bool = False

    takes_quantised = True
    experts = shared_inter = 0

    @property
    def description(self) -> str:
        """Its width."""
        return f"feed-forward of {self.inter:,}"

    @property
    def modules(self) -> dict[str, list[tuple[str, ...]]]:
        """One stands for all: published checkpoints treat them alike."""
        return {"feed_forward": [MODULES]}

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """Its own."""
        return (self.inter,)

    def matrices(self, hidden: int) -> int:
        """Gate, up and down."""
        return (3 if self.gated else 2) * hidden * self.inter

    def vectors(self, hidden: int) -> int:
        """Biases."""
        return (2 if self.gated else 1) * self.inter + hidden if self.bias else 0

    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        """Split by columns and rows."""
        weights = shard.weights
        return self.matrices(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.feed_forward)

    def live_values(self, shard: Shard) -> float:
        """Gate and up, and the activation between them and down."""
        return 3 * shard.layout.share(self.inter)

    def calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Up, the activation, down."""
        return dense_calls(shard, "", self.inter, self.gated, tokens, layers)


def dense_calls(shard: Shard, prefix: str, inter: int, gated: bool, tokens: Size, layers: int) -> list[Call]:
    """Gate and up in one product, the activation, then down."""
    weights, width = shard.weights, shard.layout.share(inter)
    activation = gated_activation if gated else plain_activation
    up_name = f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj"
    # The norm before and the activation between quantise what they write: the engine's compiler fuses it into them.
    up_width = width * (2 if gated else 1)
    formats = weights.of_feed_forward
    up = shard.linear(up_name, tokens, up_width, shard.hidden, formats, layers, quantised=True)
    down = shard.linear(f"{prefix}down_proj", tokens, shard.hidden, width, formats, layers, quantised=True)
    handed_on = weights.base if weights.quantised_apart else weights.activation_feed_forward
    written = activation(tokens, width, weights.base, handed_on)
    # Without a gate it is a squared ReLU, for which vLLM has no kernel: one cuts, one squares.
    return [*up, Call(f"{prefix}activation", written, layers if gated else 2 * layers), *down]
