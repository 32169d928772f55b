"""What fits: where the memory of a GPU goes, and what to do where it is not enough."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from infercast.engines.registry import AnyEngine
from infercast.engines.settings import Resolved
from infercast.errors import DoesNotFitError, InputError
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.models.spread import check_layout
from infercast.serve.cache.shape import KvShape
from infercast.units import format_bytes

MOST_GPUS = 1024
"""As many of a node are tried where a model does not fit on fewer."""

UNBOUNDED = 1 << 40
"""Tokens of a sequence whose cache does not grow."""


class KvLayout(NamedTuple):
    """The cache's shape and what it costs on one GPU."""

    shape: KvShape
    block_bytes: int

    @property
    def token_bytes(self) -> float:
        """Bytes that one more token of a long sequence costs: layers with windows have stopped growing by then."""
        pairs = zip(self.shape.sizes, self.shape.windows, strict=True)
        return sum(self.block_bytes / size for size, window in pairs if not window)

    @property
    def first_token_bytes(self) -> float:
        """Bytes that one more token costs while no window is full."""
        return sum(self.block_bytes / size for size in self.shape.of_tokens.sizes)

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence takes for the states of recurrent layers, whatever its length."""
        return self.shape.num_state_groups * self.block_bytes


class Memory(NamedTuple):
    """Where the memory of one GPU goes, in bytes."""

    total: float
    usable: float
    weights: float
    activations: float
    graphs: float
    libraries: float
    kv: KvLayout
    num_blocks: int
    spare_blocks: int = 0
    """Of these, what the engine keeps for itself."""
    states: float = 0.0
    """What states of recurrent layers take, where they are not kept in KV blocks."""

    @property
    def request_blocks(self) -> int:
        """Blocks that hold tokens of requests."""
        return max(0, self.num_blocks - self.spare_blocks)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.num_blocks * self.kv.block_bytes

    @property
    def needed(self) -> float:
        """What must fit before the first KV block does."""
        return self.weights + self.activations + self.graphs + self.libraries + self.states

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold, without states, of sequences that no window has cut anything off."""
        shape = self.kv.shape.of_tokens.of_one_size
        return self.num_blocks * shape.block_size // max(1, len(shape.windows))

    def most_sequences(self, num_tokens: int, chunk: int) -> int:
        """Sequences of that many tokens that fit at once."""
        return self.request_blocks // self.kv.shape.most_blocks(num_tokens, chunk)

    def longest_sequence(self, chunk: int) -> int:
        """Tokens of the longest sequence that fits alone."""
        shape, blocks = self.kv.shape, self.request_blocks
        if not shape.windows:  # states alone, as large for one token as for a million
            return UNBOUNDED if shape.state_blocks <= blocks else 0
        low, high = 0, blocks * max(shape.sizes) // shape.block_size
        while low < high:
            middle = (low + high + 1) // 2
            fits = shape.most_blocks(middle * shape.block_size, chunk) <= blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * shape.block_size


def require_fit(engine: AnyEngine, config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Resolved) -> Memory:
    """The memory plan, or the reason why there is none and the smallest layout that helps."""
    memory = engine.plan_memory(config, layout, gpu, settings)
    chunk = engine.tokens_under_way(settings, layout)
    if memory.most_sequences(settings.max_model_len, chunk):
        engine.check_memory(config, settings, memory)
        return memory
    where = f"{layout.replica_gpus} x {gpu.name}"
    remedy = _remedy(engine, config, layout, gpu, settings)
    longest = memory.longest_sequence(chunk)
    if longest == 0:
        raise DoesNotFitError(
            f"{config.name} ({config.weights.name}) does not fit on {where}: weights, activations and graphs need "
            f"{format_bytes(memory.needed)} of {format_bytes(memory.usable)} usable a GPU; {remedy}"
        )
    raise DoesNotFitError(
        f"one sequence of max_model_len {settings.max_model_len} does not fit in the KV cache of {config.name} on "
        f"{where}, whose {memory.num_blocks} blocks hold {longest} tokens; lower max_model_len, or: {remedy}"
    )


def _remedy(engine: AnyEngine, config: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Resolved) -> str:
    """The smallest tensor parallelism within a node that the model allows and that fits, or pipeline parallelism."""
    in_node = min(gpu.gpus_per_node, MOST_GPUS)
    wider = (replace(layout, tensor=size) for size in range(layout.tensor + 1, in_node // layout.pipeline + 1))
    deeper = (replace(layout, pipeline=size) for size in range(layout.pipeline + 1, in_node // layout.tensor + 1))
    for larger in (*wider, *deeper):
        try:
            check_layout(config, larger)
        except InputError:
            continue
        memory = engine.plan_memory(config, larger, gpu, settings)
        if memory.most_sequences(settings.max_model_len, engine.tokens_under_way(settings, larger)):
            if larger.tensor > layout.tensor:
                return f"tensor_parallel_size={larger.tensor} fits"
            return f"pipeline_parallel_size={larger.pipeline} fits"
    return f"no layout within the {gpu.gpus_per_node} GPUs of a node fits"
