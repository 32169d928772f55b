"""What every kind of token mixer answers: its weights, how GPUs split it, its kernels and its cache.

A token mixer is the half of a layer that lets tokens see each other: attention of some kind, or a recurrence. A kind
is a frozen dataclass of the numbers that a config.json gives, with these methods. Nothing outside this folder asks
which kind a mixer is, but for rules of an engine that hold for one kind alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from infercast.models.mixers.cache import Cache
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.attention import Lengths
from infercast.ops.op import Size


class Mixer(ABC):
    """The half of a layer that mixes tokens."""

    __slots__ = ()

    modules: ClassVar[tuple[str, ...]]
    """Names of its linear modules in a checkpoint, from the layer's own name on: ``self_attn.q_proj``."""
    part: ClassVar[str] = "attention"
    """The part of the model whose weight format its matrices have: ``attention`` or ``recurrent``."""
    is_empty: ClassVar[bool] = False
    """Whether the layer has no mixer at all: no kernels, no norm before it, no all-reduce after it."""
    takes_quantised: ClassVar[bool] = False
    """Whether the norm before it also quantises what it writes, where activations are quantised."""
    is_composed: ClassVar[bool] = False
    """Whether an engine makes it of many small operations in Python, which the host pays for outside full graphs."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A few characters for a list of models."""

    @property
    @abstractmethod
    def description(self) -> str:
        """A few words for the page of one model."""

    @abstractmethod
    def matrices(self, hidden: int) -> int:
        """Weights in matrices, which quantising makes smaller."""

    @abstractmethod
    def vectors(self, hidden: int) -> int:
        """Norms, biases and other weights that stay in the base format, on every GPU."""

    @abstractmethod
    def held_bytes(self, shard: Shard) -> float:
        """Bytes of the matrices that one GPU holds."""

    @abstractmethod
    def divides(self, tensor: int) -> bool:
        """Whether it splits evenly over so many GPUs."""

    @property
    @abstractmethod
    def split_widths(self) -> Mapping[str, int]:
        """Widths that GPUs split, by what people call them, where weights in blocks must be cut between blocks."""

    @abstractmethod
    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Kernels that need only the number of tokens in the step: projections, norms, the write to the cache."""

    @abstractmethod
    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Kernels that need the sequences of the batch: ``queries`` new tokens of ``keys`` in all, each.

        The last axis runs over the batch; axes in front of it are an array of batches, in which ``sequences`` says how
        often each row stands.
        """

    def verify_calls(
        self, shard: Shard, layers: int, width: int, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Those of sequences that verify drafts: ``width`` new tokens each, of ``keys`` in all.

        Unless a kind says otherwise, as many single tokens: each chooses what it looks at, or writes a state.
        """
        single = np.ones(1, dtype=np.int64) if keys.ndim == 1 else np.ones((1, 1), dtype=np.int64)
        return self.sequence_calls(shard, layers, np.broadcast_to(single, keys.shape), keys, sequences * width)

    @abstractmethod
    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """What one layer keeps: one cache in most kinds, several where parts of it are stored apart."""
