"""Latent attention as Kimi-Linear and Kimi-K3 have it: no positions, and a gate on the output in K3.

The part of keys that others rotate is there and is cached, but nothing rotates it.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.models.mixers.latent import LatentAttention
from infercast.models.shard import Shard
from infercast.ops import Call
from infercast.ops.elementwise import output_gate
from infercast.ops.op import Size


@dataclass(frozen=True, slots=True)
class KimiLatentAttention(LatentAttention):
    """Latent attention without rotary positions."""

    gated: bool = False
    """The output is multiplied with a gate of its width, by a product of its own."""

    def matrices(self, hidden: int) -> int:
        """Those of latent attention, and the gate."""
        return LatentAttention.matrices(self, hidden) + self._gate_matrix(hidden)

    def held_bytes(self, shard: Shard) -> float:
        """The gate is split with the heads."""
        weights = shard.weights
        gate = self._gate_matrix(shard.hidden) / shard.layout.tensor * weights.stored_bytes(weights.attention)
        return LatentAttention.held_bytes(self, shard) + gate

    def _gate_matrix(self, hidden: int) -> int:
        return hidden * self.heads * self.value_dim if self.gated else 0

    def token_calls(self, shard: Shard, tokens: Size, layers: int) -> list[Call]:
        """Those of latent attention but the rotation, and the gate."""
        calls = [call for call in LatentAttention.token_calls(self, shard, tokens, layers) if call.name != "rope"]
        if self.gated:
            width = shard.layout.share(self.heads) * self.value_dim
            calls += shard.linear("gate_proj", tokens, width, shard.hidden, shard.weights.of_attention, layers)
            calls.append(Call("output_gate", output_gate(tokens, width, width, shard.weights.base), layers))
        return calls
