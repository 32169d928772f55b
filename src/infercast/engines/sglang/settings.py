"""Settings of SGLang under its own names, with validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infercast.bundled import read_data
from infercast.engines.settings import check_counts, check_sizes, nearest_version, numbers
from infercast.errors import InputError, UnknownNameError, require
from infercast.lazy_classes import dataclass
from infercast.serve.scheduler.base import PrefillRules
from infercast.serve.workload.request import NEVER
from infercast.shown import SettingsRepr

if TYPE_CHECKING:
    from infercast.engines.speculation import Drafting

_DATA = read_data("engines/sglang/releases.toml")
ARCHITECTURES = read_data("engines/sglang/architectures.toml")  # What is decided by a model's architecture
MEASURED = f"sglang@{_DATA['measured']}"  # The release whose costs were measured
MEASURED_AGAIN = f"sglang@{_DATA['measured_again']}"  # The one with host times of its own
ENGINES = tuple(f"sglang@{version}" for version in _DATA["releases"])
ORDERS = ("fcfs", "lpm")  # Queue order: by arrival, or longest cached prefix first
EARLY_GRAPHS = "tc_piecewise@0.5.12"  # what 0.5.10 to 0.5.12 captured, by rules of their own
PREFILL_GRAPHS = ("breakable", EARLY_GRAPHS, "disabled")
STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")  # How recurrent states are kept for prefixes

USUAL = {"cuda_graph_backend_prefill": PREFILL_GRAPHS[0], "mamba_radix_cache_strategy": STRATEGIES[0]}
WRITE_POLICIES = ("write_through", "write_through_selective")  # Pages go to the host when computed, or at the next hit


def facts_of(engine: str, table: str) -> dict[str, bool]:
    """What a release has of a table of facts; as the nearest one if it is not known."""
    version = numbers((nearest_version(engine, ENGINES) or MEASURED).partition("@")[2])
    return {fact: numbers(since) <= version for fact, since in _DATA[table].items()}


def rules_of(engine: str) -> PrefillRules:
    return PrefillRules(**facts_of(engine, "rules"))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SglangSettings(SettingsRepr):
    """What a user passes to ``sglang.launch_server``; None means the engine's default for the GPU and the model."""

    mem_fraction_static: float | None = None  # Share of GPU memory for weights and KV cache, from 0 to 1
    max_running_requests: int | None = None  # Maximum sequences in one step
    max_total_tokens: int | None = None  # KV cache size in tokens, instead of as many as fit
    chunked_prefill_size: int | None = None  # Maximum prompt tokens in one step
    max_prefill_tokens: int = 16_384  # Maximum prompt tokens of all new requests in a step
    prefill_max_requests: int | None = None  # Maximum new requests in one step
    context_length: int | None = None  # Maximum tokens of a sequence, prompt and answer together
    schedule_policy: str = ORDERS[0]
    enable_priority_scheduling: bool = False  # The queue is ordered by priorities, the largest number first ...
    schedule_low_priority_values_first: bool = False  # ... or the smallest ...
    disable_priority_preemption: bool = False  # ... and running requests do not give way ...
    priority_scheduling_preemption_threshold: int = 10  # ... or only to those with a priority better by more than this.
    schedule_conservativeness: float = 1.0  # A factor on the tokens reserved for future output
    scheduler_recv_interval: int = 1  # Decode steps between polls for new requests
    page_size: int | None = None  # Tokens per page of the KV cache
    swa_full_tokens_ratio: float = 0.8
    """Tokens in the sliding window pool as a share of those in the full attention pool, from 0 to 1."""
    attention_backend: str | None = None
    fp8_gemm_backend: str = "auto"  # Kernels of products in fp8, for which ``flashinfer_trtllm`` packs no scales
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    enable_dp_attention: bool = False
    disable_hybrid_swa_memory: bool = False
    disable_cuda_graph: bool = False
    disable_cuda_graph_padding: bool = False
    cuda_graph_max_bs: int | None = None  # Sequences of the largest decode step with a CUDA graph
    cuda_graph_bs: tuple[int, ...] | None = None  # Sequences of every decode step size with a CUDA graph
    cuda_graph_max_bs_prefill: int | None = None  # Tokens of the largest prefill step with a CUDA graph
    cuda_graph_backend_prefill: str | None = None
    disable_decode_cuda_graph: bool = False
    disable_prefill_cuda_graph: bool = False
    max_mamba_cache_size: int | None = None  # Sequences with recurrent states held
    mamba_full_memory_ratio: float = 0.9  # Bytes of recurrent states as a share of those of the KV cache
    mamba_radix_cache_strategy: str | None = None
    deepep_mode: str = "auto"  # How DeepEP sends tokens; its mode ``normal`` has no graphs
    enable_two_batch_overlap: bool = False  # Steps run as two halves: one exchanges tokens while the other computes
    ep_size: int = 1  # GPUs that experts are spread over: 1, or all that share them
    enable_eplb: bool = False  # Experts move between GPUs until these are loaded evenly ...
    ep_num_redundant_experts: int = 0  # ... with so many copies of experts over all GPUs.
    init_expert_location: str = "trivial"  # A file with the load of experts, by which they are placed at the start
    enable_flashinfer_allreduce_fusion: bool = False  # Fuse norms into all-reduces, also where not the default ...
    enforce_disable_flashinfer_allreduce_fusion: bool = False  # ... or for none.
    enable_hierarchical_cache: bool = False  # A second KV cache tier in host memory ...
    hicache_ratio: float = 2.0  # ... larger than the GPU's cache by this factor ...
    hicache_size: int = 0  # ... or of this many GB per GPU.
    hicache_write_policy: str = WRITE_POLICIES[0]
    enable_lora: bool = False
    lora_paths: str | None = None  # LoRA adapters, which enable them, too ...
    max_loras_per_batch: int = 8  # ... so many at most in one step, requests without one counted as one ...
    max_lora_rank: int | None = None  # ... and the number of rows of their matrices: the rank.
    speculative_algorithm: str | None = None  # Speculative decoding: EAGLE, EAGLE3, NEXTN, STANDALONE or NGRAM ...
    speculative_draft_model_path: str | None = None
    speculative_draft_model_quantization: str | None = None
    speculative_num_steps: int | None = None  # ... with drafts of so many steps, passes of the drafter ...
    speculative_eagle_topk: int | None = None  # ... of this number of branches ...
    speculative_num_draft_tokens: int | None = None  # ... of which so many are verified, the last known token included
    is_embedding: bool = False  # Prompts give vectors, and no tokens
    acceptance: str | None = None  # Acceptance of drafts (`engines.speculation.FORMS`); None: published curves
    engine: str = ENGINES[-1]  # The engine and its version, which determines rules and defaults

    @property
    def has_adapters(self) -> bool:
        return self.enable_lora or self.lora_paths is not None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResolvedSglang(SglangSettings):
    mem_fraction_static: float
    max_running_requests: int
    chunked_prefill_size: int
    context_length: int
    page_size: int
    attention_backend: str
    cuda_graph_backend_prefill: str
    mamba_radix_cache_strategy: str
    decode_sizes: tuple[int, ...]  # Sequences of decode steps with a graph
    prefill_sizes: tuple[int, ...]  # Tokens of prefill steps with one
    longest: int  # Maximum tokens of a sequence: the context, or all that the cache holds
    groups: int = 1  # DP attention groups
    drafting: Drafting | None = None

    @property
    def parts(self) -> tuple[int, int, int]:
        """Parts that steps run as, and the tokens of one with prompts and of a decode step from which they do."""
        prompts = NEVER if self.deepep_mode == "low_latency" else 2  # its buffers are for decoding
        return 2 if self.enable_two_batch_overlap else 1, prompts, 2

    @property
    def chunk(self) -> int | None:
        """Prompt tokens per step; None: prompts are not chunked."""
        return None if self.chunked_prefill_size <= 0 else self.chunked_prefill_size

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of the largest step: a full chunk, all sequences at once, or the longest prompt in one piece."""
        prompts = max(self.max_prefill_tokens, self.context_length) if self.chunk is None else self.chunk
        return max(prompts, self.max_running_requests * (1 if self.drafting is None else self.drafting.width))

    @property
    def max_num_seqs(self) -> int:
        return self.max_running_requests

    @property
    def max_model_len(self) -> int:
        return self.longest


LARGEST_GRAPH = 65_536  # No engine captures graphs for larger steps
MOST_HICACHE = 1_000_000
COUNTS = (
    "max_running_requests", "max_total_tokens", "max_prefill_tokens", "prefill_max_requests", "page_size",
    "context_length", "cuda_graph_max_bs", "cuda_graph_max_bs_prefill", "max_mamba_cache_size", "ep_size",
    "scheduler_recv_interval", "max_loras_per_batch", "max_lora_rank",
    "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
)  # fmt: skip
NAMES = {
    "schedule_policy": ORDERS, "cuda_graph_backend_prefill": PREFILL_GRAPHS, "mamba_radix_cache_strategy": STRATEGIES,
    "deepep_mode": ("auto", "normal", "low_latency"),
}  # fmt: skip


def check(settings: SglangSettings, max_positions: int) -> None:
    check_counts(settings, COUNTS)
    other_orders = ("random", "dfs-weight", "lof", "priority", "routing-key")  # Orders that are not modelled
    if settings.schedule_policy in other_orders:
        raise InputError(f"schedule_policy {settings.schedule_policy} is not modelled; use {' or '.join(ORDERS)}")
    for name, known in NAMES.items():
        if getattr(settings, name) not in known:
            raise UnknownNameError(name, getattr(settings, name), known)
    if settings.enable_priority_scheduling and (
        settings.schedule_policy != "fcfs" or settings.enable_hierarchical_cache
    ):
        raise InputError("enable_priority_scheduling is modelled with schedule_policy fcfs and no hierarchical cache")
    _check_shares(settings)
    _check_tier(settings)
    check_sizes("cuda_graph_bs", settings.cuda_graph_bs)
    if max(settings.cuda_graph_max_bs or 1, *(settings.cuda_graph_bs or (1,))) > LARGEST_GRAPH:
        raise InputError(f"cuda_graph_max_bs must be at most {LARGEST_GRAPH:,}")
    chunk = settings.chunked_prefill_size
    is_size = chunk is None or chunk >= 1 or chunk == -1
    require(is_size, "chunked_prefill_size", "be at least 1, or -1 for whole prompts", chunk)
    if settings.context_length is not None and settings.context_length > max_positions:
        raise InputError(
            f"context_length {settings.context_length} is above the {max_positions} positions the model was made for"
        )


def _check_tier(settings: SglangSettings) -> None:
    if settings.hicache_write_policy == "write_back":
        raise InputError(f"hicache_write_policy write_back is not modelled; use {' or '.join(WRITE_POLICIES)}")
    if settings.hicache_write_policy not in WRITE_POLICIES:
        raise UnknownNameError("hicache_write_policy", settings.hicache_write_policy, WRITE_POLICIES)
    if settings.enable_hierarchical_cache and settings.disable_radix_cache:
        raise InputError("enable_hierarchical_cache needs the radix cache, which disable_radix_cache turns off")
    if not (0 <= settings.hicache_size <= MOST_HICACHE and 0 < settings.hicache_ratio <= MOST_HICACHE):
        raise InputError(
            f"hicache_size must be 0 to {MOST_HICACHE:,} (GB) and hicache_ratio above 0 and at most {MOST_HICACHE:,}, "
            f"not {settings.hicache_size} and {settings.hicache_ratio:g}"
        )


def _check_shares(settings: SglangSettings) -> None:
    share = settings.mem_fraction_static
    require(share is None or 0 < share < 1, "mem_fraction_static", "lie in (0, 1)", str(share))
    for name in ("ep_num_redundant_experts", "schedule_conservativeness"):
        require(getattr(settings, name) >= 0, name, "be 0 or more", str(getattr(settings, name)))
    ratio, states = settings.swa_full_tokens_ratio, settings.mamba_full_memory_ratio
    require(0 < ratio <= 1, "swa_full_tokens_ratio", "lie in (0, 1]", str(ratio))
    require(states > 0, "mamba_full_memory_ratio", "be above 0", str(states))
