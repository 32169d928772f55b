"""What differs between releases of vLLM, by ``releases.toml``; docs/engine.md lists cost changes not known here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from infercast.bundled import read_data
from infercast.engines.base import Version
from infercast.engines.settings import Asked, filled, nearest_version, numbers, version_of
from infercast.errors import UnknownNameError
from infercast.lazy_classes import NamedTuple
from infercast.models.spec import ModelConfig

_DATA = read_data("engines/vllm/releases.toml")
MEASURED = f"vllm@{_DATA['measured']}"  # The release with measured costs
MEASURED_AGAIN = f"vllm@{_DATA['measured_again']}"  # The one with host times of its own, since some release
NEWEST = f"vllm@{_DATA['releases'][-1]}"  # The newest release with known rules, which is the default
USUAL: dict[str, Any] = {"gpu_memory_utilization": 0.92, "enable_chunked_prefill": True, "async_scheduling": True}
USUAL |= {"cudagraph_mode": "full_and_piecewise", "prompts_first": False}  # Since some release, by default
ALWAYS = ("settings", "step_tokens", "options", "small_tiles", "sequence_ms")
_FACTS: dict[str, list[dict[str, Any]]] = read_data("engines/vllm/older.toml")


class EngineVersion(NamedTuple):
    """The rules of one release. Defaults are those of the oldest one; later changes are facts in the file."""

    threshold_exempts_single_request: bool = False  # ``long_prefill_token_threshold`` is not for a request alone
    settles: bool = False  # Sliding windows advance by completed, not scheduled tokens, with room for those in flight
    sparse_windows: bool = False
    """Sliding window layers cache blocks only before a prompt's end and where two prompts were seen to diverge."""
    captures_max_num_seqs: bool = False  # A graph is captured for exactly ``max_num_seqs`` tokens, whatever the grid
    large_graphs: bool = False  # Graphs go up to 1,024 tokens on datacentre Blackwell, not 512
    largest_step: int = 8192  # Default tokens per step of a server on GPUs with 160 GiB and more
    caches_states: bool = False  # Prefix caching is on by default for models with recurrent states too
    writes_every_state: bool = True  # Some models' kernels write a state at every block's end (mode ``all``)
    needs_whole_blocks: bool = True  # In ``align`` mode, a step must have room for a whole block
    exports_states: bool = False
    """In ``align`` mode, kernels of some layers store the last useful state before the end of a prompt's last step."""
    renews_states: bool = False  # In ``align`` mode, a prompt's last useful state is new in every step that uses it
    knows_drafts: bool = False  # Layer groups that MTP drafts with are known; others drop no block of a prefix hit
    past_attention: bool = True  # In ``align`` mode with drafts, a state is looked up one block past attention's hit
    parts_last: bool = False  # In ``align`` mode, the last token of a prompt that ends with a block has its own step
    reads_ahead: bool = False  # Prediction heads read that many prompt tokens ahead, which prefill steps leave for them
    weighs_cache: bool = False
    """Load balancing: requests in flight are a lower bound, waiting ones weigh by KV usage, dense engines count too."""
    slots_by_step: bool = False  # Budget taken by a draft model is per sequence in the step, not per ``max_num_seqs``
    pads_first: bool = False  # A request that starts with one token gets padding drafts even as the first of a step
    latent_unit: int = 16  # Block sizes of latent attention in models with recurrent states are multiples of this
    holders_first: bool = False  # Waiting requests that hold KV blocks loaded from host memory go before all others
    spares_under_way: bool = False
    """With host offloading, a request with a step in flight is not preempted: its blocks would not be free at once."""
    stores_ends: bool = False  # What a finished request has not yet stored in host memory is stored with the next step
    recency_by_request: bool = False
    """KV blocks on the host count as used, and offers to store them count, at a request's end, not at every lookup."""
    recency_by_position: bool = False  # ... and at a request's first use while it runs, its last blocks less recently
    reserves_drafts: bool = False  # A request's blocks are loaded only if those of a step with drafts are free as well
    tier_keeps_last: bool = False  # EAGLE's layers are not known as such, so that no block is left out of host memory
    host_page: int = 1  # Blocks in host memory are padded to a multiple of this many bytes
    shares_latent: bool = False  # In host memory, blocks of latent attention, equal on all GPUs, are kept once
    v2_for_all: bool = False  # Every model uses the V2 runner, whose pipelines schedule before results are known ...
    v2_experts: tuple[str, ...] = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
    """... before, only models without experts and states, and these architectures with experts."""
    reserves_graphs: bool = False  # The V2 model runner also reserves CUDA graph memory before it counts KV blocks
    flashinfer_all_reduce: bool = False  # FlashInfer's all-reduce runs for sizes in its table
    steps_over: bool = True  # With priorities: a preempted request without work makes the next one skip its turn
    skipped_queue_separate: bool = True  # Requests that wait for an adapter slot queue apart, ahead of preempted ones
    prefers_humming: bool = False  # Humming's kernels take precedence over Marlin's on Hopper
    hashes_ahead: bool = False  # Block keys cover what EAGLE and MTP read after a block; no block of a hit is dropped
    names_results: bool = False  # With drafts, blocks are cached with a step's result even without steps planned ahead
    offers_again: bool = False  # A request that starts again offers all its blocks to host memory again
    goes_on: bool = False  # With priorities: others are scheduled after a request preempted for its own blocks
    counts_running: bool = False  # Adapters of all running requests take slots, not only of those in the step
    skips_unreadable: bool = False  # A request whose chunk would be too small for prediction heads is overtaken
    ngram_async: bool = False  # Steps are planned ahead with n-gram lookup, too
    deltas_unit: int = 0
    """Block sizes of gated delta nets whose prompts FlashInfer scans are multiples of this, and it exports states."""
    large_steps_gb10: bool = True  # GB10 has the default step of GPUs with as much memory
    own_interval: bool = False  # ``prefill_schedule_interval`` is for engines outside of lockstep, too

    def runs_v2(self, architecture: str, *, has_experts: bool, has_states: bool = False) -> bool:
        return self.v2_for_all or (not has_states and (not has_experts or architecture in self.v2_experts))


_CHANGES: list[tuple[Version, str, Any]] = sorted(
    [
        (numbers(each["since"]), each["rule"], tuple(value) if type(value := each["value"]) is list else value)
        for each in _DATA["facts"]
    ],
    key=lambda each: each[0],
)


def rules_of(version: str) -> EngineVersion:
    until = numbers(version)
    return EngineVersion(**{rule: value for since, rule, value in _CHANGES if since <= until})


ENGINES = {f"vllm@{version}": rules_of(version) for version in _DATA["releases"]}


@cache
def engine_version(engine: str) -> EngineVersion:
    """An engine's rules by name and version; those of the nearest release if unknown."""
    nearest = nearest_version(engine, ENGINES)
    if nearest is None:
        raise UnknownNameError("engine", engine, ENGINES)
    return ENGINES[nearest]


def before(version: Version, _: ModelConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """A release's default settings and options of `deploy`; none for an unknown version."""
    return _known("settings", version), _known("options", version)


def known_before(version: Version) -> list[str]:
    """Defaults and costs, without those of requests that ask for something."""
    held = ((kind, fact) for kind in ALWAYS for fact in _FACTS[kind] if _holds(fact, version))
    said = ((fact.get("name", kind), fact["value"]) for kind, fact in held)
    return [f"{name} {value}" if type(value) is not bool else name if value else f"no {name}" for name, value in said]


def fact_before(kind: str, version: Version, otherwise: Any = 0) -> Any:
    return next((fact["value"] for fact in _FACTS[kind] if _holds(fact, version)), otherwise)


def with_defaults(settings: Asked) -> Asked:
    """The same with those defaults of its release that depend on nothing else."""
    return filled(settings, {**USUAL, **_known("settings", version_of(settings.engine))})


def _known(kind: str, version: Version) -> dict[str, Any]:
    return {fact["name"]: fact["value"] for fact in _FACTS[kind] if _holds(fact, version)}


def _holds(fact: Mapping[str, Any], version: Version) -> bool:
    whole = (*version, 0, 0)[: max(3, len(version))]  # 0.11 is 0.11.0
    return bool(version) and numbers(fact.get("since", "0")) <= whole and version < numbers(fact["until"])
