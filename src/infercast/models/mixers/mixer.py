"""The interface of token mixers and of their caches, the empty mixer, and two mixers side by side.

A token mixer is the half of a layer that lets tokens see each other: attention of some kind, or a recurrence. A kind
is a frozen dataclass of the numbers that a config.json gives, with these methods. Nothing outside this folder asks
which kind a mixer is, but for rules of an engine that hold for one kind alone.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from infercast.models.layout import Shard
from infercast.ops import Call, Collective
from infercast.ops.attention import Lengths
from infercast.ops.op import Size, bytes_of, weighted_sum


class Cache(NamedTuple):
    """What one layer keeps on one GPU, for each token in reach and for each sequence."""

    bytes_per_token: float = 0.0
    bytes_per_sequence: float = 0.0  # The state of a recurrent layer, as large for one token as for a million
    window: int = 0  # Only the last ``window`` tokens are kept; 0: all of them
    chunked: bool = False  # ``window`` is a chunk: a token looks back to the first token of its own
    compress: int = 1  # Tokens that share one entry (DeepSeek-V4); ``bytes_per_token`` is a token's share of it
    block: int = 0  # Tokens in a block where kernels leave the engine no choice; 0: it has one
    chunk: int = 0  # Of a state: tokens of a prompt that are scanned at once, after which kernels may write it
    exported: bool = False  # Of a state: newer kernels leave it at the end of a block within a step, too

    def bytes_for(self, num_tokens: int) -> float:
        return self.bytes_per_sequence + self.bytes_per_token * min(num_tokens, self.window or num_tokens)


class SequenceBatch(NamedTuple):
    """Sequences with ``queries`` new tokens of ``keys`` in all, each; ``sequences`` says how often each row stands.

    The last axis runs over the batch; axes in front of it are an array of batches.
    """

    queries: Lengths
    keys: Lengths
    sequences: Lengths | int = 1

    @property
    def is_prompt(self) -> bool:
        return bool(np.any(self.queries != 1))

    @property
    def size(self) -> Size:
        """Sequences."""
        each = self.sequences
        size: Size = self.queries.shape[-1] * each if isinstance(each, int) else np.add.reduce(each, axis=-1)
        return size

    @property
    def tokens(self) -> Size:
        """New tokens."""
        return self._sum(self.queries)

    def num_entries(self, tokens: int = 1) -> Size:
        """Entries of all sequences, one for each group of ``tokens``; an incomplete group counts."""
        return self._sum(-(-self.keys // tokens))

    def num_recent(self, window: int) -> Size:
        """Tokens of all sequences that a new one sees in its window."""
        return self._sum(np.minimum(self.keys, self.queries + window - 1))

    def _sum(self, each: Lengths) -> Size:
        total: Size = np.add.reduce(each * self.sequences, axis=-1)
        return total

    def forms(self) -> Iterator[SequenceBatch]:
        """Prompts, then single new tokens. An array of batches is of one form throughout."""
        decoding = self.queries == 1
        if decoding.all() or not decoding.any():
            yield self
            return
        for chosen in (~decoding, decoding):
            sequences = self.sequences if isinstance(self.sequences, int) else self.sequences[chosen]
            yield SequenceBatch(self.queries[chosen], self.keys[chosen], sequences)

    def name(self, kernel: str) -> str:
        return f"{kernel}_prompt" if self.is_prompt else kernel


class Mixer(ABC):
    """The half of a layer that mixes tokens; a kind without weights, kernels or caches leaves their methods out."""

    __slots__ = ()

    modules: ClassVar[tuple[str, ...]]
    """Names of its linear modules in a checkpoint, from the layer's own name on: ``self_attn.q_proj``."""
    part: ClassVar[str] = "attention"
    """The part of the model with the weight format of its matrices: ``attention`` or ``recurrent``."""
    is_empty: ClassVar[bool] = False
    """Whether the layer has no mixer at all: no kernels, no norm before it, no all-reduce after it."""
    takes_quantised: ClassVar[bool] = False
    """Whether the norm before it also quantises what it writes, where activations are quantised."""
    is_composed: ClassVar[bool] = False
    """Whether an engine makes it of many small operations in Python, which the host pays for outside full graphs."""

    label_text: ClassVar[str] = ""
    description_text: ClassVar[str] = ""  # Formats of its label and description, with the mixer as their one argument

    @property
    def label(self) -> str:
        """A few characters for a list of models."""
        return self.label_text.format(self)

    @property
    def description(self) -> str:
        """A few words for the page of one model."""
        return self.description_text.format(self)

    def matrices(self, hidden: int) -> int:
        """Weights in matrices, which quantising makes smaller."""
        return 0

    def vectors(self, hidden: int) -> int:
        """Norms, biases and other weights that stay in the base format, on every GPU."""
        return 0

    def held_bytes(self, shard: Shard) -> float:
        """Bytes of the matrices that one GPU holds."""
        return 0.0

    def divides(self, tensor: int) -> bool:
        """Whether it splits evenly over ``tensor`` GPUs."""
        return True

    @property
    def split_widths(self) -> Mapping[str, int]:
        """Widths that GPUs split, by what people call them, where weights in blocks must be cut between blocks."""
        return {}

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Kernels that need only the number of tokens in the step: projections, norms, the write to the cache."""
        return []

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        """Kernels that need the sequences of the batch."""
        return []

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        """Those of sequences that verify drafts, ``width`` new tokens each; ``batch`` has one query a sequence.

        Unless a kind overrides it, as many single tokens: each chooses what it looks at, or writes a state.
        """
        return self.sequence_calls(shard, batch._replace(sequences=batch.sequences * width))

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """What one layer keeps: one cache in most kinds, several where parts of it are stored apart."""
        return ()


@dataclass(frozen=True, slots=True)
class NoMixer(Mixer):
    """The missing half of a layer of Nemotron-H, or of one that pruning left without attention (DeciLM)."""

    modules = ()
    is_empty = True
    label = "none"
    description = "no attention"


@dataclass(frozen=True, slots=True)
class SideBySide(Mixer):
    """One after the other as kernels go; each all-reduces its own output."""

    first: Mixer
    second: Mixer

    # Weights of both are taken to have one format: what names attention in a checkpoint decides.
    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    is_composed = True

    @property
    def _both(self) -> tuple[Mixer, Mixer]:
        return self.first, self.second

    @property
    def label(self) -> str:
        return self.first.label

    @property
    def description(self) -> str:
        return " beside ".join(mixer.description for mixer in self._both)

    @property
    def split_widths(self) -> dict[str, int]:
        return {**self.first.split_widths, **self.second.split_widths}

    def matrices(self, hidden: int) -> int:
        return sum(mixer.matrices(hidden) for mixer in self._both)

    def vectors(self, hidden: int) -> int:
        return sum(mixer.vectors(hidden) for mixer in self._both)

    def held_bytes(self, shard: Shard) -> float:
        return sum(mixer.held_bytes(shard) for mixer in self._both)

    def divides(self, tensor: int) -> bool:
        return all(mixer.divides(tensor) for mixer in self._both)

    def token_calls(self, shard: Shard, tokens: Size) -> list[Call]:
        """Those of both, the sum of their outputs, and the all-reduce that one mixer more takes."""
        layout, base = shard.layout, shard.weights.base
        calls = [call for mixer in self._both for call in mixer.token_calls(shard, tokens)]
        calls.append(Call("mixer_sum", weighted_sum(tokens, shard.hidden, terms=2, dtype=base)))
        if layout.tensor > 1:
            message = tokens * int(shard.hidden * bytes_of(base))
            calls.append(Call("all_reduce", Collective("all_reduce", message, layout.tensor, layout.library)))
        return calls

    def sequence_calls(self, shard: Shard, batch: SequenceBatch) -> list[Call]:
        return [call for mixer in self._both for call in mixer.sequence_calls(shard, batch)]

    def verify_calls(self, shard: Shard, width: int, batch: SequenceBatch) -> list[Call]:
        return [call for mixer in self._both for call in mixer.verify_calls(shard, width, batch)]

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """Keys and values of the one, the state of the other."""
        return (*self.first.caches(shard), *self.second.caches(shard))
