"""A second tier of the KV cache in the host's memory: how large it is, what goes there, and what the way there takes.

Blocks are copied to the tier as soon as their tokens are computed, not when the GPU forgets them. A request whose
beginning the GPU has forgotten and the tier has not gets its blocks from there instead of computing them.
"""

from __future__ import annotations

from dataclasses import dataclass

from infercast.serve.links import LinkSpeed


@dataclass(frozen=True, slots=True)
class Offload:
    """The tier of one engine."""

    num_blocks: int
    """Blocks of the tier, each for as many tokens as ``factor`` blocks of the GPU."""
    block_bytes: int
    """Bytes of a block of one GPU, which all GPUs of the engine copy at the same time ..."""
    block_pieces: int
    """... and in how many pieces: one a layer, or one."""
    load: LinkSpeed
    """From the host to a GPU, which may go on at the same time as ..."""
    store: LinkSpeed
    """... copies to the host."""
    factor: int = 1
    prompts_only: bool = True
    """Blocks of answers are not stored, unless a later prompt computes them."""
    store_threshold: int = 0
    """How often a block must have been looked for, or offered, before it is stored; below 2: not at all."""
    holders_first: bool = False
    """Requests that hold blocks while they wait are looked at before all others; otherwise in the order of the queue,
    in which the first may need the very blocks that another one holds."""
    spares_under_way: bool = False
    """Nobody gives way whose blocks a step under way still writes: whoever needs them waits, and all behind it."""
    stores_ends: bool = False
    """The last blocks of a request that has ended are stored with the step after; and who gave way does not hand over
    again what it did before."""
    by_request: bool = False
    """A block of the tier is as recent as the last request with it that has ended, not as its last copy or lookup; and
    it counts how often it was offered to be stored, not how often it was looked for."""
    empty_step_seconds: float = 0.0
    """A turn of the engine's loop in which nothing is computed, because those who wait wait for copies."""
