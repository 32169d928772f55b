"""What a layer keeps of the sequences it has seen, from which an engine's blocks, groups and capacity follow."""

from __future__ import annotations

from typing import NamedTuple


class Cache(NamedTuple):
    """What one layer keeps on one GPU: so much for each token in reach, and so much for each sequence."""

    bytes_per_token: float = 0.0
    bytes_per_sequence: float = 0.0
    """The state of a recurrent layer, as large for one token as for a million."""
    window: int = 0
    """Only the last ``window`` tokens are kept; 0: all of them."""
    chunked: bool = False
    """``window`` is a chunk: a token looks back to the first token of its own."""
    compress: int = 1
    """Tokens that share one entry (DeepSeek-V4); ``bytes_per_token`` is a token's share of it."""
    block: int = 0
    """Tokens in a block where kernels leave the engine no choice; 0: it has one."""
    chunk: int = 0
    """Of a state: tokens of a prompt that are scanned at once, after which kernels may write it."""
    exported: bool = False
    """Of a state: newer kernels leave it at the end of a block within a step, too."""

    def bytes_for(self, num_tokens: int) -> float:
        """What a sequence of so many tokens takes."""
        return self.bytes_per_sequence + self.bytes_per_token * min(num_tokens, self.window or num_tokens)
