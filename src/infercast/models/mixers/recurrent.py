"""Recurrent token mixers: gated delta nets, Mamba2 and short convolutions, with a state for each sequence.

Facts of vLLM 0.25 (``v1/attention/backends/gdn_attn.py``, ``layers/mamba``). A state is copied out of the cache before
the scan and back after it. Decoding sequences with prompts run the prompts' convolution; then a gated delta net updates
their states with the kernel for one token, while Kimi's scans them as prompts. Mamba2 and short convolutions treat
prompts and decoding sequences apart; groups that do not divide over the GPUs must be one, which each GPU holds.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from infercast.lazy_classes import NamedTuple, dataclass
from infercast.models.layout import Shard
from infercast.models.mixers.mixer import Cache, Mixer, SequenceBatch
from infercast.ops import Call, Collective, Gemm, Scan, ShortConvolution, StateUpdate
from infercast.ops.mixers import GATED_DELTA, KIMI_DELTA, MAMBA2
from infercast.ops.op import Size, bytes_of, copy, gated_activation, gated_norm, scan_inputs

NORM_KERNELS = 2  # A gated norm is two kernels of the compiler, the squares and what they scale, which move as much
CHANNELS = 64  # Channels of Mamba 1 that count as a head of Mamba2, with kernels like its own


class State(NamedTuple):
    """What one GPU keeps of each sequence in one layer, and computes with."""

    kind: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    channels: int  # Those of the short convolution, which keeps the last tokens of each
    taps: int
    dtype: str  # The format of the matrices of all heads

    @property
    def values(self) -> int:
        return self.heads * self.key_dim * self.value_dim

    @property
    def shape(self) -> dict[str, Any]:
        names = ("kind", "heads", "key_heads", "key_dim", "value_dim")
        return {name: getattr(self, name) for name in names} | {"state_dtype": self.dtype}


class RecurrentMixer(Mixer):
    __slots__ = ()
    part = "recurrent"
    is_composed = True
    chunk: int = 64  # Tokens of a prompt that the scan takes at once
    convolutions: ClassVar[int] = 1  # Kernels that convolve, each an equal share of the channels
    scans_decoding: ClassVar[bool] = False  # Whether decoding sequences go through the scan in steps with prompts
    convolves_decoding: ClassVar[bool] = True  # Whether they go through the prompts' convolution there
    copies: ClassVar[int] = 2  # Copies of a prompt's state, out of the cache and back

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
        """Of a sequence on one GPU."""

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """The last tokens of each channel in the model's own format, and the matrices."""
        state = self.state(shard)
        convolved = state.channels * (state.taps - 1) * bytes_of(shard.weights.base)
        whole = convolved + state.values * bytes_of(state.dtype)
        return (Cache(bytes_per_sequence=whole, chunk=self.chunk, exported=self.exported),)

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """Prompts by the scan, single new tokens by the update; nothing depends on how many tokens came before."""
        if not batch.is_prompt:
            return [*self._convolve(shard, batch, update=True), *self._update(shard, batch)]
        prompts, *alone = batch.forms()
        if not alone:
            return [*self._convolve(shard, batch), *self._scan(shard, batch)]
        convolved = self._convolve(shard, batch if self.convolves_decoding else prompts)
        if not self.convolves_decoding:
            convolved += self._convolve(shard, alone[0], update=True)
        if self.scans_decoding:
            return [*convolved, *self._scan(shard, batch)]
        return [*convolved, *self._scan(shard, prompts), *self._update(shard, alone[0])]

    def prompt_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Small kernels that the tokens of prompts take between convolution and scan, and after it."""
        return []

    def _scan(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        state = self.state(shard)
        kernel = shard.weights.scans_kernel if state.kind == GATED_DELTA else ""
        sizes = batch.queries, batch.sequences
        scan = Scan(*sizes, chunk=self.chunk, dtype=shard.weights.base, kernel=kernel, **state.shape)
        copied = Call("state_copy", copy(batch.size, state.values * bytes_of(state.dtype)), self.copies)
        return [*self.prompt_calls(shard, batch.tokens), Call("scan", scan), copied]

    def _update(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        return [Call("state_update", StateUpdate(batch.size, dtype=shard.weights.base, **self.state(shard).shape))]

    def _convolve(self, shard: Shard, batch: SequenceBatch, update: bool = False) -> list[Call]:
        """Over all tokens, or over one of each sequence, of the same name where one step never runs both."""
        state, kernels = self.state(shard), self.update_convolutions if update else self.convolutions
        tokens, channels = batch.size if update else batch.tokens, state.channels // kernels
        op = ShortConvolution(tokens, batch.size, channels, state.taps, update, shard.weights.base)
        name = "convolution_update" if update and not self.convolves_decoding else "convolution"
        return [Call(name, op, kernels)]


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(RecurrentMixer):
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    state_dtype: str = ""  # The format of its matrices; empty: the model's own

    # Published checkpoints treat its two wide products alike and leave the narrow one of the gates alone.
    modules = ("linear_attn.out_proj",)
    divided = ("heads", "key_heads")
    split = ("delta net output", "_value_width")
    label_text = "GDN {0.heads} x {0.value_dim}"
    description_text = "gated delta net, {0.heads}/{0.key_heads} heads of {0.value_dim}"

    @property
    def _key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def _value_width(self) -> int:
        return self.heads * self.value_dim

    def state(self, shard: Shard) -> State:
        heads, key_heads = shard.layout.share(self.heads), shard.layout.share(self.key_heads)
        channels = 2 * key_heads * self.key_dim + heads * self.value_dim
        shape = (heads, key_heads, self.key_dim, self.value_dim)
        return State(GATED_DELTA, *shape, channels, self.taps, self.state_dtype or shard.weights.base)

    def split_matrices(self, hidden: int) -> int:
        """Queries, keys, values, the gate of the output, and the output."""
        return hidden * (2 * self._key_width + 3 * self._value_width)

    def vectors(self, hidden: int) -> int:
        """The product of both gates, which stays in the base format, the convolution, and the decay of each head."""
        convolution = self.taps * (2 * self._key_width + self._value_width)
        return 2 * hidden * self.heads + convolution + 2 * self.heads + self.value_dim

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Two products before, the gated norm of each head and one product after."""
        state = self.state(shard)
        width = state.heads * self.value_dim
        gates = 2 * state.heads
        value = shard.weights.base
        return [
            *shard.linear("qkvz_proj", tokens, state.channels + width, shard.hidden, "recurrent"),
            Call("gates_proj", Gemm(tokens, gates, shard.hidden, value)),
            # What the recurrence writes to is cleared before.
            Call("state_inputs", copy(tokens, 2 * gates, 2 * (gates + width))),
            Call("gated_norm", gated_norm(tokens, state.heads, self.value_dim, value), NORM_KERNELS),
            *shard.linear("out_proj", tokens, shard.hidden, width, "recurrent"),
        ]

    def prompt_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries and keys are normed, gates worked out; the scan's output is copied to where it belongs."""
        state = self.state(shard)
        inputs = scan_inputs(tokens, state.channels, state.heads, shard.weights.base)
        written = copy(tokens, 2 * state.heads * self.value_dim)
        return [Call("scan_inputs", inputs), Call("scan_output", written)]


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention(RecurrentMixer):
    """Kimi delta attention: as many heads of queries and keys as of values, and a gate for each channel of a key."""

    heads: int
    head_dim: int
    taps: int = 4
    full_rank_gate: bool = False  # The gate of the output is one product (Kimi-K3), not two by way of a narrow vector
    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    divided = ("heads",)
    split = ("delta attention output", "_width")
    convolutions = 3
    scans_decoding = True
    label_text = "KDA {0.heads} x {0.head_dim}"
    description_text = "Kimi delta attention, {0.heads} heads of {0.head_dim}"

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    @property
    def exported(self) -> bool:
        """By FlashKDA, which takes Kimi-K3's heads."""
        flash_kda_head = 128  # The width of heads that FlashKDA's kernels are built for
        return self.full_rank_gate and self.head_dim == flash_kda_head

    @property
    def update_convolutions(self) -> int:
        """Kimi-K3's engines update queries, keys and values together."""
        return 1 if self.full_rank_gate else self.convolutions

    def state(self, shard: Shard) -> State:
        """Heads are split; the matrices are fp32 whatever the model's format is."""
        heads = shard.layout.share(self.heads)
        shape = (heads, heads, self.head_dim, self.head_dim)
        return State(KIMI_DELTA, *shape, 3 * heads * self.head_dim, self.taps, "fp32")

    def whole_matrices(self, hidden: int) -> int:
        """Down to the narrow vectors of the gates."""
        return (1 if self.full_rank_gate else 2) * hidden * self.head_dim

    def split_matrices(self, hidden: int) -> int:
        """Queries, keys, values and output; up from the narrow vectors."""
        gate = hidden if self.full_rank_gate else self.head_dim
        return self._width * (4 * hidden + self.head_dim + gate)

    def vectors(self, hidden: int) -> int:
        """The product of the strength of each update, the convolutions, decays and the norm of a head."""
        return hidden * self.heads + (3 * self.taps + 1) * self._width + self.heads + self.head_dim

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries, keys and values one by one, both gates, the gated norm of each head and the output."""
        weights, hidden = shard.weights, shard.hidden
        heads = shard.layout.share(self.heads)
        width, formats = heads * self.head_dim, "recurrent"
        if self.full_rank_gate:
            # Its engines join all that comes from the hidden state.
            calls = [
                *shard.linear("in_proj", tokens, 4 * width + self.head_dim + heads, hidden, formats),
                *shard.linear("gate_up", tokens, width, self.head_dim, formats),
            ]
        else:
            calls = [
                *shard.linear("qkv_proj", tokens, width, hidden, formats, count=3),
                Call("update_proj", Gemm(tokens, heads, hidden, weights.base)),
                *shard.linear("gate_down", tokens, self.head_dim, hidden, formats, count=2),
                *shard.linear("gate_up", tokens, width, self.head_dim, formats, count=2),
            ]
        return [
            *calls,
            Call("state_inputs", copy(tokens, 2 * heads, 4 * heads + 2 * width)),
            Call("gated_norm", gated_norm(tokens, heads, self.head_dim, weights.base), NORM_KERNELS),
            *shard.linear("o_proj", tokens, hidden, width, formats),
        ]

    def prompt_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Queries and keys are normed; the scan's output is copied to where it belongs."""
        width = 2 * shard.layout.share(self.heads) * self.head_dim
        inputs, output = copy(tokens, 2 * width), copy(tokens, width)
        return [Call("scan_inputs", inputs), Call("scan_output", output)]


@dataclass(frozen=True, slots=True)
class Mamba2(RecurrentMixer):
    """A state space of ``heads``, each ``head_dim`` x ``state_size``."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    taps: int = 4
    chunk: int = 128
    state_dtype: str = ""  # The format of its matrices; empty: the model's own
    bias: bool = False  # Biases on both products
    convolution_bias: bool = True
    normed: bool = True  # The gate is followed by a norm (not in Falcon-H1)
    modules = ("mixer.in_proj", "mixer.out_proj")
    takes_quantised = True
    convolves_decoding = False
    copies = 1  # the scan starts from zero in most prompts
    exported = True  # by the scan's own kernel
    split = ("Mamba output", "_width")
    label_text = "SSM {0.heads} x {0.head_dim}"
    description_text = "Mamba2, {0.heads} heads of {0.head_dim}, state {0.state_size}"

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

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """The product before, the gate with its norm over each group, the product after."""
        weights, layout, state = shard.weights, shard.layout, self.state(shard)
        width = state.heads * self.head_dim
        projected = width + state.channels + state.heads
        calls = shard.linear("in_proj", tokens, projected, shard.hidden, "recurrent", quantised=True)
        normed = gated_norm(tokens, state.key_heads, width // state.key_heads, weights.base)
        calls.append(Call("gated_norm", normed, NORM_KERNELS if self.normed else 1))
        if self.normed and self.groups == 1 and layout.tensor > 1:
            square_bytes = 4  # The mean square of a token, in fp32
            squares = Collective("all_reduce", tokens * square_bytes, layout.tensor, layout.library)
            calls.append(Call("gated_norm_reduce", squares))
        return [*calls, *shard.linear("out_proj", tokens, shard.hidden, width, "recurrent")]


@dataclass(frozen=True, slots=True)
class Mamba1(RecurrentMixer):
    """The first Mamba: a state of ``state_size`` for each of ``channels``, and steps by way of a narrow vector."""

    channels: int
    state_size: int
    rank: int  # Of that vector
    taps: int = 4
    bias: bool = False  # Biases on the first and the last product
    convolution_bias: bool = True

    modules = ("mixer.in_proj", "mixer.out_proj")
    convolves_decoding = False
    copies = 1

    label_text = "SSM {0.channels} x {0.state_size}"
    description_text = "Mamba, {0.channels:,} channels, state {0.state_size}"

    @property
    def _narrow(self) -> int:
        return self.rank + 2 * self.state_size

    def state(self, shard: Shard) -> State:
        channels = shard.layout.share(self.channels)
        shape = (channels // CHANNELS, 1, self.state_size, CHANNELS)
        return State(MAMBA2, *shape, channels, self.taps, shard.weights.base)

    def split_matrices(self, hidden: int) -> int:
        return self.channels * (3 * hidden + self._narrow + self.rank)

    def vectors(self, hidden: int) -> int:
        """The convolution, decays, what skips the state, and the biases of steps."""
        each = self.taps + self.convolution_bias + self.state_size + 2 + (2 if self.bias else 0)
        return self.channels * each + (hidden if self.bias else 0)

    def divides(self, tensor: int) -> bool:
        return self.channels % (tensor * CHANNELS) == 0

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """The scan's inputs come from a product of what was convolved, which GPUs add up."""
        layout, base = shard.layout, shard.weights.base
        width, narrow, formats = layout.share(self.channels), self._narrow, "recurrent"
        calls = [
            *shard.linear("in_proj", tokens, 2 * width, shard.hidden, formats),
            Call("x_proj", Gemm(tokens, narrow, width, base)),
            Call("dt_proj", Gemm(tokens, width, self.rank, base)),
            *shard.linear("out_proj", tokens, shard.hidden, width, formats),
        ]
        if layout.tensor > 1:
            summed = Collective("all_reduce", tokens * int(narrow * bytes_of(base)), layout.tensor, layout.library)
            calls.insert(2, Call("x_proj_reduce", summed))
        return calls


@dataclass(frozen=True, slots=True)
class GatedConvolution(RecurrentMixer):
    """A convolution of ``taps`` over ``channels``, with a gate before and one after."""

    channels: int
    taps: int = 3
    bias: bool = False
    modules = ("conv.in_proj", "conv.out_proj")
    divided = ("channels",)
    split = ("convolution output", "channels")
    convolves_decoding = False
    label_text = "conv {0.channels} x {0.taps}"
    description_text = "short convolution, {0.channels:,} channels of {0.taps} taps"

    def state(self, shard: Shard) -> State:
        return State("", 0, 0, 0, 0, shard.layout.share(self.channels), self.taps, shard.weights.base)

    def split_matrices(self, hidden: int) -> int:
        return 4 * hidden * self.channels

    def vectors(self, hidden: int) -> int:
        return self.taps * self.channels + (4 * self.channels + hidden if self.bias else 0)

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        weights, width = shard.weights, shard.layout.share(self.channels)
        return [
            *shard.linear("in_proj", tokens, 3 * width, shard.hidden, "recurrent"),
            Call("convolution_gate", gated_activation(tokens, width, weights.base), 2),
            *shard.linear("out_proj", tokens, shard.hidden, width, "recurrent"),
        ]

    def _scan(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        return []  # there is nothing but the convolution

    _update = _scan
