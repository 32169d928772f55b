"""Communication between the GPUs of one replica."""

from __future__ import annotations

from infercast.ops.op import Quantity, Size
from infercast.records import dataclass


def _volume(kind: str, gpus: int) -> float:
    """Bytes that cross a GPU's links for each byte of the message: the volume of a ring."""
    share = (gpus - 1) / gpus
    return {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "all_to_all": share,
        "send_recv": 1.0,
    }[kind]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over ``gpus`` GPUs; ``message_bytes`` is the full message as the caller sees it."""

    kind: str
    message_bytes: Size
    gpus: int
    library: str = "vllm"
    """Whose kernels: an engine's, which has an all-reduce of its own for short messages, or ``nccl``."""
    family: str = "collective"
    compute_dtype: str = "fp32"

    @property
    def flops(self) -> Quantity:
        """Reductions are never what limits a collective."""
        return 0.0 * self.message_bytes

    @property
    def link_bytes(self) -> Quantity:
        """Bytes that cross each GPU's links in one direction."""
        return _volume(self.kind, self.gpus) * self.message_bytes

    @property
    def bytes_read(self) -> Quantity:
        """Each GPU reads its message once."""
        return 1.0 * self.message_bytes

    @property
    def bytes_written(self) -> Quantity:
        """Each GPU writes its result once."""
        return 1.0 * self.message_bytes
