"""Dense matrix products, and the routed experts of a layer as one fused operator."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.ops.op import Quantity, Size, bytes_of


@dataclass(frozen=True, slots=True)
class Gemm:
    """``y[m, n] = x[m, k] w[k, n]``, ``batch`` times over with different weights.

    ``dtype`` is the format of ``x`` and of the arithmetic, ``weight_dtype`` the stored format of ``w`` (the same
    unless weights alone are quantised), ``out_dtype`` the format of ``y``.
    """

    m: Size
    n: Size
    k: Size
    dtype: str = "bf16"
    weight_dtype: str | None = None
    out_dtype: str = "bf16"
    batch: int = 1
    family: str = "gemm"
    quantiser: str = ""
    """Whose kernel quantises ``x`` where a table times it with the product; for kernel models only."""

    @property
    def compute_dtype(self) -> str:
        return self.dtype

    @property
    def flops(self) -> Quantity:
        """One multiply-add for each (m, n, k)."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> Quantity:
        """Bytes of ``w`` as stored."""
        return self.batch * bytes_of(self.weight_dtype or self.dtype) * self.n * self.k

    @property
    def bytes_read(self) -> Quantity:
        """``x`` and ``w``, each once."""
        return self.batch * bytes_of(self.dtype) * self.m * self.k + self.weight_bytes

    @property
    def bytes_written(self) -> Quantity:
        """``y``, once."""
        return self.batch * bytes_of(self.out_dtype) * self.m * self.n


@dataclass(frozen=True, slots=True)
class MoE:
    """``topk`` of ``experts`` gated feed-forward networks for each token, from router output to summed result.

    ``local_experts`` of them live on this GPU (all, unless experts are spread over GPUs). Routing is taken as
    uniform in every quantity here: each expert is as likely as any other. ``routing`` is for kernel models only.
    """

    tokens: Size
    hidden: int
    inter: int
    experts: int
    topk: int
    local_experts: int | None = None
    dtype: str = "bf16"
    weight_dtype: str | None = None
    gated: bool = True
    family: str = "moe"
    routing: str = "uniform"
    """How tokens spread over experts: ``uniform``, ``balanced`` (equal counts) or ``power_law_`` and its exponent."""
    kernel: str = ""
    """Whose kernel, where it is not the engine's own choice."""

    @property
    def compute_dtype(self) -> str:
        return self.dtype

    @property
    def num_local(self) -> int:
        return self.experts if self.local_experts is None else self.local_experts

    @property
    def routed_rows(self) -> Quantity:
        """Token-expert pairs computed on this GPU."""
        return self.tokens * (self.topk * self.num_local / self.experts)

    @property
    def experts_hit(self) -> Quantity:
        """Expected number of local experts that receive at least one token."""
        missed = (1.0 - self.topk / self.experts) ** self.tokens
        return self.num_local * (1.0 - missed)

    @property
    def matrices(self) -> int:
        """Weight matrices an expert has: up, down and, where gated, the gate."""
        return 3 if self.gated else 2

    @property
    def flops(self) -> Quantity:
        """The products of every token-expert pair."""
        return 2.0 * self.matrices * self.hidden * self.inter * self.routed_rows

    @property
    def weight_bytes(self) -> Quantity:
        """Weights of the experts that are hit."""
        per_expert = self.matrices * self.hidden * self.inter * bytes_of(self.weight_dtype or self.dtype)
        return per_expert * self.experts_hit

    @property
    def intermediate_bytes(self) -> Quantity:
        """Traffic between the kernels inside: first product out, activation in and out, second product out."""
        width = (self.matrices - 1) * self.inter * 2 + self.inter * 2 + self.hidden
        return 2.0 * width * self.routed_rows

    @property
    def bytes_read(self) -> Quantity:
        """Tokens, weights of the experts hit, and half of the traffic between the kernels inside."""
        return 2.0 * self.hidden * self.tokens + self.weight_bytes + self.intermediate_bytes / 2

    @property
    def bytes_written(self) -> Quantity:
        """The summed result and the other half of the inner traffic."""
        return 2.0 * self.hidden * self.tokens + self.intermediate_bytes / 2
