"""Mamba2: a state space whose heads share their keys in groups (Nemotron-H, Nemotron 3, Bamba, Falcon-H1).

Facts of vLLM 0.25 (``layers/mamba/mamba_mixer2.py``): one product gives gate, values, keys, queries and the step of
each head; prompts and decoding sequences of one step are convolved and scanned apart. Where the groups do not divide
over the GPUs there must be one, which each GPU then holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.recurrent import NORM_KERNELS, RecurrentMixer, State
from infercast.models.shard import Shard
from infercast.ops import Call, Collective
from infercast.ops.elementwise import gated_norm
from infercast.ops.op import Size
from infercast.ops.recurrent import MAMBA2

SQUARE_BYTES = 4
"""The mean square of a token, in fp32."""


@dataclass(frozen=True, slots=True)
class Mamba2(RecurrentMixer):
    """A state space of ``heads``, each ``head_dim`` x ``state_size``."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    taps: int = 4
    chunk: int = 128
    state_dtype: str = ""
    """The format of its matrices; empty: the model's own."""
    bias: bool = False
    """Biases on both products."""
    convolution_bias: bool = True
    normed: bool = True
    """The gate is followed by a norm (not in Falcon-H1)."""

    modules = ("mixer.in_proj", "mixer.out_proj")
    takes_quantised = True
    convolves_decoding = False
    copies = 1  # the scan starts from zero in most prompts

    @property
    def exported(self) -> bool:
        """By the scan's own kernel."""
        return True

    @property
    def label(self) -> str:
        """Heads and their width."""
        return f"SSM {self.heads} x {self.head_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        return f"Mamba2, {self.heads} heads of {self.head_dim}, state {self.state_size}"

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    @property
    def _channels(self) -> int:
        """What is convolved: values, keys and queries."""
        return self._width + 2 * self.groups * self.state_size

    def state(self, shard: Shard) -> State:
        """Heads and groups are split; a single group is on every GPU."""
        heads, groups = shard.layout.share(self.heads), shard.layout.share_kv_heads(self.groups)
        shape = (heads, groups, self.state_size, self.head_dim)
        channels = heads * self.head_dim + 2 * groups * self.state_size
        return State(MAMBA2, *shape, channels, self.taps, self.state_dtype or shard.weights.base)

    def matrices(self, hidden: int) -> int:
        """One product before, one after."""
        return hidden * (2 * self._width + self._channels + self.heads)

    def vectors(self, hidden: int) -> int:
        """The convolution, three numbers a head, the norm, and biases."""
        convolution = self._channels * (self.taps + (1 if self.convolution_bias else 0))
        biases = self._width + self._channels + self.heads + hidden if self.bias else 0
        return convolution + 3 * self.heads + (self._width if self.normed else 0) + biases

    def held_bytes(self, shard: Shard) -> float:
        """Heads and groups are split; a single group is on every GPU."""
        weights, tensor, state = shard.weights, shard.layout.tensor, self.state(shard)
        columns = (2 * self._width + self.heads) / tensor + state.channels
        return shard.hidden * columns * weights.stored_bytes(weights.recurrent)

    def divides(self, tensor: int) -> bool:
        """Heads must, and groups unless there is one."""
        return self.heads % tensor == 0 and (self.groups == 1 or self.groups % tensor == 0)

    @property
    def split_widths(self) -> dict[str, int]:
        """The output."""
        return {"Mamba output": self._width}

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """The product before, the gate with its norm over each group, the product after."""
        weights, layout, state = shard.weights, shard.layout, self.state(shard)
        width = state.heads * self.head_dim
        projected = width + state.channels + state.heads
        calls = shard.linear("in_proj", tokens, projected, shard.hidden, weights.of_recurrent, layers, quantised=True)
        normed = gated_norm(tokens, state.key_heads, width // state.key_heads, weights.base)
        calls.append(Call("gated_norm", normed, (NORM_KERNELS if self.normed else 1) * layers))
        if self.normed and self.groups == 1 and layout.tensor > 1:
            squares = Collective("all_reduce", tokens * SQUARE_BYTES, layout.tensor, layout.library)
            calls.append(Call("gated_norm_reduce", squares, layers))
        return [*calls, *shard.linear("out_proj", tokens, shard.hidden, width, weights.of_recurrent, layers)]
