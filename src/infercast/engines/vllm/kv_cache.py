"""The KV cache of vLLM: blocks of layer groups, recurrent states, and offloading to host memory.

Groups follow vLLM 0.25's ``v1/core/kv_cache_utils.py``: caches that grow with all tokens form one group, whatever their
width; windows and compressor states form groups by their length and tokens per block, padded to the next width of the
first group. Without prefix caching a sequence has one state per layer (``none``). With it, states are kept at the end
of every block, by kernels that write them there (``all``), or of steps that end with a block (``align``):
``model_executor/models/config.py``, ``config/model.py``. Offloading: ``config/vllm.py``
(_post_init_kv_transfer_config), ``v1/kv_offload/base.py``, ``cpu/spec.py``, ``cpu/gpu_worker.py`` and
``cpu/swap_blocks_triton.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from math import ceil, lcm
from typing import Any

from infercast.engines.memory import KvLayout, host_link
from infercast.engines.speculation import MTP
from infercast.engines.vllm.versions import EngineVersion, Rule
from infercast.errors import InputError, UnknownNameError, require
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple, replace
from infercast.models.layout import ParallelLayout
from infercast.models.mixers.mixer import Cache, GroupedAttention
from infercast.models.read import read_object
from infercast.models.spec import ModelConfig, Stack, stage_range
from infercast.ops.op import bytes_of
from infercast.serve.cache.blocks import STATE_WINDOW, KvShape, StateRules
from infercast.serve.cache.tiers import Offload
from infercast.units import GIB

Member = tuple[int, "Kind"]  # A cache of one layer, with the layer's index in the model
ALIGNMENT = 576  # Blocks are padded to a multiple of this many bytes: what FlashMLA reads at once
Group = list[tuple[int, int]]  # A layer's index in the model, and its bytes per block
WINDOWED = "sliding_window"  # All layers with windows, where layers are named
SMALLEST_BLOCK = 16  # Tokens per block of sliding window layers, whatever was requested: the least of attention kernels
NONE, ALIGN, ALL = "none", "align", "all"
MODES = (NONE, ALIGN, ALL)
WRITE_EVERY_BLOCK = (
    "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "Zamba2ForCausalLM",
)  # fmt: skip
"""Architectures whose kernels write a state at the end of every block."""
BACKENDS = ("native", "lmcache")
CONNECTOR = "OffloadingConnector"
MOST_GIB = 1_000_000
READ = ("cpu_bytes_to_use", "block_size", "offload_prompt_only", "store_threshold", "eviction_policy")
SUBMIT = 0.4e-3  # Seconds of the submitting thread per copy, for a list of all its pieces (an estimate) ...
SUBMIT_PIECE = 1.0e-6  # ... and per piece, in one driver call (measured on an H200's host).


class Kind(NamedTuple):
    """Layer caches with the same kind of blocks."""

    cache: Cache
    block_size: int
    padded_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """One block of one layer: its tokens, or the state of one sequence."""
        return self.padded_bytes or round(self.cache.bytes_per_token * self.block_size + self.cache.bytes_per_sequence)

    @property
    def span(self) -> tuple[int, bool, bool]:
        return self.cache.window, self.cache.chunked, self.cache.bytes_per_token > 0


class StateBlocks(NamedTuple):
    mode: str = NONE
    multiple: int = 0  # Block sizes are multiples of this when each block end stores a state; 0: the layer's own chunk
    drafts: int = 0  # States per sequence beyond the current one: after each draft that may be rejected
    rules: StateRules = StateRules()
    exported: bool = False  # All kernels store a state before the end of a step, if the release has such kernels
    knows_drafts: bool = False  # The drafter's layers are known to be the last


ONE_STATE = StateBlocks()  # One per sequence, never reused


class States(NamedTuple):
    kept: bool = False  # Some layers keep a state per sequence
    beside_tokens: bool = True  # Others keep per-token KV
    every_block: bool = False  # Kernels can write a state at the end of every block

    @classmethod
    def of(cls, model: ModelConfig) -> States:
        shard = model.shard(ParallelLayout())
        caches = [cache for stack in model.stacks for cache in stack.mixer.caches(shard)]
        return cls(
            any(cache.bytes_per_sequence for cache in caches),
            any(cache.bytes_per_token for cache in caches),
            model.architecture in WRITE_EVERY_BLOCK,
        )

    def caches_prefixes(self, asked: bool | None, version: EngineVersion) -> bool:
        if asked is not None:
            return asked
        return not self.kept or (self.beside_tokens and version.has(Rule.CACHES_STATES))

    def mode(self, asked: str, caching: bool, version: EngineVersion) -> str:
        """How states are cached; ``none`` also means that the user did not choose."""
        if asked not in MODES:
            raise UnknownNameError("mamba_cache_mode", asked, MODES)
        if not (self.kept and caching):
            return NONE
        can_write = self.every_block and version.has(Rule.WRITES_EVERY_STATE)
        return ALL if can_write and asked != ALIGN else ALIGN


def runs_v2(model: ModelConfig, version: EngineVersion) -> bool:
    return version.runs_v2(model.architecture, has_experts=model.has_experts, has_states=States.of(model).kept)


def check_aligned(block_size: int, max_num_batched_tokens: int, threshold: int, *, chunked_prefill: bool) -> None:
    """Reject settings incompatible with states at block ends: a step must be able to end with a block."""
    why = "prefix caching of recurrent layers"
    if not chunked_prefill:
        raise InputError(f"{why} needs chunked prefill; enable it or disable prefix caching")
    bounds = {"max_num_batched_tokens": max_num_batched_tokens, "long_prefill_token_threshold": threshold}
    for name, tokens in bounds.items():
        if 0 < tokens < block_size:
            raise InputError(
                f"{name} {tokens} is below the {block_size} tokens of a block, which {why} computes in one step; "
                "raise it or disable prefix caching"
            )


class TierSettings(NamedTuple):
    num_bytes: float
    block_size: int | None = None
    prompts_only: bool = True
    store_threshold: int = 0


def tier_settings(size: float | None, backend: str, transfer: str | None) -> TierSettings | None:
    """From ``kv_offloading_size`` in GiB, its backend and ``kv_transfer_config``; None: there is no tier."""
    require(backend in BACKENDS, "kv_offloading_backend", f"be {' or '.join(BACKENDS)}", repr(backend))
    if size is not None and not 0 < size <= MOST_GIB:
        raise InputError(f"kv_offloading_size must be above 0 and at most {MOST_GIB:,} GiB, not {size:g}")
    extra = _extra_config(transfer, has_size=size is not None)
    if size is None and extra is None:
        return None
    if size is not None and backend != BACKENDS[0]:
        raise InputError(f"kv_offloading_backend {backend} is not modelled; {BACKENDS[0]} is")
    extra = extra or {}
    num_bytes = extra.get("cpu_bytes_to_use") if size is None else size * GIB
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int | float) or not 0 < num_bytes <= MOST_GIB * GIB:
        raise InputError(
            f"kv_transfer_config: cpu_bytes_to_use must be above 0 and at most {MOST_GIB:,} GiB, not {num_bytes!r}"
        )
    if (policy := extra.get("eviction_policy", "lru")) != "lru":
        raise InputError(f"kv_transfer_config: eviction_policy {policy!r} is not modelled; lru is")
    block_size, threshold = extra.get("block_size"), extra.get("store_threshold", 0)
    for name, value in (("block_size", block_size), ("store_threshold", threshold)):
        if value is not None and (type(value) is not int or value < 0):
            raise InputError(f"kv_transfer_config: {name} must be a whole number, not {value!r}")
    return TierSettings(float(num_bytes), block_size, bool(extra.get("offload_prompt_only", True)), threshold)


def _extra_config(text: str | None, *, has_size: bool) -> Mapping[str, Any] | None:
    """The extra config of the offloading connector, if that is the one requested."""
    if text is None:
        return None
    values = read_object(text, "kv_transfer_config")
    connector = values.get("kv_connector", CONNECTOR if has_size else None)
    if connector != CONNECTOR:
        raise InputError(
            f"kv_transfer_config: the connector {connector!r} is not modelled; {CONNECTOR} is, and `infercast "
            "disaggregate` forecasts prefill and decode pools"
        )
    extra = values.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        raise InputError(f"kv_transfer_config: kv_connector_extra_config must be an object, not {extra!r}")
    if strange := [name for name in extra if name not in READ]:
        raise InputError(f"kv_transfer_config: {strange[0]} is not modelled; read are {', '.join(READ)}")
    return extra


def offload_of(
    asked: TierSettings, kv: KvLayout, layers: int, layout: ParallelLayout, gpu: Gpu, whole: bool, latent: bool,
    version: EngineVersion, method: str | None = None,
) -> Offload:  # fmt: skip
    """The tier; ``whole``: a block is contiguous over all layers; ``latent``: all GPUs of a stage hold the same."""
    shape, block_bytes = kv.shape.of_one_size, kv.block_bytes
    if shape.states or shape.state_blocks:
        raise InputError("kv_offloading_size is not modelled for models with recurrent layers; leave it out")
    size = asked.block_size or shape.block_size
    if size % shape.block_size:
        raise InputError(
            f"kv_transfer_config: block_size {size} is no multiple of the {shape.block_size} tokens of a block"
        )
    factor, gpus = size // shape.block_size, layout.tensor * layout.pipeline
    copies = 1 if latent and version.has(Rule.SHARES_LATENT) and layout.pipeline == 1 else gpus
    taken = -(-block_bytes * copies * factor // version.host_page) * version.host_page
    num_blocks = int(asked.num_bytes) // taken
    if num_blocks < 1:
        raise InputError(f"kv_offloading_size of {asked.num_bytes / GIB:.3g} GiB holds no block of {size} tokens")
    pieces = 1 if whole else -(-layers // (len(shape.windows) * layout.pipeline))
    is_small = block_bytes // pieces < 28 * 1024  # loaded by a kernel that takes their list as it is
    submit_small_piece = 0.1e-6
    empty_step = 1.2e-3  # A turn of the engine's loop without a step: it sleeps a millisecond
    return Offload(
        num_blocks=num_blocks, block_bytes=block_bytes, block_pieces=pieces,
        load=host_link(gpu, gpus, SUBMIT, submit_small_piece if is_small else SUBMIT_PIECE),
        store=host_link(gpu, gpus, SUBMIT, SUBMIT_PIECE), factor=factor, prompts_only=asked.prompts_only,
        store_threshold=asked.store_threshold, empty_step_seconds=empty_step, **tier_rules(version, method),
    )  # fmt: skip


def tier_rules(version: EngineVersion, method: str | None = None) -> dict[str, bool]:
    """Rules of a release for a tier, with drafts by a method."""
    same = ("holders_first", "spares_under_way", "stores_ends", "offers_again", "reserves_drafts")
    rules = {name: version.has(Rule(name)) for name in same}
    rules |= {"by_request": version.has(Rule.RECENCY_BY_REQUEST), "by_position": version.has(Rule.RECENCY_BY_POSITION)}
    return rules | {"keeps_last": version.has(Rule.TIER_KEEPS_LAST) and method != MTP}


def packed_layout(members: Iterable[Member], held: Collection[int]) -> KvLayout:
    """Groups, and the bytes of one block of all of them for the layers that are ``held``."""
    kinds: dict[tuple[int, int], Group] = {}
    for position, kind in members:
        key = (kind.cache.window, kind.block_size)
        kinds.setdefault(key, []).append((position, -(-kind.page_bytes // ALIGNMENT) * ALIGNMENT))
    whole = [(key, group) for key, group in kinds.items() if not key[0]]
    windows = [(key, group) for key, group in kinds.items() if key[0]]
    widths = sorted({size for _, group in whole for _, size in group}) or [
        max(size for _, group in windows for _, size in group)
    ]
    largest = max(size for group in kinds.values() for _, size in group)
    if largest > widths[-1]:
        raise InputError(
            f"block_size {whole[0][0][1]} makes blocks of compressed entries smaller than those of a window, which an "
            "engine refuses; use 256, or leave it out"
        )
    padded = [
        (key, [(position, next(width for width in widths if width >= size)) for position, size in group])
        for key, group in windows
    ]
    counts = [_layers(group) for _, group in (*whole, *padded)]
    # Layers per group: as leaves the fewest empty slots in the last group of each kind.
    candidates = range(counts[0], max(counts) + 1)
    size = min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))
    groups: list[tuple[tuple[int, int], Group]] = [*whole]
    for key, group in padded:
        groups += [(key, part) for part in _parts(group, size)]
    sizes = tuple(key[1] for key, _ in groups)
    shape = KvShape(min(sizes), tuple(key[0] for key, _ in groups), block_sizes=sizes if len({*sizes}) > 1 else ())
    return KvLayout(shape, _block_bytes([group for _, group in groups], held))


def _layers(group: Group) -> int:
    return max(Counter(size for _, size in group).values())


def _parts(group: Group, size: int) -> list[Group]:
    """Split into groups with at most ``size`` layers of each width, interleaved over the model."""
    number = -(-_layers(group) // size)
    by_width: dict[int, Group] = {}
    for member in group:
        by_width.setdefault(member[1], []).append(member)
    return [[member for row in by_width.values() for member in row[start::number]] for start in range(number)]


def _block_bytes(groups: list[Group], held: Collection[int]) -> int:
    """Every group has a slot for each of its layers; slots of one width serve all groups."""
    places: Counter[int] = Counter()
    for group in groups:
        places |= Counter(size for position, size in group if position in held)
    return sum(size * count for size, count in places.items())


def unquantised_in(model: ModelConfig, layers: Iterable[str]) -> ModelConfig:
    """The model with the base format for keys and values of these layers (``kv_cache_dtype_skip_layers``)."""
    named = {*layers}
    if strange := sorted(named - {WINDOWED, *map(str, range(model.layers))}):
        raise InputError(
            f"kv_cache_dtype_skip_layers: {strange[0]!r} names no layer of {model.name}; say {WINDOWED}, or numbers of "
            f"layers from 0 to {model.layers - 1}"
        )
    if not named or model.cache_dtype == model.weights.base:
        return model
    has_windows = any(getattr(stack.mixer, "window", False) for stack in model.stacks)
    counts: Counter[Stack] = Counter()
    order = []
    for position, number in enumerate(model.layer_stacks):
        stack, mixer = model.stacks[number], model.stacks[number].mixer
        if str(position) in named or (WINDOWED in named and getattr(mixer, "window", False)):
            if not isinstance(mixer, GroupedAttention):
                raise InputError(
                    f"kv_cache_dtype_skip_layers is modelled for grouped attention, not for layer {position} of "
                    f"{model.name} ({mixer.description}); leave it out"
                )
            if has_windows and not mixer.window:
                raise InputError(
                    f"vLLM does not start if kv_cache_dtype_skip_layers names layer {position} of {model.name}, which "
                    "has no window: its blocks are larger than those of layers with windows; name these alone"
                )
            stack = replace(stack, mixer=replace(mixer, unquantised_cache=True))
        counts[stack] += 1
        order.append(stack)
    numbers = {stack: number for number, stack in enumerate(counts)}
    stacks = tuple(replace(stack, layers=count) for stack, count in counts.items())
    return replace(model, stacks=stacks, order=tuple(numbers[stack] for stack in order))


def shared_block_size(model: ModelConfig, block_size: int) -> int:
    """The least multiple of a size with a quantised block that covers the smallest unquantised one."""
    wide = SMALLEST_BLOCK * bytes_of(model.weights.base) / bytes_of(model.cache_dtype)
    return block_size * ceil(wide / block_size)


@lru_cache(maxsize=1024)  # plans try many settings that it does not depend on
def kv_layout(
    config: ModelConfig, layout: ParallelLayout, block_size: int, stage: int | None = None,
    states: StateBlocks = ONE_STATE, num_drafting: int = 0,
) -> KvLayout:  # fmt: skip
    """Blocks and groups of a model's KV cache; with ``stage``, a block's bytes in that pipeline stage. The last
    ``num_drafting`` layers are the drafter's, held by the last stage. Layers that keep the same tokens in the same
    width form a kind. Blocks of narrower kinds hold more tokens until all are equally large; then each kind is split
    into groups of as many layers as the smallest kind has (or the largest, if they are nearly equal).
    """
    members = _members(config, layout, block_size, states)
    if not members:  # encoders: blocks that hold tokens and take no memory
        return KvLayout(KvShape(block_size, (0,)), 0)
    held: Collection[int] = range(config.layers)
    if stage is not None:
        count = config.layers - num_drafting
        behind = range(count, config.layers) if stage == layout.pipeline - 1 else ()
        held = {*stage_range(count, layout, stage), *behind}
    if any(kind.cache.block for _, kind in members):
        packed = packed_layout(members, held)
        return packed._replace(shape=packed.shape._replace(rules=states.rules))
    if len({kind.span for _, kind in members}) == 1:
        # All layers keep the same tokens: one group, in which every layer has blocks of its own width.
        block_bytes = sum(kind.page_bytes for position, kind in members if position in held)
        return KvLayout(_shape([members[0][1]], block_size, states), block_bytes)
    page_bytes = max(kind.page_bytes for _, kind in members)
    groups = _groups([(position, _equal_pages(kind, page_bytes)) for position, kind in members])
    most = max(sum(position in held for position in positions) for _, positions in groups)
    shape = _shape([kind for kind, _ in groups], block_size, states)
    if states.knows_drafts and num_drafting:
        shown = [positions for kind, positions in groups if kind.cache.bytes_per_token or states.mode != NONE]
        last = next(number for number, positions in enumerate(shown) if config.layers - 1 in positions)
        shape = shape._replace(drafting=last)
    return KvLayout(shape, most * page_bytes)


def hybrid_block_size(
    config: ModelConfig, layout: ParallelLayout, block_size: int, states: StateBlocks = ONE_STATE
) -> int:
    """Tokens per block: the least multiple of the requested size that holds a state (``_align_hybrid_block_size``)."""
    shard = config.shard(layout)
    caches = [cache for stack in config.stacks for cache in stack.mixer.caches(shard)]
    state = max((cache.bytes_per_sequence for cache in caches), default=0.0)
    token = max((cache.bytes_per_token for cache in caches), default=0.0)
    if not state or not token:
        return block_size
    if states.mode == ALL:
        unchunked = 2048  # Where no chunks are scanned
        block_size = lcm(block_size, states.multiple or max(cache.chunk for cache in caches) or unchunked)
    return block_size * ceil(state / (block_size * token))


def _members(config: ModelConfig, layout: ParallelLayout, block_size: int, states: StateBlocks) -> list[Member]:
    shard = config.shard(layout)
    common = hybrid_block_size(config, layout, block_size, states)

    def kind(cache: Cache) -> Kind:
        narrow = cache.window > 0 and not cache.chunked
        return Kind(cache, cache.block or (SMALLEST_BLOCK if narrow else common))

    kinds = [[kind(cache) for cache in stack.mixer.caches(shard)] for stack in config.stacks]
    return [(position, kind) for position, number in enumerate(config.layer_stacks) for kind in kinds[number]]


def _shape(kinds: list[Kind], block_size: int, kept: StateBlocks) -> KvShape:
    mode, num_states = kept.mode, sum(not kind.cache.bytes_per_token for kind in kinds)
    shown = [kind for kind in kinds if kind.cache.bytes_per_token or mode != NONE]
    sizes = tuple(kind.block_size for kind in shown)
    states = tuple(number for number, kind in enumerate(shown) if not kind.cache.bytes_per_token)
    shape = KvShape(
        min(sizes, default=block_size),
        tuple(STATE_WINDOW if number in states else kind.cache.window for number, kind in enumerate(shown)),
        block_sizes=sizes, chunked=any(kind.cache.chunked for kind in shown),
        state_blocks=len(kinds) - len(shown) + kept.drafts * num_states, states=states,
        aligned=mode == ALIGN and bool(states),
        rules=kept.rules._replace(
            exports=kept.rules.exports and (kept.exported or all(shown[number].cache.exported for number in states))
        ),
    )  # fmt: skip
    return shape.even


def _groups(members: Collection[Member]) -> list[tuple[Kind, list[int]]]:
    """Each kind in groups of equal size, interleaved over the model, so that stages have equal parts."""
    alike: dict[Kind, list[int]] = {}
    for position, kind in members:
        alike.setdefault(kind, []).append(position)
    counts = [len(positions) for positions in alike.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for kind, positions in alike.items():
        number = -(-len(positions) // size)
        groups += [(kind, positions[start::number]) for start in range(number)]
    return groups


def _equal_pages(kind: Kind, page_bytes: int) -> Kind:
    """The kind with as many tokens per block as make it ``page_bytes`` large, or padded."""
    if page_bytes % kind.page_bytes or kind.cache.bytes_per_sequence:
        return kind._replace(padded_bytes=page_bytes)
    return kind._replace(block_size=kind.block_size * (page_bytes // kind.page_bytes))
