"""The attention kernels of a chip: how they cut work, and the rates that they reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from infercast.hardware.gpu import Gpu
from infercast.hardware.kernels import facts_of


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """The attention kernels that engines ship for an architecture.

    The structure is what is known of the kernels, checked against timings. The rates are fitted on the chips named
    below and hold for the whole family: none belongs to a GPU. They trade off against one another, so that a share may
    exceed one.
    """

    name: str
    packs_window: bool
    """Decode: whether query heads of one KV head share a block even when a window is set."""
    splits_alone: bool
    """Decode: whether the keys of a block with a single query head can be split."""
    window_parts: int
    """Decode: blocks that a sequence longer than its window is cut into at least."""
    combine_cycles: float
    """Decode: clock cycles that merging the parts of a split sequence adds to a call."""
    block_seconds: float
    """Decode: a block's chain of page table, first tile, scores, values and output: memory latency, so no clock."""
    block_seconds_per_dim: float
    """More of it for each element of the head dimension."""
    block_seconds_per_head: float
    """More of it for each query head in the block."""
    lone_bytes_per_cycle: float
    """Decode: what one block streams when it has an SM to itself: bound by latency."""
    sm_bytes_per_cycle: float
    """Decode: what an SM full of blocks streams of a 16-bit cache."""
    packs_prompt: bool
    """Prefill: whether query heads share a tile where that makes fewer tiles."""
    tile_rows: int
    """Prefill: query rows that one block works on."""
    tile_keys: int
    """Prefill: keys that it takes at a time."""
    prompt_launch_cycles: float
    """Prefill: clock cycles of a call that does next to nothing."""
    tile_seconds: float
    """Prefill: a block's start and end, beside its tiles."""
    tile_seconds_per_dim: float
    """More of it for each element of the head dimension."""
    tensor_share: float
    """Prefill: what the matrix products reach of the peak while they run."""
    exponential_share: float
    """Prefill: what the exponentials reach of the peak of the special-function units."""
    softmax_overlap: float
    """Prefill: how well exponentials hide under matrix products; one adds them up, a large number takes the longer."""
    launch_cycles: float = 15500.0
    """Decode: clock cycles of a call that does next to nothing, with the replay of a graph where tables have one."""
    narrow_launch: float = 1.0
    """Decode: how many times longer that takes where queries or keys are converted to fp8 first."""
    sequence_cycles: float = 0.0
    """Decode: clock cycles of an SM for each sequence of its share: planning, and writing the new token's keys."""
    narrow_bytes_per_cycle: float = 13.5
    """Decode: what an SM full of blocks streams of an fp8 cache. FlashAttention 3 transposes the values in it."""
    decode_dram_share: float = 0.85
    decode_l2_share: float = 0.4
    decode_tensor_share: float = 0.6
    """Decode: what is reached of the memory's, the cache's and the tensor cores' peaks."""
    dram_share: float = 0.5
    l2_share: float = 0.8
    """Prefill: what is reached of the peaks of memory and cache; above one where part of it stays in the cache."""
    tail: float = 1.3
    """Prefill: of an average tile, by which the last SM finishes after the mean."""
    narrow_chain: float = 1.8
    """Prefill: how many times longer a block's start and end take when the cache is narrower than the products."""
    narrow_tensor: float = 1.0
    """Prefill: rate of the products of 16-bit queries with an fp8 cache, against a 16-bit one."""
    writes: bool = False
    """Prefill: whether tables time the kernel that writes keys and values with it; an engine's step has its own."""


# FlashAttention 2 packs query heads only without a window, splits only what it packs, and merges the parts in a second
# launch. Rates from A100 and L40S.
FLASH_2 = KernelFamily(
    name="flash-2",
    packs_window=False,
    splits_alone=False,
    window_parts=1,
    combine_cycles=8000.0,
    block_seconds=3.5e-6,
    block_seconds_per_dim=2.0e-9,
    block_seconds_per_head=41.0e-9,
    lone_bytes_per_cycle=18.0,
    sm_bytes_per_cycle=27.0,
    packs_prompt=False,
    tile_rows=128,
    tile_keys=64,
    prompt_launch_cycles=14500.0,
    tile_seconds=1.6e-6,
    tile_seconds_per_dim=0.3e-9,
    tensor_share=1.1,
    exponential_share=0.4,
    softmax_overlap=1.0,
)
# Its tiles are smaller on the chips with about 100 KiB of shared memory an SM.
FLASH_2_SMALL = replace(FLASH_2, name="flash-2-small", tile_rows=64)
# FlashAttention 3 always packs and splits, and starts the merging kernel early (programmatic launch). Rates from H200.
FLASH_3 = KernelFamily(
    name="flash-3",
    packs_window=True,
    splits_alone=True,
    window_parts=2,
    combine_cycles=2500.0,
    block_seconds=1.6e-6,
    block_seconds_per_dim=17.0e-9,
    block_seconds_per_head=17.0e-9,
    lone_bytes_per_cycle=60.0,
    sm_bytes_per_cycle=100.0,
    packs_prompt=True,
    tile_rows=128,
    tile_keys=128,
    prompt_launch_cycles=18500.0,
    tile_seconds=1.4e-6,
    tile_seconds_per_dim=3.0e-9,
    tensor_share=0.95,
    exponential_share=0.6,
    softmax_overlap=8.0,
)
# TensorRT-LLM's kernels merge the parts inside the kernel, and work on two 128-row tiles at once in prefill. Rates are
# those of FlashAttention 3: none is fitted on such a chip. But in decode they swap the operands for up to 16 query
# heads a KV head, so that the keys fill the rows of the matrix unit and the query heads its columns, 8 or 16 of them
# (TensorRT-LLM's public sources: "SwapsMmaAbForGeneration", "TileSizeQ8"), where FlashAttention 3 pads the heads to 64
# rows: scores and outputs of a block cost no more than in the 16-row tiles of FlashAttention 2.
TRTLLM = replace(
    FLASH_3,
    name="trtllm",
    window_parts=1,
    combine_cycles=1500.0,
    block_seconds_per_dim=FLASH_2.block_seconds_per_dim,
    packs_prompt=False,
    tile_rows=256,
)

FAMILIES = {family.name: family for family in (FLASH_2, FLASH_2_SMALL, FLASH_3, TRTLLM)}
"""As models of a sweep and of vision towers know them."""


def family_of(gpu: Gpu) -> KernelFamily:
    """The kernels that engines use on this chip."""
    return FAMILIES[facts_of(gpu).attention]
