"""GPU memory by use, the layout of the KV cache, and the link to KV blocks in host memory.

Measured on an H200 (PCIe 5.0 x16) with vLLM's own copies: 53.6 GB/s to the GPU and 54.7 to the host, 7 % less in both
directions at once. A copy does not begin before all of its pieces are submitted, at 1 us of a host thread each.
"""

from __future__ import annotations

from infercast.errors import InputError
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple
from infercast.models.layout import ParallelLayout
from infercast.models.lower import adapter_bytes, token_calls
from infercast.models.spec import AdapterSlots, ModelConfig, stage_layers
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.tiers import LinkSpeed

LINK_SHARE = 0.86  # Share of the link's bandwidth that large copies reach


class KvLayout(NamedTuple):
    shape: KvShape
    block_bytes: int

    @property
    def token_bytes(self) -> float:
        """Bytes per additional token of a long sequence: layers with windows have stopped growing by then."""
        pairs = zip(self.shape.sizes, self.shape.windows, strict=True)
        return sum(self.block_bytes / size for size, window in pairs if not window)

    @property
    def first_token_bytes(self) -> float:
        """Bytes per additional token while no window is full."""
        return sum(self.block_bytes / size for size in self.shape.of_tokens.sizes)

    @property
    def state_bytes(self) -> int:
        return self.shape.num_state_groups * self.block_bytes


class Memory(NamedTuple):
    total: float
    usable: float
    weights: float
    activations: float
    graphs: float
    libraries: float
    kv: KvLayout
    num_blocks: int
    spare_blocks: int = 0
    states: float = 0.0  # Recurrent states, where they are not kept in KV blocks

    @property
    def request_blocks(self) -> int:
        return max(0, self.num_blocks - self.spare_blocks)

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.kv.block_bytes

    @property
    def needed(self) -> float:
        """What must fit before the first KV block."""
        return self.weights + self.activations + self.graphs + self.libraries + self.states

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold, without states, of sequences shorter than any window."""
        shape = self.kv.shape.of_tokens.of_one_size
        return self.num_blocks * shape.block_size // max(1, len(shape.windows))

    def most_sequences(self, num_tokens: int, chunk: int) -> int:
        return self.request_blocks // self.kv.shape.most_blocks(num_tokens, chunk)

    def longest_sequence(self, chunk: int) -> int:
        shape, blocks = self.kv.shape, self.request_blocks
        if not shape.windows:  # states only, the same size for one token as for a million
            unbounded = 1 << 40  # Tokens of a sequence whose cache does not grow
            return unbounded if shape.state_blocks <= blocks else 0
        low, high = 0, blocks * max(shape.sizes) // shape.block_size
        while low < high:
            middle = (low + high + 1) // 2
            fits = shape.most_blocks(middle * shape.block_size, chunk) <= blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * shape.block_size


def host_link(gpu: Gpu, gpus: int, submit_seconds: float, submit_piece_seconds: float) -> LinkSpeed:
    """The host link of each of ``gpus`` GPUs, in one direction."""
    at_once = 4  # GPUs of a server that copy at full link speed; more share that bandwidth. Not measured
    share = min(1.0, at_once / min(gpus, gpu.gpus_per_node))
    latency = 10e-6
    return LinkSpeed(LINK_SHARE * share * gpu.pcie_bandwidth, latency, submit_seconds, submit_piece_seconds)


def slots_of(count: int, rank: int, model: ModelConfig) -> AdapterSlots:
    if model.has_experts:
        raise InputError(
            f"enable_lora is not modelled for {model.name}: adapters of experts have kernels of their own; "
            "use a model without experts"
        )
    return AdapterSlots(count, rank)


def slots_bytes(config: ModelConfig, layout: ParallelLayout, stage: int) -> float:
    if config.adapters is None:
        return 0.0
    share = stage_layers(config.layers, layout)[stage] / config.layers
    return share * adapter_bytes(token_calls(config, layout, 1), config.adapters, config.weights.base)
