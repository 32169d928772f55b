"""What recurrent token mixers have in common: a state for each sequence, a scan over prompts, an update a token.

Prompts run a convolution over a few tokens and a scan in chunks. A decoding sequence runs the kernels for one token,
which read and write its state whatever its length. Facts of vLLM 0.25 (``v1/attention/backends/gdn_attn.py``,
``layers/mamba``): the state of a sequence is copied out of the cache before the scan and back after it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from infercast.models.mixers.cache import Cache
from infercast.models.mixers.mixer import Mixer
from infercast.models.shard import Shard
from infercast.ops import Call, Scan, ShortConvolution, StateUpdate
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import copy
from infercast.ops.op import Size
from infercast.ops.recurrent import GATED_DELTA

NORM_KERNELS = 2
"""A norm with a gate is two kernels of the compiler: the squares, then what they scale. Both move about as much."""


class State(NamedTuple):
    """What one GPU keeps of each sequence in one layer, and computes with."""

    kind: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    channels: int
    """Those of the short convolution, which keeps the last tokens of each."""
    taps: int
    dtype: str
    """The format of the matrices of all heads."""

    @property
    def values(self) -> int:
        """Of the matrices of all heads."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def shape(self) -> dict[str, Any]:
        """As the operators of the scan and the update want it."""
        names = ("kind", "heads", "key_heads", "key_dim", "value_dim")
        return {name: getattr(self, name) for name in names} | {"state_dtype": self.dtype}


class RecurrentMixer(Mixer):
    """A token mixer whose state does not grow."""

    __slots__ = ()

    part = "recurrent"
    is_composed = True
    chunk: int = 64
    """Tokens of a prompt that the scan takes at once."""
    convolutions: ClassVar[int] = 1
    """Kernels that convolve, each an equal share of the channels."""
    scans_decoding: ClassVar[bool] = False
    """Whether decoding sequences go through the scan where there are prompts beside them."""
    convolves_decoding: ClassVar[bool] = True
    """Whether they go through the prompts' convolution there."""
    copies: ClassVar[int] = 2
    """Copies of a prompt's state, out of the cache and back."""

    @property
    def exported(self) -> bool:
        """Whether newer kernels leave a state within a step, too."""
        return False

    @property
    def update_convolutions(self) -> int:
        """Those that convolve one new token of each sequence."""
        return self.convolutions

    @abstractmethod
    def state(self, shard: Shard) -> State:
        """The state of a sequence on one GPU."""

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The last tokens of each channel in the model's own format, and the matrices."""
        state = self.state(shard)
        convolved = state.channels * (state.taps - 1) * bytes_of(shard.weights.base)
        whole = convolved + state.values * bytes_of(state.dtype)
        return (Cache(bytes_per_sequence=whole, chunk=self.chunk, exported=self.exported),)

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Prompts by the scan, single new tokens by the update; nothing depends on how many tokens came before."""
        decoding = queries == 1
        if decoding.all():
            convolved = self._convolve_one(shard, layers, queries, sequences)
            return [*convolved, *self._update(shard, layers, queries, sequences)]
        if not decoding.any():
            return [
                *self._convolve(shard, layers, queries, sequences),
                *self._scan(shard, layers, queries, sequences),
            ]
        # An array of batches is of one form throughout; a single batch may hold both.
        both = queries, sequences
        alone, prompts = ((queries[each], _some(sequences, each)) for each in (decoding, ~decoding))
        convolved = self._convolve(shard, layers, *(both if self.convolves_decoding else prompts))
        if not self.convolves_decoding:
            convolved += self._convolve_one(shard, layers, *alone)
        if self.scans_decoding:
            return [*convolved, *self._scan(shard, layers, *both)]
        return [*convolved, *self._scan(shard, layers, *prompts), *self._update(shard, layers, *alone)]

    def prompt_calls(self, shard: Shard, layers: int, tokens: Size) -> list[Call]:
        """Small kernels that the tokens of prompts take between convolution and scan, and after it."""
        return []

    def _scan(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        state = self.state(shard)
        kernel = shard.weights.scans_kernel if state.kind == GATED_DELTA else ""
        scan = Scan(queries, sequences, chunk=self.chunk, dtype=shard.weights.base, kernel=kernel, **state.shape)
        size = state.values * bytes_of(state.dtype)
        copied = Call("state_copy", copy(_count(queries, sequences), size), self.copies * layers)
        return [*self.prompt_calls(shard, layers, _tokens(queries, sequences)), Call("scan", scan, layers), copied]

    def _update(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        rows = _count(queries, sequences)
        op = StateUpdate(rows, dtype=shard.weights.base, **self.state(shard).shape)
        return [Call("state_update", op, layers)]

    def _convolve(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        """Over all tokens of the sequences."""
        return self._convolutions("convolution", shard, layers, _tokens(queries, sequences), queries, sequences)

    def _convolve_one(self, shard: Shard, layers: int, queries: Lengths, sequences: Lengths | int) -> list[Call]:
        """One token of each; of the same name as the other where one step never runs both."""
        name = "convolution" if self.convolves_decoding else "convolution_update"
        return self._convolutions(name, shard, layers, _count(queries, sequences), queries, sequences, update=True)

    def _convolutions(
        self,
        name: str,
        shard: Shard,
        layers: int,
        tokens: Size,
        queries: Lengths,
        sequences: Lengths | int,
        update: bool = False,
    ) -> list[Call]:
        state, kernels = self.state(shard), self.update_convolutions if update else self.convolutions
        op = ShortConvolution(
            tokens,
            _count(queries, sequences),
            channels=state.channels // kernels,
            taps=state.taps,
            update=update,
            dtype=shard.weights.base,
        )
        return [Call(name, op, kernels * layers)]


def _some(sequences: Lengths | int, chosen: Lengths) -> Lengths | int:
    return sequences if isinstance(sequences, int) else sequences[chosen]


def _count(queries: Lengths, sequences: Lengths | int) -> Size:
    """Sequences in each batch."""
    count: Size = queries.shape[-1] * sequences if isinstance(sequences, int) else np.add.reduce(sequences, axis=-1)
    return count


def _tokens(queries: Lengths, sequences: Lengths | int) -> Size:
    """New tokens in each batch."""
    total: Size = np.add.reduce(queries * sequences, axis=-1)
    return total
