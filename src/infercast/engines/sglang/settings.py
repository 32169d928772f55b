"""The knobs of SGLang, under its names."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.errors import InputError, UnknownNameError

NEWEST = "sglang@0.5.16"
"""The release that is modelled, and whose costs were measured."""
ORDERS = ("fcfs", "lpm")
"""Of the queue: by arrival, or longest cached prefix first."""
NO_CHUNKS = -1
"""`chunked_prefill_size` of a server that computes prompts whole."""
PREFILL_GRAPHS = ("breakable", "disabled")
LONGEST_GRAPH = 65_536
"""No engine records graphs for larger steps."""
COUNTS = (
    "max_running_requests", "max_total_tokens", "max_prefill_tokens", "prefill_max_requests", "page_size",
    "context_length", "cuda_graph_max_bs", "max_mamba_cache_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """What a user passes to ``sglang.launch_server``; None means the engine's default for the GPU and the model."""

    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16_384
    prefill_max_requests: int | None = None
    context_length: int | None = None
    schedule_policy: str = ORDERS[0]
    schedule_conservativeness: float = 1.0
    page_size: int | None = None
    swa_full_tokens_ratio: float = 0.8
    attention_backend: str | None = None
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    enable_dp_attention: bool = False
    disable_hybrid_swa_memory: bool = False
    disable_cuda_graph: bool = False
    disable_cuda_graph_padding: bool = False
    cuda_graph_max_bs: int | None = None
    cuda_graph_bs: tuple[int, ...] | None = None
    cuda_graph_backend_prefill: str = PREFILL_GRAPHS[0]
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: float = 0.9
    engine: str = NEWEST
    """The engine and its version, whose rules and defaults hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSglang(SglangSettings):
    """The same knobs with every default filled in."""

    mem_fraction_static: float
    max_running_requests: int
    chunked_prefill_size: int
    context_length: int
    page_size: int
    attention_backend: str
    decode_sizes: tuple[int, ...]
    """Sequences of the decode steps that have a graph."""
    prefill_sizes: tuple[int, ...]
    """Tokens of the steps of prompts that have one."""

    @property
    def chunk(self) -> int | None:
        """Tokens of prompts in a step; None: prompts are computed whole."""
        return None if self.chunked_prefill_size <= 0 else self.chunked_prefill_size

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of the largest step: a full chunk, all sequences at once, or the longest prompt in one piece."""
        prompts = max(self.max_prefill_tokens, self.context_length) if self.chunk is None else self.chunk
        return max(prompts, self.max_running_requests)

    @property
    def max_num_seqs(self) -> int:
        """Sequences of the largest step."""
        return self.max_running_requests

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        return self.context_length


def check(settings: SglangSettings, max_positions: int) -> None:
    """One clear sentence for each knob that is out of range."""
    for name in COUNTS:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    share = settings.mem_fraction_static
    if share is not None and not 0 < share < 1:
        raise InputError(f"mem_fraction_static must lie in (0, 1), not {share}")
    chunk = settings.chunked_prefill_size
    if chunk is not None and chunk < 1 and chunk != NO_CHUNKS:
        raise InputError(f"chunked_prefill_size must be at least 1, or -1 for whole prompts, not {chunk}")
    if settings.schedule_policy not in ORDERS:
        raise UnknownNameError("schedule_policy", settings.schedule_policy, ORDERS)
    if settings.schedule_conservativeness < 0:
        raise InputError(f"schedule_conservativeness must be 0 or more, not {settings.schedule_conservativeness}")
    if not 0 < settings.swa_full_tokens_ratio <= 1:
        raise InputError(f"swa_full_tokens_ratio must lie in (0, 1], not {settings.swa_full_tokens_ratio}")
    if not settings.mamba_full_memory_ratio > 0:
        raise InputError(f"mamba_full_memory_ratio must be above 0, not {settings.mamba_full_memory_ratio}")
    sizes = settings.cuda_graph_bs
    if sizes is not None and not (sizes and all(size >= 1 for size in sizes)):
        raise InputError(f"cuda_graph_bs must be one or more numbers of at least 1, not {list(sizes)}")
    if max(settings.cuda_graph_max_bs or 1, *(sizes or (1,))) > LONGEST_GRAPH:
        raise InputError(f"cuda_graph_max_bs must be at most {LONGEST_GRAPH:,}")
    if settings.cuda_graph_backend_prefill not in PREFILL_GRAPHS:
        raise UnknownNameError("cuda_graph_backend_prefill", settings.cuda_graph_backend_prefill, PREFILL_GRAPHS)
    if settings.context_length is not None and settings.context_length > max_positions:
        raise InputError(
            f"context_length {settings.context_length} is above the {max_positions} positions the model was made for"
        )
