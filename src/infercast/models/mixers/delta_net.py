"""Gated delta nets: linear attention that replaces what a key already points to (Qwen3-Next, Qwen3.5, Kimi-Linear).

A state of keys x values a head decays by a gate before each token: one gate a head (gated delta net), or one a channel
of the key (Kimi delta attention). Facts of vLLM 0.25 (``layers/mamba/gdn``): decoding sequences beside prompts run the
prompts' convolution in both; then a gated delta net updates their states with the kernel for one token, while Kimi's
scans them as prompts of one token.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.recurrent import NORM_KERNELS, RecurrentMixer, State
from infercast.models.shard import Shard
from infercast.ops import Call, Gemm
from infercast.ops.elementwise import copy, gated_norm, scan_inputs
from infercast.ops.op import Size
from infercast.ops.recurrent import GATED_DELTA, KIMI_DELTA


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(RecurrentMixer):
    """Gated delta net: queries and keys of ``key_heads``, values and states of ``heads``."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    state_dtype: str = ""
    """The format of its matrices; empty: the model's own."""

    # Published checkpoints treat its two wide products alike and leave the narrow one of the gates alone.
    modules = ("linear_attn.out_proj",)

    @property
    def label(self) -> str:
        """Heads of values and their width."""
        return f"GDN {self.heads} x {self.value_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        return f"gated delta net, {self.heads}/{self.key_heads} heads of {self.value_dim}"

    @property
    def _key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def _value_width(self) -> int:
        return self.heads * self.value_dim

    def state(self, shard: Shard) -> State:
        """Heads are split."""
        heads, key_heads = shard.layout.share(self.heads), shard.layout.share(self.key_heads)
        channels = 2 * key_heads * self.key_dim + heads * self.value_dim
        shape = (heads, key_heads, self.key_dim, self.value_dim)
        return State(GATED_DELTA, *shape, channels, self.taps, self.state_dtype or shard.weights.base)

    def matrices(self, hidden: int) -> int:
        """Queries, keys, values, the gate of the output, and the output."""
        return hidden * (2 * self._key_width + 3 * self._value_width)

    def vectors(self, hidden: int) -> int:
        """The product of both gates, which stays in the base format, the convolution, and the decay of each head."""
        convolution = self.taps * (2 * self._key_width + self._value_width)
        return 2 * hidden * self.heads + convolution + 2 * self.heads + self.value_dim

    def held_bytes(self, shard: Shard) -> float:
        """Heads are split."""
        weights = shard.weights
        return self.matrices(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.recurrent)

    def divides(self, tensor: int) -> bool:
        """Heads of keys and of values must."""
        return self.heads % tensor == 0 and self.key_heads % tensor == 0

    @property
    def split_widths(self) -> dict[str, int]:
        """The output."""
        return {"delta net output": self._value_width}

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Two products before, the gated norm of each head and one product after."""
        weights, state = shard.weights, self.state(shard)
        width = state.heads * self.value_dim
        gates = 2 * state.heads
        value = shard.weights.base
        return [
            *shard.linear("qkvz_proj", tokens, state.channels + width, shard.hidden, weights.of_recurrent, layers),
            Call("gates_proj", Gemm(tokens, gates, shard.hidden, value), layers),
            # What the recurrence writes to is cleared before.
            Call("state_inputs", copy(tokens, 2 * gates, 2 * (gates + width)), layers),
            Call("gated_norm", gated_norm(tokens, state.heads, self.value_dim, value), NORM_KERNELS * layers),
            *shard.linear("out_proj", tokens, shard.hidden, width, weights.of_recurrent, layers),
        ]

    def prompt_calls(self, shard: Shard, layers: int, tokens: Size) -> list[Call]:
        """Queries and keys are normed, gates worked out; the scan's output is copied to where it belongs."""
        state = self.state(shard)
        inputs = scan_inputs(tokens, state.channels, state.heads, shard.weights.base)
        size = 2 * state.heads * self.value_dim
        written = copy(tokens, size)
        return [Call("scan_inputs", inputs, layers), Call("scan_output", written, layers)]


FLASH_KDA_HEAD = 128
"""The width of heads that FlashKDA's kernels are built for."""


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention(RecurrentMixer):
    """Kimi delta attention: as many heads of queries and keys as of values, and a gate for each channel of a key."""

    heads: int
    head_dim: int
    taps: int = 4
    full_rank_gate: bool = False
    """The gate of the output is one product (Kimi-K3), not two by way of a narrow vector."""

    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    convolutions = 3
    scans_decoding = True

    @property
    def label(self) -> str:
        """Heads and their width."""
        return f"KDA {self.heads} x {self.head_dim}"

    @property
    def description(self) -> str:
        """The same in words."""
        return f"Kimi delta attention, {self.heads} heads of {self.head_dim}"

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    @property
    def exported(self) -> bool:
        """By FlashKDA, which takes Kimi-K3's heads."""
        return self.full_rank_gate and self.head_dim == FLASH_KDA_HEAD

    @property
    def update_convolutions(self) -> int:
        """Kimi-K3's engines update queries, keys and values together."""
        return 1 if self.full_rank_gate else self.convolutions

    def state(self, shard: Shard) -> State:
        """Heads are split; the matrices are fp32 whatever the model's format is."""
        heads = shard.layout.share(self.heads)
        shape = (heads, heads, self.head_dim, self.head_dim)
        return State(KIMI_DELTA, *shape, 3 * heads * self.head_dim, self.taps, "fp32")

    def _whole_matrices(self, hidden: int) -> int:
        """Down to the narrow vectors of the gates, which every GPU holds."""
        return (1 if self.full_rank_gate else 2) * hidden * self.head_dim

    def _split_matrices(self, hidden: int) -> int:
        """Queries, keys, values and output; up from the narrow vectors."""
        gate = hidden if self.full_rank_gate else self.head_dim
        return self._width * (4 * hidden + self.head_dim + gate)

    def matrices(self, hidden: int) -> int:
        """All products but the narrow one of the strength of each update."""
        return self._whole_matrices(hidden) + self._split_matrices(hidden)

    def vectors(self, hidden: int) -> int:
        """That product, the convolutions, decays and the norm of a head."""
        return hidden * self.heads + (3 * self.taps + 1) * self._width + self.heads + self.head_dim

    def held_bytes(self, shard: Shard) -> float:
        """Heads are split."""
        split = self._split_matrices(shard.hidden) / shard.layout.tensor
        weights = shard.weights
        return (self._whole_matrices(shard.hidden) + split) * weights.stored_bytes(weights.recurrent)

    def divides(self, tensor: int) -> bool:
        """Heads must."""
        return self.heads % tensor == 0

    @property
    def split_widths(self) -> dict[str, int]:
        """The output."""
        return {"delta attention output": self._width}

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Queries, keys and values one by one, both gates, the gated norm of each head and the output."""
        weights, hidden = shard.weights, shard.hidden
        heads = shard.layout.share(self.heads)
        width, formats = heads * self.head_dim, shard.weights.of_recurrent
        if self.full_rank_gate:
            # Its engines join all that comes from the hidden state.
            joined = 4 * width + self.head_dim + heads
            calls = [
                *shard.linear("in_proj", tokens, joined, hidden, formats, layers),
                *shard.linear("gate_up", tokens, width, self.head_dim, formats, layers),
            ]
        else:
            calls = [
                *shard.linear("qkv_proj", tokens, width, hidden, formats, 3 * layers),
                Call("update_proj", Gemm(tokens, heads, hidden, weights.base), layers),
                *shard.linear("gate_down", tokens, self.head_dim, hidden, formats, 2 * layers),
                *shard.linear("gate_up", tokens, width, self.head_dim, formats, 2 * layers),
            ]
        return [
            *calls,
            Call("state_inputs", copy(tokens, 2 * heads, 4 * heads + 2 * width), layers),
            Call("gated_norm", gated_norm(tokens, heads, self.head_dim, weights.base), NORM_KERNELS * layers),
            *shard.linear("o_proj", tokens, hidden, width, formats, layers),
        ]

    def prompt_calls(self, shard: Shard, layers: int, tokens: Size) -> list[Call]:
        """Queries and keys are normed; the scan's output is copied to where it belongs."""
        width = 2 * shard.layout.share(self.heads) * self.head_dim
        inputs, output = copy(tokens, 2 * width), copy(tokens, width)
        return [Call("scan_inputs", inputs, layers), Call("scan_output", output, layers)]
