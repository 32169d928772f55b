"""Attention kernels as published tables time them, by the names of data/kernels.toml.

Tables replay one call in a graph, with the operands warm in L2, and time the kernel that writes keys and values with
prompts. The rates were fitted to the rows of vLLM and SGLang on A100, L40S, H100 and H200 with all of that in the
formula; none belongs to a GPU. Those of TensorRT-LLM's kernels are FlashAttention 3's but for its traits.
"""

from __future__ import annotations

from dataclasses import replace

from infercast.hardware.gpu import Gpu
from infercast.hardware.kernels import facts_of
from infercast.ops.attention import Attention
from infercast.predict.identity import DEFAULT_ENGINE, kernel_of
from infercast.predict.physics.attention_kernels import FLASH_2, FLASH_3, TRTLLM, KernelFamily, family_of

SMALL_TILES = "flash-2-small"
"""What chips with about 100 KiB of shared memory an SM run."""

FA2 = replace(
    FLASH_2,
    name="fa2",
    launch_cycles=12200.0,
    sequence_cycles=750.0,
    combine_cycles=8800.0,
    block_seconds=4.1e-6,
    block_seconds_per_dim=0.25e-9,
    block_seconds_per_head=18.0e-9,
    lone_bytes_per_cycle=17.0,
    sm_bytes_per_cycle=226.0,
    narrow_bytes_per_cycle=27.0,
    decode_dram_share=0.71,
    decode_l2_share=0.32,
    decode_tensor_share=0.22,
    prompt_launch_cycles=9000.0,
    tile_seconds=1.7e-6,
    tile_seconds_per_dim=0.23e-9,
    tensor_share=0.92,
    exponential_share=0.43,
    softmax_overlap=1.1,
    dram_share=1.24,
    l2_share=0.98,
    tail=0.85,
    narrow_chain=1.5,
    writes=True,
)
FA3 = replace(
    FLASH_3,
    name="fa3",
    launch_cycles=15300.0,
    narrow_launch=1.29,
    sequence_cycles=3600.0,
    combine_cycles=3900.0,
    block_seconds=1.2e-6,
    block_seconds_per_dim=13.4e-9,
    block_seconds_per_head=5.2e-9,
    lone_bytes_per_cycle=63.0,
    sm_bytes_per_cycle=122.0,
    narrow_bytes_per_cycle=14.8,
    decode_dram_share=0.88,
    decode_l2_share=1.0,
    decode_tensor_share=0.57,
    prompt_launch_cycles=16300.0,
    tile_seconds=2.0e-6,
    tile_seconds_per_dim=5.7e-9,
    tensor_share=0.94,
    exponential_share=0.81,
    softmax_overlap=2.6,
    dram_share=1.24,
    l2_share=0.98,
    tail=0.85,
    narrow_chain=1.4,
    narrow_tensor=0.79,
    writes=True,
)
# FlashInfer packs the query heads of a KV head, with a window too, and splits the keys of any block. Rates from L40S.
FLASHINFER = replace(
    FA2,
    name="flashinfer",
    packs_window=True,
    splits_alone=True,
    packs_prompt=True,
    launch_cycles=8400.0,
    narrow_launch=2.67,
    sequence_cycles=280.0,
    combine_cycles=4800.0,
    block_seconds=1.3e-6,
    block_seconds_per_dim=9.7e-9,
    block_seconds_per_head=25.0e-9,
    lone_bytes_per_cycle=17.5,
    sm_bytes_per_cycle=126.0,
    narrow_bytes_per_cycle=17.2,
    decode_dram_share=0.82,
    decode_l2_share=0.68,
    decode_tensor_share=0.28,
    prompt_launch_cycles=16500.0,
    tile_seconds=0.13e-6,
    tile_seconds_per_dim=0.25e-9,
    tensor_share=0.825,
    exponential_share=0.405,
    softmax_overlap=3.0,
    narrow_chain=1.6,
    narrow_tensor=0.85,
)
# Triton's kernels of both engines; vLLM's takes 16 rows of packed heads at a time. Rates from L40S, H100 and H200.
TRITON = replace(
    FA2,
    name="triton",
    packs_window=True,
    splits_alone=True,
    tile_rows=64,
    launch_cycles=13200.0,
    narrow_launch=1.3,
    sequence_cycles=270.0,
    combine_cycles=7100.0,
    block_seconds=0.5e-6,
    block_seconds_per_dim=5.5e-9,
    block_seconds_per_head=91.0e-9,
    lone_bytes_per_cycle=220.0,
    sm_bytes_per_cycle=17.3,
    narrow_bytes_per_cycle=7.7,
    decode_dram_share=0.84,
    decode_l2_share=0.45,
    decode_tensor_share=0.14,
    prompt_launch_cycles=4000.0,
    tile_seconds=0.1e-6,
    tile_seconds_per_dim=0.2e-9,
    tensor_share=0.6,
    exponential_share=0.1,
    softmax_overlap=4.0,
)
# An fp8 cache is read as fast as a 16-bit one, and nothing plans the batch beforehand.
TRTLLM_GEN = replace(
    FA3,
    name="trtllm",
    window_parts=TRTLLM.window_parts,
    combine_cycles=TRTLLM.combine_cycles,
    block_seconds_per_dim=TRTLLM.block_seconds_per_dim,
    packs_prompt=TRTLLM.packs_prompt,
    tile_rows=TRTLLM.tile_rows,
    narrow_bytes_per_cycle=FA3.sm_bytes_per_cycle,
    sequence_cycles=FA2.sequence_cycles,
    narrow_chain=1.0,
    narrow_tensor=1.0,
)
KERNELS = {"fa2": FA2, "fa3": FA3, "fa4": FA3, "flashinfer": FLASHINFER, "triton": TRITON, "trtllm": TRTLLM_GEN}


def tabled_kernel(op: Attention, gpu: Gpu) -> KernelFamily:
    """The kernel that an operator names, or that an engine picks for it; a latent has no row in any table."""
    kernel = KERNELS.get(kernel_of(op, gpu, DEFAULT_ENGINE))
    if kernel is None or op.latent_kv:
        return family_of(gpu)
    small = kernel is FA2 and facts_of(gpu).attention == SMALL_TILES
    return replace(kernel, tile_rows=64) if small else kernel
