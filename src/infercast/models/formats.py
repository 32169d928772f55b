"""How the weights of a model are stored and multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from infercast.ops.dtypes import bytes_of


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights are stored and multiplied, by part of the model.

    Names are dtypes of `infercast.ops.dtypes`. ``activation_*`` is what the inputs of a product are turned into
    before it: the weight's own format (fp8 with dynamic scales), or ``base`` where weights alone are quantised.
    """

    base: str = "bf16"
    """Embedding, norms, router and whatever is not named below."""
    attention: str = "bf16"
    feed_forward: str = "bf16"
    """Dense feed-forward and shared experts."""
    experts: str = "bf16"
    head: str = "bf16"
    activation_attention: str = "bf16"
    activation_feed_forward: str = "bf16"
    activation_experts: str = "bf16"
    recurrent: str = "bf16"
    """Recurrent token mixers, which checkpoints often quantise otherwise than attention."""
    activation_recurrent: str = "bf16"
    experts_kernel: str = ""
    """Whose kernels multiply the experts, where it is not the engine's own choice: ``marlin``, ``triton``, ..."""
    scans_kernel: str = ""
    """Whose kernels scan prompts of gated delta nets, where it is not the engine's own choice."""
    name: str = "bf16"
    """What people call it: ``bf16``, ``fp8``, ``int4``, ``nvfp4``, ..."""
    int4_scale_bytes: float = 2 / 128
    """Bytes of scale and zero point for each 4-bit integer: by default one bf16 scale for 128 of them."""
    quantised_apart: bool = False
    """Inputs are quantised by kernels of their own, not by the norm or activation before: the engine fuses neither."""
    quicker_rows: tuple[int, int, float] = (0, 0, 1.0)
    """Of fp8 products with more than so many rows and up to so many: how many times as long as in measured tables they
    take, where the engine has another kernel for them."""

    @property
    def of_attention(self) -> tuple[str, str]:
        """Weights and inputs of the products in token mixers."""
        return self.attention, self.activation_attention

    @property
    def of_recurrent(self) -> tuple[str, str]:
        """Weights and inputs of the products in recurrent token mixers."""
        return self.recurrent, self.activation_recurrent

    @property
    def of_feed_forward(self) -> tuple[str, str]:
        """Weights and inputs of the products in dense feed-forwards and shared experts."""
        return self.feed_forward, self.activation_feed_forward

    def stored_bytes(self, dtype: str) -> float:
        """Bytes that a weight takes in memory in one of these formats, its share of the scales included."""
        return 0.5 + self.int4_scale_bytes if dtype == "int4" else bytes_of(dtype)


def unquantised(base: str) -> WeightFormat:
    """Everything in one format."""
    return WeightFormat(*(base,) * 10, name=base)


def with_base(weights: WeightFormat, base: str) -> WeightFormat:
    """The same format with another dtype for all that is not quantised."""
    changed: dict[str, Any] = {name: base for name in weights.__match_args__ if getattr(weights, name) == weights.base}
    return replace(weights, **changed)
