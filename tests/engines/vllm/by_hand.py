"""Memory plans by hand: sizes of matrices from a config's numbers, and a plan held against them.

Nothing here uses the package but `fit_memory`, whose answer is checked. Norms and other vectors, below a hundredth of a
per cent, are left out of the sums.
"""

from infercast.engines.vllm.settings import EngineSettings
from infercast.forecast.memory import fit_memory

# Bytes of a stored weight with its scales: an fp32 for a tile, a bf16 for 128 or 32 integers, a byte for 32 or 16.
BF16, FP8, FP8_BLOCK = 2, 1, 1 + 4 / 128**2
INT4, INT4_32, AWQ = 0.5 + 2 / 128, 0.5 + 2 / 32, 0.5 + 2.5 / 128
MXFP4, NVFP4 = 0.5 + 1 / 32, 0.5 + 1 / 16


def heads(hidden, queries, keys, size, gpus=1, value=None):
    """Projections of grouped attention on one of ``gpus``; scarce key-value heads are on several."""
    both = size + (value or size)
    return hidden * both * (queries / gpus + max(1, keys // gpus))


def gated(hidden, width, gpus=1):
    """Gate, up and down."""
    return 3 * hidden * width / gpus


def latent(hidden, number, gpus=1, rank=1536):
    """Projections of latent attention with DeepSeek's dimensions: 512 + 64 cached, heads of 128 + 64 and 128."""
    down = hidden * (rank + 576)
    queries = (rank or hidden) * number * 192
    return down + (queries + 512 * number * 256 + number * 128 * hidden) / gpus


def expansion(number, gpus=1):
    """What latent attention keeps once more in bf16 beside quantised weights."""
    return 512 * number * 256 / gpus * BF16


def up(size, multiple):
    """Rounded up."""
    return -(-size // multiple) * multiple


def check(model, options, *, weights, block, blocks, gpu="h200-sxm", context=8192, **settings):
    """A plan within 1 %: bytes of weights a GPU and of a KV block, sequences by the ``blocks`` that each takes."""
    fit = fit_memory(model, gpu, EngineSettings(**settings), context=context, **options)
    memory = fit.memory
    assert abs(memory.weights / weights - 1) < 0.01
    assert memory.kv.block_bytes == block
    left = 0.92 * memory.total - weights - memory.activations - memory.graphs - memory.libraries
    sequences = (left / block - 1) / blocks
    assert abs(fit.most_sequences - sequences) < max(1, 0.01 * sequences)
