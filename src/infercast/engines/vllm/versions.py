"""What differs between releases of vLLM, by ``releases.toml``; docs/engine.md lists cost changes not known here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines.base import Version
from infercast.engines.settings import Asked, filled, nearest_version, numbers, version_of
from infercast.errors import UnknownNameError
from infercast.models.spec import ModelConfig

_DATA = read_data("engines/vllm/releases.toml")
MEASURED = f"vllm@{_DATA['measured']}"  # The release with measured costs
MEASURED_AGAIN = f"vllm@{_DATA['measured_again']}"  # The one with host times of its own, since some release
NEWEST = f"vllm@{_DATA['releases'][-1]}"  # The newest release with known rules, which is the default
USUAL: dict[str, Any] = {"gpu_memory_utilization": 0.92, "enable_chunked_prefill": True, "async_scheduling": True}
USUAL |= {"cudagraph_mode": "full_and_piecewise", "prompts_first": False}  # Since some release, by default
_FACTS: dict[str, list[dict[str, Any]]] = read_data("engines/vllm/older.toml")


class Rule(StrEnum):
    """What a release may do; ``releases.toml`` has since or until when, and where it was read."""

    THRESHOLD_EXEMPTS_SINGLE_REQUEST = auto()  # ``long_prefill_token_threshold`` is not for a request alone
    FREES_ON_COMPLETION = auto()
    """Sliding windows advance by completed, not scheduled tokens, with room for those in flight."""
    SPARSE_WINDOWS = auto()
    """Sliding window layers cache blocks only before a prompt's end and where two prompts were seen to diverge."""
    CAPTURES_MAX_NUM_SEQS = auto()  # A graph is captured for exactly ``max_num_seqs`` tokens, whatever the grid
    LARGE_GRAPHS = auto()  # Graphs go up to 1,024 tokens on datacentre Blackwell, not 512
    CACHES_STATES = auto()  # Prefix caching is on by default for models with recurrent states too
    WRITES_EVERY_STATE = auto()  # Some models' kernels write a state at every block's end (mode ``all``)
    NEEDS_WHOLE_BLOCKS = auto()  # In ``align`` mode, a step must have room for a whole block
    EXPORTS_STATES = auto()
    """In ``align`` mode, kernels of some layers store the last useful state before the end of a prompt's last step."""
    RENEWS_STATES = auto()  # In ``align`` mode, a prompt's last useful state is new in every step that uses it
    KNOWS_DRAFTS = auto()  # Layer groups that MTP drafts with are known; others drop no block of a prefix hit
    PAST_ATTENTION = auto()  # In ``align`` mode with drafts, a state is looked up one block past attention's hit
    PARTS_LAST = auto()  # In ``align`` mode, the last token of a prompt that ends with a block has its own step
    READS_AHEAD = auto()  # Prediction heads read that many prompt tokens ahead, which prefill steps leave for them
    WEIGHS_CACHE = auto()
    """Load balancing: requests in flight are a lower bound, waiting ones weigh by KV usage, dense engines count too."""
    SLOTS_BY_STEP = auto()  # Budget taken by a draft model is per sequence in the step, not per ``max_num_seqs``
    PADS_FIRST = auto()  # A request that starts with one token gets padding drafts even as the first of a step
    HOLDERS_FIRST = auto()  # Waiting requests that hold KV blocks loaded from host memory go before all others
    SPARES_UNDER_WAY = auto()
    """With host offloading, a request with a step in flight is not preempted: its blocks would not be free at once."""
    STORES_ENDS = auto()  # What a finished request has not yet stored in host memory is stored with the next step
    RECENCY_BY_REQUEST = auto()
    """KV blocks on the host count as used, and offers to store them count, at a request's end, not at every lookup."""
    RECENCY_BY_POSITION = auto()  # ... and at a request's first use while it runs, its last blocks less recently
    RESERVES_DRAFTS = auto()  # A request's blocks are loaded only if those of a step with drafts are free as well
    TIER_KEEPS_LAST = auto()  # EAGLE's layers are not known as such, so that no block is left out of host memory
    SHARES_LATENT = auto()  # In host memory, blocks of latent attention, equal on all GPUs, are kept once
    V2_FOR_ALL = auto()  # Every model uses the V2 runner, whose pipelines schedule before results are known ...
    RESERVES_GRAPHS = auto()  # The V2 model runner also reserves CUDA graph memory before it counts KV blocks
    FLASHINFER_ALL_REDUCE = auto()  # FlashInfer's all-reduce runs for sizes in its table
    STEPS_OVER = auto()  # With priorities: a preempted request without work makes the next one skip its turn
    SKIPPED_QUEUE_SEPARATE = auto()  # Requests that wait for an adapter slot queue apart, ahead of preempted ones
    PREFERS_HUMMING = auto()  # Humming's kernels take precedence over Marlin's on Hopper
    HASHES_AHEAD = auto()  # Block keys cover what EAGLE and MTP read after a block; no block of a hit is dropped
    NAMES_RESULTS = auto()  # With drafts, blocks are cached with a step's result even without steps planned ahead
    OFFERS_AGAIN = auto()  # A request that starts again offers all its blocks to host memory again
    GOES_ON = auto()  # With priorities: others are scheduled after a request preempted for its own blocks
    COUNTS_RUNNING = auto()  # Adapters of all running requests take slots, not only of those in the step
    SKIPS_UNREADABLE = (
        auto()
    )  # A request with an image that waits, or too small a chunk for prediction heads, is overtaken
    NGRAM_ASYNC = auto()  # Steps are planned ahead with n-gram lookup, too
    LARGE_STEPS_GB10 = auto()  # GB10 has the default step of GPUs with as much memory
    OWN_INTERVAL = auto()  # ``prefill_schedule_interval`` is for engines outside of lockstep, too
    UNIT_DUMMY_NORMS = auto()  # Dummy weights of norms are one: untrained routers tell tokens apart


OLDEST = frozenset(
    {
        Rule.WRITES_EVERY_STATE, Rule.NEEDS_WHOLE_BLOCKS, Rule.PAST_ATTENTION, Rule.STEPS_OVER,
        Rule.SKIPPED_QUEUE_SEPARATE, Rule.LARGE_STEPS_GB10,
    }
)  # fmt: skip
"""The rules of the oldest release; a later one adds some and drops some."""


class EngineVersion(NamedTuple):
    """One release: the rules that it has, and its numbers."""

    rules: frozenset[Rule] = OLDEST
    largest_step: int = 8192  # Default tokens per step of a server on GPUs with 160 GiB and more
    latent_unit: int = 16  # Block sizes of latent attention in models with recurrent states are multiples of this
    host_page: int = 1  # Blocks in host memory are padded to a multiple of this many bytes
    v2_experts: tuple[str, ...] = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
    """... before, only models without experts and states, and these architectures with experts."""
    deltas_unit: int = 0
    """Block sizes of gated delta nets whose prompts FlashInfer scans are multiples of this, and it exports states."""

    def has(self, rule: Rule) -> bool:
        return rule in self.rules

    def runs_v2(self, architecture: str, *, has_experts: bool, has_states: bool = False) -> bool:
        return self.has(Rule.V2_FOR_ALL) or (not has_states and (not has_experts or architecture in self.v2_experts))


_CHANGES: list[tuple[Version, str, Any]] = sorted(
    [
        (numbers(each["since"]), each["rule"], tuple(value) if type(value := each["value"]) is list else value)
        for each in _DATA["facts"]
    ],
    key=lambda each: each[0],
)


def rules_of(version: str) -> EngineVersion:
    until, rules, others = numbers(version), {*OLDEST}, dict[str, Any]()
    for since, name, value in _CHANGES:
        if since > until:
            continue
        if type(value) is bool:
            (rules.add if value else rules.discard)(Rule(name))
        else:
            others[name] = value
    return EngineVersion(frozenset(rules), **others)


ENGINES = {f"vllm@{version}": rules_of(version) for version in _DATA["releases"]}


@cache
def engine_version(engine: str) -> EngineVersion:
    nearest = nearest_version(engine, ENGINES)
    if nearest is None:
        raise UnknownNameError("engine", engine, ENGINES)
    return ENGINES[nearest]


def before(version: Version, _: ModelConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """A release's default settings and options of `deploy`; none for an unknown version."""
    return _known("settings", version), _known("options", version)


def known_before(version: Version) -> list[str]:
    """Defaults and costs, without those of requests that ask for something."""
    always = ("settings", "step_tokens", "options", "small_tiles", "sequence_ms")
    held = ((kind, fact) for kind in always for fact in _FACTS[kind] if _holds(fact, version))
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
