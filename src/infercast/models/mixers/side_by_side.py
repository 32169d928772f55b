"""Two token mixers that read the same hidden state and whose outputs are added up (Falcon-H1: attention and Mamba2)."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.cache import Cache
from infercast.models.mixers.mixer import Mixer
from infercast.models.shard import Shard
from infercast.ops import Call, Collective
from infercast.ops.attention import Lengths
from infercast.ops.dtypes import bytes_of
from infercast.ops.elementwise import weighted_sum
from infercast.ops.op import Size


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
        """That of the first."""
        return self.first.label

    @property
    def description(self) -> str:
        """Both."""
        return " beside ".join(mixer.description for mixer in self._both)

    @property
    def split_widths(self) -> dict[str, int]:
        """Those of both."""
        return {**self.first.split_widths, **self.second.split_widths}

    def matrices(self, hidden: int) -> int:
        """Those of both."""
        return sum(mixer.matrices(hidden) for mixer in self._both)

    def vectors(self, hidden: int) -> int:
        """Those of both."""
        return sum(mixer.vectors(hidden) for mixer in self._both)

    def held_bytes(self, shard: Shard) -> float:
        """What one GPU holds of both."""
        return sum(mixer.held_bytes(shard) for mixer in self._both)

    def divides(self, tensor: int) -> bool:
        """Both must."""
        return all(mixer.divides(tensor) for mixer in self._both)

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Those of both, the sum of their outputs, and the all-reduce that one mixer more takes."""
        layout, base = shard.layout, shard.weights.base
        calls = [call for mixer in self._both for call in mixer.token_calls(shard, tokens, layers)]
        calls.append(Call("mixer_sum", weighted_sum(tokens, shard.hidden, terms=2, dtype=base), layers))
        if layout.tensor > 1:
            message = tokens * int(shard.hidden * bytes_of(base))
            calls.append(Call("all_reduce", Collective("all_reduce", message, layout.tensor, layout.library), layers))
        return calls

    def sequence_calls(
        self, shard: Shard, layers: int, queries: Lengths, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Those of both."""
        return [call for mixer in self._both for call in mixer.sequence_calls(shard, layers, queries, keys, sequences)]

    def verify_calls(
        self, shard: Shard, layers: int, width: int, keys: Lengths, sequences: Lengths | int = 1
    ) -> list[Call]:
        """Those of both."""
        return [call for mixer in self._both for call in mixer.verify_calls(shard, layers, width, keys, sequences)]

    def caches(self, shard: Shard) -> tuple[Cache, ...]:
        """Keys and values of the one, the state of the other."""
        return (*self.first.caches(shard), *self.second.caches(shard))
