"""Dense matrix products."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.ops.dtypes import bytes_of
from infercast.ops.op import Quantity, Size


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
        """The format the tensor cores multiply in."""
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
