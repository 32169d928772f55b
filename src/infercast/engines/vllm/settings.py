"""Settings and defaults of vLLM, and its CUDA graph sizes."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from infercast.engines.host import Launch, next_size
from infercast.engines.settings import check_counts, check_sizes, version_of
from infercast.engines.speculation import MTP, Drafting
from infercast.engines.vllm.kernels import DATACENTER_BLACKWELL, UNIT, check_block_size
from infercast.engines.vllm.kv_cache import BACKENDS, NONE, StateBlocks, States, TierSettings, tier_settings
from infercast.engines.vllm.versions import NEWEST, EngineVersion, Rule, engine_version, fact_before, with_defaults
from infercast.errors import InputError, UnknownNameError, require
from infercast.hardware import Gpu
from infercast.lazy_classes import asdict, dataclass
from infercast.models.read import read_object
from infercast.serve.cache.blocks import StateRules
from infercast.serve.scheduler.base import ORDERS
from infercast.shown import SettingsRepr
from infercast.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infercast.models.mixers.mixer import Cache


MODES = ("full_and_piecewise", "full_decode_only", "piecewise", "none")  # Which kinds of steps have graphs


@cache
def capture_sizes(largest: int, max_num_batched_tokens: int, beside: int | None = None) -> tuple[int, ...]:
    """1, 2, 4, then by 8 to 256 and by 16 to the largest; with the most tokens of a step if it fits, and ``beside``."""
    largest = min(largest, max_num_batched_tokens)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)}
    if largest == max_num_batched_tokens:
        sizes.add(largest)
    if beside is not None:
        sizes.add(beside)
    return tuple(sorted(size for size in sizes if size <= largest))


def round_up(size: int, width: int) -> int:
    return -(-size // width) * width


@dataclass(frozen=True)
class CapturedGraphs:
    sizes: tuple[int, ...]
    max_num_seqs: int
    mode: str = MODES[0]
    width: int = 1  # Tokens per sequence in a full graph step: several with drafts to verify
    has_holes: bool = False  # True if a size for any step hides a larger one for uniform steps (V2 runner up to 0.31)

    @cached_property
    def _full_sizes(self) -> list[int]:
        if not self.sizes or self.mode == "piecewise":
            return []
        most = min(self.sizes[-1], self.max_num_seqs * self.width)
        return sorted({size for each in self.sizes if (size := round_up(each, self.width)) <= most})

    @property
    def num_full(self) -> int:
        return len(self._full_sizes)

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step is launched, and its padded size; decode: all sequences have ``width`` tokens."""
        full = next_size(self._full_sizes, num_tokens) if is_decode else None
        pieces = next_size(self.sizes, num_tokens) if self.mode != "full_decode_only" else None
        if full is not None and not (self.has_holes and pieces is not None and pieces < full):
            return Launch.FULL_GRAPH, full
        if pieces is not None:
            hidden = next_size(self._full_sizes, num_tokens) if self.has_holes else None
            if hidden is None or hidden >= pieces:
                return Launch.PIECEWISE_GRAPHS, pieces
        return Launch.EAGER, num_tokens


OFFLOADS = ("auto", "uva", "prefetch")
NAMED = {"cudagraph_mode": MODES, "scheduling_policy": ("fcfs", *ORDERS), "offload_backend": OFFLOADS}
"""Settings that are one of several words."""
DENSE = "none"  # A retention interval that caches everything
LARGEST_CAPTURE = 1_000_000  # No engine captures graphs for larger steps
COUNTS = (
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_gpu_blocks_override",
    "max_cudagraph_capture_size", "mamba_block_size", "max_num_active_seqs", "max_num_scheduled_tokens",
    "prefill_schedule_interval", "kv_cache_memory_bytes", "offload_num_in_group", "offload_prefetch_step",
)  # fmt: skip
NEW = (
    "max_num_active_seqs", "max_num_scheduled_tokens", "max_num_queued_reqs", "max_num_queued_tokens",
    "prefix_cache_retention_interval", "long_prefill_token_threshold_adaptive", "enable_eplb",
)  # fmt: skip
BALANCING = {"num_redundant_experts", "window_size", "step_interval", "use_async", "policy", "communicator"}
BALANCING |= {"log_balancedness", "log_balancedness_interval", "enable_migration_batching"}


def check_settings(settings: EngineSettings, max_positions: int) -> None:
    check_counts(settings, COUNTS)
    if settings.block_size is not None:
        check_block_size(settings.block_size)
    largest = settings.max_cudagraph_capture_size
    if largest is not None and largest > LARGEST_CAPTURE:
        raise InputError(f"max_cudagraph_capture_size must be at most {LARGEST_CAPTURE:,}, not {largest:,}")
    sizes = settings.cudagraph_capture_sizes
    check_sizes("cudagraph_capture_sizes", sizes)
    if sizes and largest not in (None, max(sizes)):
        raise InputError(
            f"max_cudagraph_capture_size {largest} is not the largest of "
            f"cudagraph_capture_sizes, {max(sizes)}; give one of the two"
        )
    for name, known in NAMED.items():
        if getattr(settings, name) not in known and not callable(getattr(settings, name)):
            raise UnknownNameError(name.replace("scheduling_", "scheduling "), getattr(settings, name), known)
    share = settings.gpu_memory_utilization
    require(share is None or 0 < share <= 1, "gpu_memory_utilization", "lie in (0, 1]", str(share))
    if settings.long_prefill_token_threshold < 0:
        raise InputError(f"long_prefill_token_threshold must be 0 or more, not {settings.long_prefill_token_threshold}")
    require((settings.api_server_count or 1) >= 1, "api_server_count", "be at least 1", str(settings.api_server_count))
    require(settings.stream_interval >= 1, "stream_interval", "be at least 1", str(settings.stream_interval))
    require(0 <= settings.watermark < 1, "watermark", "lie in [0, 1)", str(settings.watermark))
    require(settings.cpu_offload_gb >= 0, "cpu_offload_gb", "be 0 or more", str(settings.cpu_offload_gb))
    least = min(settings.dbo_decode_token_threshold, settings.dbo_prefill_token_threshold)
    if settings.ubatch_size < 0 or (settings.ubatch_size > least and not settings.enable_dbo):
        raise InputError(
            f"ubatch_size {settings.ubatch_size} must be 0 or more, and at most the {least} tokens from which steps "
            "are parted; lower it or raise dbo_decode_token_threshold and dbo_prefill_token_threshold"
        )
    if settings.offload_num_in_group > (settings.offload_group_size or settings.offload_num_in_group):
        raise InputError(f"offload_num_in_group must be at most offload_group_size, {settings.offload_group_size}")
    tier_settings(settings.kv_offloading_size, settings.kv_offloading_backend, settings.kv_transfer_config)
    _check_new(settings)
    if settings.max_model_len is not None and settings.max_model_len > max_positions:
        raise InputError(
            f"max_model_len {settings.max_model_len} is above the {max_positions} positions the model was made for"
        )


def redundant_experts(settings: EngineSettings) -> int:
    values = read_object(settings.eplb_config or "{}", "--eplb-config")
    if strange := sorted({*values} - BALANCING):
        raise UnknownNameError("field of --eplb-config", strange[0], sorted(BALANCING))
    copies: Any = values.get("num_redundant_experts", settings.num_redundant_experts)
    if type(copies) is not int or copies < 0:
        raise InputError(f"num_redundant_experts must be a whole number of at least 0, not {copies!r}")
    if copies and not settings.enable_eplb:
        raise InputError(f"num_redundant_experts {copies} needs enable_eplb; add it or leave them out")
    return copies


def check_blocks(settings: ResolvedSettings, caches: Iterable[Cache]) -> None:
    size, interval, drafts = settings.block_size, settings.prefix_cache_retention_interval, settings.read_ahead
    if settings.enable_prefix_caching and size < drafts:
        raise InputError(
            f"several prediction heads with prefix caching need blocks of at least num_speculative_tokens {drafts} "
            f"tokens, not {size}; raise block_size"
        )
    if interval is None or interval in (DENSE, "0"):
        return
    if not any((cache.window and not cache.chunked) or not cache.bytes_per_token for cache in caches):
        raise InputError(
            f"prefix_cache_retention_interval {interval} has no effect on a model without sliding windows or recurrent "
            "layers; leave it out or set it to 0"
        )
    if int(interval) % size:
        raise InputError(
            f"prefix_cache_retention_interval {interval} must be a multiple of the {size} tokens of a block"
        )


def _check_new(settings: EngineSettings) -> None:
    """Settings that older releases do not have."""
    for name in NEW:
        if getattr(settings, name) not in (None, False):
            from infercast.engines.arguments import arguments_of  # noqa: PLC0415 - few ask for any

            arguments_of(settings.engine, "vLLM", (), flexible=True).find(f"--{name}", strict=True)
    active, interval = settings.max_num_active_seqs, settings.prefix_cache_retention_interval
    if active is not None and settings.max_num_seqs is not None and active > settings.max_num_seqs:
        raise InputError(f"max_num_active_seqs {active} is above max_num_seqs {settings.max_num_seqs}")
    if interval not in (None, DENSE) and not interval.isdigit():
        raise InputError(f"prefix_cache_retention_interval must be {DENSE} or a number of tokens, not {interval!r}")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EngineSettings(SettingsRepr):
    """What a user passes to ``vllm serve``; None means the engine's default for the GPU and the model."""

    max_num_batched_tokens: int | None = None  # Maximum tokens in one step
    max_num_seqs: int | None = None  # Maximum sequences in one step
    max_model_len: int | None = None  # Maximum tokens of a sequence, prompt and answer together; -1: as many as fit
    gpu_memory_utilization: float | None = None  # Share of GPU memory that the engine uses, from 0 to 1
    block_size: int | None = None  # Tokens per KV block
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int = 0  # Longer prompts are computed in chunks of this many tokens; 0: no limit
    long_prefill_token_threshold_adaptive: bool = False  # That limit is at least an equal share for each request there
    max_num_scheduled_tokens: int | None = None
    """Tokens scheduled in one step, if fewer than ``max_num_batched_tokens``, which sizes graphs and buffers."""
    prefill_schedule_interval: int = 1
    """Data-parallel engines that share experts compute prompts only in every n-th step while they decode."""
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    override_generation_config: str | None = None  # Of this JSON, ``max_new_tokens`` ends all longer answers
    num_gpu_blocks_override: int | None = None  # Number of KV blocks, instead of as many as fit
    kv_cache_memory_bytes: int | None = None  # Bytes a GPU for KV blocks, whatever ``gpu_memory_utilization`` leaves
    max_cudagraph_capture_size: int | None = None  # Tokens of the largest step with a CUDA graph
    cudagraph_capture_sizes: tuple[int, ...] | None = None  # Tokens of every step size with a CUDA graph
    cudagraph_mode: str | None = None
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()  # Layers with an unquantised cache: numbers, or ``sliding_window``
    mamba_cache_mode: str = NONE  # How recurrent states are cached: ``align``, ``all`` or, by the engine, ``none``
    mamba_block_size: int | None = None  # Block size in tokens is a multiple of this when each block end stores a state
    scheduling_policy: str = "fcfs"  # Else by one of `ORDERS`, or by a function of a request; ties by arrival
    enable_lora: bool = False
    max_loras: int = 1  # Distinct LoRA adapters in a step, with room on the GPU ...
    max_lora_rank: int = 16  # ... up to this rank, a number of rows.
    prompts_first: bool | None = None  # Prefill-only steps before any decoding, as vLLM did before its V1 engine
    max_num_active_seqs: int | None = None  # Maximum running sequences, if fewer than graphs and buffers are sized for
    max_num_queued_reqs: int | None = None  # Queued requests beyond which the server rejects more; not simulated ...
    max_num_queued_tokens: int | None = None  # ... and the same in tokens.
    prefix_cache_retention_interval: str | None = None
    """Windows and states are cached before multiples of this; 0: only where known useful, ``none``: everywhere."""
    api_server_count: int | None = None  # Processes that take requests in and send tokens; None: one for each engine
    stream_interval: int = 1  # Tokens that are sent together
    watermark: float = 0.0  # Share of KV blocks kept free when a request is admitted while others run, 0 to below 1
    scheduler_reserve_full_isl: bool = True  # A request is admitted only if its whole prompt fits in the KV cache
    cpu_offload_gb: float = 0.0  # GiB of each GPU's weights that stay in host memory, where kernels read them
    offload_group_size: int = 0
    """Of every n layers, weights of the last stay in host memory and are copied ahead of use; 0: none ..."""
    offload_num_in_group: int = 1  # ... of that many layers ...
    offload_prefetch_step: int = 1  # ... and that many of these layers ahead.
    offload_backend: str = OFFLOADS[0]
    """Which of the two ways: ``uva`` or ``prefetch``; ``auto``: the second if it has a group size."""
    enable_dbo: bool = False  # Steps run as two parts, one exchanging tokens between GPUs while the other computes ...
    ubatch_size: int = 0  # ... or, without `enable_dbo`, as this number of parts ...
    dbo_decode_token_threshold: int = 32  # ... if they have so many tokens, and only decode ...
    dbo_prefill_token_threshold: int = 512  # ... or so many with prompts.
    enable_eplb: bool = False  # Experts move between GPUs until these are loaded evenly ...
    eplb_config: str | None = None  # ... with ``num_redundant_experts`` copies in this JSON ...
    num_redundant_experts: int = 0  # ... or, in releases before 0.12, this number of them.
    kv_offloading_size: float | None = None  # GiB of host memory for a second KV cache tier, over all GPUs of an engine
    kv_offloading_backend: str = BACKENDS[0]
    kv_transfer_config: str | None = None  # A KV connector as vLLM's JSON; the offloading connector is supported
    speculative_config: str | None = None  # Speculative decoding, as vLLM's JSON; None: none
    acceptance: str | None = None
    """Acceptance of drafts (`infercast.engines.speculation.FORMS`); None: from the config or published curves."""
    dummy_weights: bool = False  # True for dummy weights, as in measured engines: drafts use the target's embeddings
    engine: str = NEWEST  # The engine and its version, which determines rules and defaults


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResolvedSettings(EngineSettings):
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    cudagraph_mode: str
    prompts_first: bool
    most_graph_tokens: int = 512  # Default limit of the largest graph, in tokens
    drafting: Drafting | None = None  # Speculative decoding as resolved; None: none
    exports_deltas: bool = False  # Kernels of gated delta nets store a state before the end of a step

    @property
    def version(self) -> EngineVersion:
        return engine_version(self.engine)

    @property
    def state_blocks(self) -> StateBlocks:
        drafts, version = 0 if self.drafting is None else self.drafting.num_drafts, self.version
        rules = StateRules(
            exports=version.has(Rule.EXPORTS_STATES), renews=version.has(Rule.RENEWS_STATES),
            past_attention=version.has(Rule.PAST_ATTENTION), matches_all=version.has(Rule.SPARSE_WINDOWS),
        )  # fmt: skip
        known = version.has(Rule.KNOWS_DRAFTS) and self.drafting is not None and self.drafting.method == MTP
        return StateBlocks(self.mamba_cache_mode, self.mamba_block_size or 0, drafts, rules, self.exports_deltas, known)

    @property
    def tier(self) -> TierSettings | None:
        return tier_settings(self.kv_offloading_size, self.kv_offloading_backend, self.kv_transfer_config)

    @property
    def max_output(self) -> int | None:
        """Tokens of the longest answer, whatever a request asks for."""
        values = read_object(self.override_generation_config or "{}", "--override-generation-config")
        most = values.get("max_new_tokens")
        if most is not None and (type(most) is not int or most < 1):
            raise InputError(f"--override-generation-config: max_new_tokens must be 1 or more, not {most!r}")
        return most

    @property
    def parts(self) -> tuple[int, int, int]:
        """Parts that steps run as, and the tokens of one with prompts and of a decode step from which they do."""
        number = 2 if self.enable_dbo else self.ubatch_size
        return number, self.dbo_prefill_token_threshold, self.dbo_decode_token_threshold

    @property
    def read_ahead(self) -> int:
        """Prompt tokens beyond a step that drafts are made from."""
        return 0 if self.drafting is None else self.drafting.read_ahead

    @property
    def most_running(self) -> int:
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)

    @property
    def retention_interval(self) -> int | None:
        """Tokens between cached windows and states; 0: only where useful, None: everywhere."""
        asked = self.prefix_cache_retention_interval
        if asked is None:
            return 0 if self.version.has(Rule.SPARSE_WINDOWS) else None
        return None if asked == DENSE else int(asked)

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Token counts with captured graphs; none in an eager engine."""
        if self.enforce_eager or self.cudagraph_mode == "none":
            return ()
        if self.cudagraph_capture_sizes is not None:
            return tuple(size for size in self.cudagraph_capture_sizes if size <= self.max_num_batched_tokens)
        if self.max_cudagraph_capture_size is not None:
            return capture_sizes(self.max_cudagraph_capture_size, self.max_num_batched_tokens)
        largest = min(2 * self.max_num_seqs * self.width, self.most_graph_tokens)
        beside = self.max_num_seqs if self.version.has(Rule.CAPTURES_MAX_NUM_SEQS) else None
        sizes = capture_sizes(largest, self.max_num_batched_tokens, beside if self.drafting is None else None)
        return sizes if self.drafting is None else self._sizes_to_verify(sizes, beside)

    def _sizes_to_verify(self, sizes: tuple[int, ...], beside: int | None) -> tuple[int, ...]:
        """The same for sequences of several tokens each, by model runner."""
        assert self.drafting is not None
        largest = max(sizes, default=0)
        if not self.drafting.v2_runner:
            # The V1 runner's sizes: rounded up to multiples of ``width`` tokens, up to the previous largest
            return tuple(sorted({size for each in sizes if (size := round_up(each, self.width)) <= largest}))
        most = 0 if beside is None else min(beside, self.most_graph_tokens)
        # Newer releases add sizes of whole sequences, at most ``most``, up to the previous largest
        counts = {1, 2, 4, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16), most} if most else set()
        whole = (each * self.width for each in counts if each <= most)
        return tuple(sorted({*sizes, *(size for size in whole if size <= largest)}))

    @property
    def width(self) -> int:
        return 1 if self.drafting is None else self.drafting.width

    @property
    def graphs(self) -> CapturedGraphs:
        drafts_by_v2 = self.drafting is not None and self.drafting.v2_runner
        has_holes = drafts_by_v2 and not self.version.has(Rule.CAPTURES_MAX_NUM_SEQS)
        return CapturedGraphs(self.capture_sizes, self.max_num_seqs, self.cudagraph_mode, self.width, has_holes)

    def most_under_way(self, stages: int) -> int:
        """Tokens in flight that a request's blocks must hold beyond its window."""
        steps = self.steps_under_way(stages, v2_runner=True) if self.version.has(Rule.FREES_ON_COMPLETION) else 1
        return steps * self.max_num_batched_tokens

    def steps_under_way(self, stages: int, *, v2_runner: bool) -> int:
        """Steps in flight: scheduled before the first of them has its result."""
        if not self.async_scheduling or not (self.drafting is None or self.drafting.asynchronous):
            return stages
        return stages + 1 if v2_runner else max(stages, 2)


def resolve(
    settings: EngineSettings, gpu: Gpu, max_positions: int, architecture: str = "", *, block_size: int = UNIT,
    states: States | None = None, drafting: Drafting | None = None,
) -> ResolvedSettings:  # fmt: skip
    """Fill in vLLM's defaults for a GPU and model (``block_size`` if none is set), and reject what it would reject."""
    settings = with_defaults(settings)
    check_settings(settings, max_positions)
    version = engine_version(settings.engine)
    # An API server has larger batches on GPUs with 70 GiB, except the A100; newer releases even larger ones with 160.
    large = gpu.driver_bytes >= 70 * GIB and not _is_small(gpu.name, settings.engine)
    max_model_len = settings.max_model_len or max_positions
    max_num_seqs = settings.max_num_seqs or (1024 if large else 256)
    tokens = settings.max_num_batched_tokens
    if tokens is None:
        usual = version.largest_step if gpu.driver_bytes >= 160 * GIB else 8192
        usual = fact_before("step_tokens", version_of(settings.engine), usual)
        tokens = min(usual if large else 2048, max_num_seqs * max_model_len)
        if not settings.enable_chunked_prefill:
            tokens = max(tokens, max_model_len)
    elif not settings.enable_chunked_prefill and tokens < max_model_len:
        raise InputError(
            f"max_num_batched_tokens {tokens} is below max_model_len {max_model_len}, which needs chunked prefill; "
            "enable it, raise max_num_batched_tokens or lower max_model_len"
        )
    if settings.max_num_seqs is None:
        max_num_seqs = min(max_num_seqs, tokens)
    elif tokens < max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {tokens} is below max_num_seqs {max_num_seqs}: every running sequence "
            "needs at least one token a step"
        )
    sizes = settings.cudagraph_capture_sizes
    states = states or States()
    caching = states.caches_prefixes(settings.enable_prefix_caching, version)
    has_large_graphs = version.has(Rule.LARGE_GRAPHS) and gpu.architecture in DATACENTER_BLACKWELL
    largest_graphs = {"GptOssForCausalLM": 1024}  # Tokens, beyond the usual limit of twice the sequences or 512
    filled_in: dict[str, Any] = {
        "max_num_batched_tokens": tokens, "max_num_seqs": max_num_seqs, "max_model_len": max_model_len,
        "block_size": settings.block_size or block_size,
        "max_cudagraph_capture_size": settings.max_cudagraph_capture_size or largest_graphs.get(architecture),
        "most_graph_tokens": 1024 if has_large_graphs else 512,
        "cudagraph_capture_sizes": None if sizes is None else tuple(sorted(set(sizes))),
        "enable_prefix_caching": caching, "mamba_cache_mode": states.mode(settings.mamba_cache_mode, caching, version),
        "drafting": drafting,
    }  # fmt: skip
    backend, group = settings.offload_backend, settings.offload_group_size
    filled_in["offload_group_size"] = group = 0 if backend == "uva" else group
    filled_in["cpu_offload_gb"] = 0.0 if backend == "prefetch" or group else settings.cpu_offload_gb
    _check_scheduled(settings, tokens, max_num_seqs, drafting)
    if drafting is not None and tokens <= drafting.slots_taken * max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {tokens} leaves no token for a step, since a draft model takes one for each of "
            f"{max_num_seqs} sequences; raise it or lower max_num_seqs"
        )
    return ResolvedSettings(**{**asdict(settings), **filled_in})


def _is_small(gpu: str, engine: str) -> bool:
    """True if a GPU's default step is that of small ones, whatever its memory."""
    if "a100" in gpu:
        return not fact_before("large_a100", version_of(engine), otherwise=False)
    return gpu == "gb10" and not engine_version(engine).has(Rule.LARGE_STEPS_GB10)


def _check_scheduled(settings: EngineSettings, tokens: int, max_num_seqs: int, drafting: Drafting | None) -> None:
    """A step's scheduled tokens, within what its buffers hold."""
    scheduled, taken = settings.max_num_scheduled_tokens, 0 if drafting is None else drafting.slots_taken
    if scheduled is None:
        return
    if taken and engine_version(settings.engine).has(Rule.SLOTS_BY_STEP):
        raise InputError("max_num_scheduled_tokens with a draft model is not modelled; leave one of the two out")
    if scheduled > (left := tokens - taken * max_num_seqs):
        raise InputError(f"max_num_scheduled_tokens {scheduled} is above the {left} that max_num_batched_tokens leaves")
    if not settings.enable_chunked_prefill:
        raise InputError("max_num_scheduled_tokens needs chunked prefill: a longer prompt would wait for ever")
