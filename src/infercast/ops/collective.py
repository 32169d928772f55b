"""Communication between the GPUs of one replica."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.ops.op import Quantity, Size

_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often a ring carries each other GPU's share of the message."""
DEFAULT_LIBRARY = "vllm"
"""Whose kernels where nobody says."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over ``gpus`` GPUs; ``message_bytes`` is the full message as the caller sees it."""

    kind: str
    message_bytes: Size
    gpus: int
    library: str = DEFAULT_LIBRARY
    """Whose kernels: an engine's, which has an all-reduce of its own for short messages, or ``nccl``."""
    family: str = "collective"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        """Reductions are never what limits a collective."""
        return 0.0 * self.message_bytes

    @property
    def link_share(self) -> float:
        """Bytes that cross a GPU's links for each byte of the message: the volume of a ring."""
        return 1.0 if self.kind == "send_recv" else _PASSES[self.kind] * ((self.gpus - 1) / self.gpus)

    @property
    def link_bytes(self) -> Quantity:
        """Bytes that cross each GPU's links in one direction."""
        return self.link_share * self.message_bytes

    @property
    def bytes_read(self) -> Quantity:
        """Each GPU reads its message once."""
        return 1.0 * self.message_bytes

    @property
    def bytes_written(self) -> Quantity:
        """Each GPU writes its result once."""
        return 1.0 * self.message_bytes
