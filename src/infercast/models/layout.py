"""How a model is spread over GPUs and stored there: parallel layout, weight formats, and the shard of one GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.ops import Call, Gemm
from infercast.ops.op import DEFAULT_LIBRARY, Quantity, Size, bytes_of, quantise


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """``tensor`` GPUs share every layer; ``pipeline`` such groups hold one stage each, and there are ``data`` copies.
    Copies share routed experts: the width of each is split over the GPUs of all, or with ``experts`` whole ones are
    spread.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    all_to_all: bool = False  # Tokens go only to the GPUs of their experts, not to all that share experts (DeepEP)
    fused_norms: bool = False  # All-reduces carry the norm that follows them in one kernel (``fuse_allreduce_rms``)
    library: str = DEFAULT_LIBRARY  # The library of all-reduces, as in `Collective`
    apart: bool = False  # Each copy has all experts to itself, so that copies share nothing
    cut: tuple[int, ...] = ()  # Layers of each stage; empty: equal numbers, and what is left over ...
    extra_last: bool = False  # ... goes to the last stages, not to the last but one and those before it.
    redundant: int = 0  # Copies of experts of each layer, over all GPUs
    balanced: bool = False  # They are of the most loaded experts, and GPUs are loaded as evenly as engines can (EPLB)

    @property
    def gpus(self) -> int:
        """GPUs that all copies occupy together."""
        return self.replica_gpus * self.data

    @property
    def replica_gpus(self) -> int:
        """GPUs of one copy, which one engine drives."""
        return self.tensor * self.pipeline

    @property
    def sharing(self) -> int:
        """Copies that share experts, if the model has any."""
        return 1 if self.apart else self.data

    @property
    def expert_gpus(self) -> int:
        """GPUs that the experts of a layer are spread over; 1 where each GPU holds a share of every expert."""
        return self.tensor * self.sharing if self.experts else 1

    @property
    def gpus_per_expert(self) -> int:
        return 1 if self.experts else self.tensor * self.sharing

    def share_expert_width(self, inter: int) -> int:
        return -(-inter // self.gpus_per_expert)

    def share(self, size: int) -> int:
        """What one GPU holds of a dimension that is split, rounded up as engines pad it."""
        return -(-size // self.tensor)

    def share_kv_heads(self, kv_heads: int) -> int:
        """Key-value heads one GPU holds: with fewer heads than GPUs each is kept more than once."""
        return kv_heads if self.tensor == 1 else max(1, kv_heads // self.tensor)

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        return "+".join([*parts, "EP"] if self.experts else parts)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights are stored and multiplied, by part of the model; names are dtypes of `infercast.ops.op`.
    ``activation_*``: what inputs of a product are turned into, the weight's own format or ``base``.
    """

    base: str = "bf16"  # Embedding, norms, router and whatever is not named below
    attention: str = "bf16"
    feed_forward: str = "bf16"  # Dense feed-forward and shared experts
    experts: str = "bf16"
    head: str = "bf16"
    activation_attention: str = "bf16"
    activation_feed_forward: str = "bf16"
    activation_experts: str = "bf16"
    recurrent: str = "bf16"  # Recurrent token mixers, which checkpoints often quantise otherwise than attention
    activation_recurrent: str = "bf16"
    experts_kernel: str = ""  # Kernels of experts, where not the engine's own choice: ``marlin``, ``triton``, ...
    scans_kernel: str = ""  # Library that scans prompts of gated delta nets, where not the engine's own choice
    name: str = "bf16"  # What people call it: ``bf16``, ``fp8``, ``int4``, ``nvfp4``, ...
    int4_scale_bytes: float = 2 / 128  # Scale and zero point of each 4-bit integer: by default one bf16 scale for 128
    quantised_apart: bool = False  # Inputs are quantised by kernels of their own, not by the norm or activation before
    quicker_rows: tuple[int, int, float] = (0, 0, 1.0)
    """Of fp8 products with more rows than the first number and up to the second: how many times as long as in measured
    tables they take, where the engine has another kernel for them."""

    def of(self, part: str) -> tuple[str, str]:
        return getattr(self, part), getattr(self, f"activation_{part}")

    def stored_bytes(self, dtype: str) -> float:
        """Bytes that a weight takes in memory in one of these formats, its share of the scales included."""
        return 0.5 + self.int4_scale_bytes if dtype == "int4" else bytes_of(dtype)


def unquantised(base: str) -> WeightFormat:
    return WeightFormat(*(base,) * 10, name=base)


def with_base(weights: WeightFormat, base: str) -> WeightFormat:
    changed: dict[str, Any] = {name: base for name in weights.__match_args__ if getattr(weights, name) == weights.base}
    return replace(weights, **changed)


class Shard(NamedTuple):
    hidden: int
    architecture: str  # As config.json names it, for rules of an engine that go by that name
    weights: WeightFormat
    cache_dtype: str  # The format that keys and values are cached in
    layout: ParallelLayout

    def linear(
        self, name: str, tokens: Size, outputs: int, inputs: int, part: str, *, quantised: bool = False, count: int = 1
    ) -> list[Call]:
        """A linear module as kernels: the product, and the quantising of its input where its ``part`` asks for it.
        ``quantised`` inputs arrive in their own format, where the engine fuses that with the norm or activation before.
        """
        base, apart = self.weights.base, self.weights.quantised_apart
        weight, activation = self.weights.of(part)
        calls = []
        if activation != base and (apart or not quantised):
            op = quantise(tokens, inputs, base, activation, compiled=not apart, apart=apart)
            calls.append(Call(f"{name}_quantise", op, count))
        product = Gemm(tokens, outputs, inputs, activation, weight, base)
        calls.append(Call(name, product, count, slower=self._slower(tokens, activation, weight)))
        return calls

    def _slower(self, tokens: Size, activation: str, weight: str) -> Quantity:
        above, most, factor = self.weights.quicker_rows
        if not most or (activation, weight) != ("fp8", "fp8"):
            return 1.0
        few = (np.asarray(tokens) > above) & (np.asarray(tokens) <= most)
        return np.asarray(np.where(few, factor, 1.0))
