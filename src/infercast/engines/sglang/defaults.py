"""What SGLang chooses by the memory of a GPU: the chunk, the largest graph, and the share of memory that is static.

Facts of SGLang 0.5.16 (``server_args.py``, ``_handle_gpu_memory_settings``). All sizes are in MiB of what
``nvidia-smi`` shows, which is more than a program can have.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from infercast.bundled import read_data
from infercast.hardware import Gpu
from infercast.units import GIB, MIB

WIDE = 4
"""GPUs of a tensor-parallel group from which on graphs are larger."""
FIXED_MIB, TOKEN_MIB, GPU_MIB, GRAPH_MIB = 512, 1.5, 1024 / 8, 2
"""Reserved for metadata, for each token of a step, for each GPU of the replica, and for each sequence in a graph."""
LEAST_TOKENS, LEAST_MIB, LARGE_MIB = 2048, 10 * 1024, 60 * 1024
PREFILL_SIZE_MIB, LATENT_PREFILL_MIB = 8, 1536
DP_MIB, DP_LARGE_MIB, DP_LARGE = 3, 1.5, 300
DEEPEP_MIB = 2048


class ByMemory(NamedTuple):
    """Defaults of GPUs with less memory than ``below_gib``."""

    below_gib: float
    chunk: int
    sequences: int
    wide_sequences: int


@cache
def _tables() -> tuple[tuple[ByMemory, ...], dict[str, int]]:
    data = read_data("engines/sglang/memory.toml")
    return tuple(ByMemory(*row) for row in data["defaults"]), data["shown_mib"]


def shown_mib(gpu: Gpu) -> float:
    """What nvidia-smi shows as the memory of a GPU; where nobody has seen it, what programs see and a bit more."""
    shown = _tables()[1]
    return shown.get(gpu.name, gpu.driver_bytes / MIB + shown["others_more"])


def by_memory(gpu: Gpu, tensor: int) -> tuple[int, int]:
    """Tokens of a chunk, and sequences of the largest decode graph."""
    memory = shown_mib(gpu) * MIB / GIB
    row = next(row for row in _tables()[0] if memory < row.below_gib)
    return row.chunk, row.wide_sequences if tensor >= WIDE else row.sequences


def graph_bytes(decode_sizes: tuple[int, ...], prefill_sizes: tuple[int, ...]) -> float:
    """What the formula sets aside for CUDA graphs."""
    return float(MIB * (GRAPH_MIB * max(decode_sizes, default=0) + PREFILL_SIZE_MIB * len(prefill_sizes)))


class Reserved(NamedTuple):
    """What the share of static memory depends on."""

    tokens: int
    """Of the largest step of prompts."""
    gpus: int
    """Of the whole deployment: tensor times pipeline."""
    largest_graph: int
    """Sequences of the largest decode graph, or of what it would be ..."""
    decode_graphs: bool
    """... without any."""
    num_prefill_sizes: int
    is_latent: bool
    dp_copies: int = 0
    """Groups of DP attention; 0 without it."""
    deepep: bool = False

    def static_share(self, gpu: Gpu) -> float:
        """The default of ``mem_fraction_static``."""
        shown = shown_mib(gpu)
        mib = FIXED_MIB + TOKEN_MIB * max(self.tokens, LEAST_TOKENS) + GPU_MIB * self.gpus
        mib += GRAPH_MIB * self.largest_graph * self.decode_graphs
        if self.dp_copies:
            sequences = self.largest_graph * self.dp_copies
            mib += sequences * (DP_MIB + (DP_LARGE_MIB if self.largest_graph > DP_LARGE else 0.0))
        if self.num_prefill_sizes:
            mib += LATENT_PREFILL_MIB if self.is_latent else PREFILL_SIZE_MIB * self.num_prefill_sizes
        if shown > LARGE_MIB:
            mib = max(mib, LEAST_MIB)
        mib += DEEPEP_MIB if self.deepep else 0
        return round((shown - mib) / shown, 3)
