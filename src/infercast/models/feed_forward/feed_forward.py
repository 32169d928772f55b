"""What every kind of feed-forward answers: its weights, how GPUs split it and its kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.op import Size

Multiples = tuple[int, int]
"""What kernels pad the hidden size and the width of experts to."""
UNPADDED: Multiples = (1, 1)


class FeedForward(ABC):
    """The half of a layer that treats every token by itself."""

    __slots__ = ()

    inter: int
    """Its width, or that of each routed expert."""
    experts: int
    """Routed experts; 0: none."""
    shared_inter: int
    """Width of all experts together that serve every token beside the routed ones; 0: none."""
    is_empty: ClassVar[bool] = False
    """Whether the layer has no feed-forward at all: no kernels, no norm before it, no all-reduce after it."""
    takes_quantised: ClassVar[bool] = False
    """Whether the norm before it also quantises what it writes, where activations are quantised."""

    @property
    def has_plain_groups(self) -> bool:
        """Whether routed experts are chosen from groups by plain scores, for which engines have no kernel."""
        return False

    @property
    @abstractmethod
    def description(self) -> str:
        """A few words for the page of one model."""

    @property
    @abstractmethod
    def modules(self) -> Mapping[str, list[tuple[str, ...]]]:
        """Linear modules in a checkpoint by part, from the layer's name on: what different families call each."""

    @property
    @abstractmethod
    def dense_widths(self) -> tuple[int, ...]:
        """Widths of what computes every token, which the GPUs of a tensor-parallel group split."""

    @abstractmethod
    def matrices(self, hidden: int) -> int:
        """Weights in matrices that serve every token."""

    def expert_values(self, hidden: int, *, active: bool = False) -> tuple[int, int]:
        """Weights of the routed experts, or of those that one token meets: in matrices, and in biases."""
        return 0, 0

    @abstractmethod
    def vectors(self, hidden: int) -> int:
        """Routers, gates and biases, those of the experts left out: on every GPU, in the base format."""

    @abstractmethod
    def held_bytes(self, shard: Shard, multiples: Multiples = UNPADDED) -> float:
        """Bytes that one GPU holds, vectors on every GPU left out."""

    @abstractmethod
    def live_values(self, shard: Shard) -> float:
        """Values a token that are alive at once while it is computed."""

    @abstractmethod
    def calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Its kernels, which all follow from the number of tokens."""
