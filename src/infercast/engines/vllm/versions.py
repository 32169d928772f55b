"""What differs between releases of vLLM; ``releases.toml`` lists each change with its release.

All of it is read from the sources of the released packages; costs were measured on vLLM 0.25. What a version changes in
costs and is not known here (host costs of the V2 runner with experts, new kernels) is in docs/engine.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.engines.base import Version
from infercast.engines.settings import nearest_version, numbers
from infercast.errors import UnknownNameError
from infercast.models.spec import ModelConfig
from infercast.units import MILLI


class EngineVersion(NamedTuple):
    """The rules of one release. Defaults are those of the oldest one; whatever changed later is a fact of the file."""

    threshold_exempts_single_request: bool = False
    """``long_prefill_token_threshold`` does not hold for a request that is alone."""
    settles: bool = False
    """Windows move on by processed tokens, not by planned ones, and a request needs room for what is under way."""
    sparse_windows: bool = False
    """Layers with windows keep blocks findable only before a prompt's end and where two prompts were seen to part."""
    captures_max_num_seqs: bool = False
    """A graph is recorded for exactly ``max_num_seqs`` tokens, whatever the grid of sizes."""
    large_graphs: bool = False
    """Graphs go up to 1,024 tokens on datacentre Blackwell, not 512."""
    largest_step: int = 8192
    """Default tokens a step of a server on GPUs of 160 GiB and more."""
    caches_states: bool = False
    """Prefixes are cached by default where layers keep states, too."""
    writes_every_state: bool = True
    """Some models' kernels write a state at the end of every block (``mamba_cache_mode`` of ``all``)."""
    needs_whole_blocks: bool = True
    """Where states are kept at the end of steps that end with a block, a step has to have room for one."""
    exports_states: bool = False
    """There, kernels of some layers leave the last state of use before the end of a prompt's last step."""
    renews_states: bool = False
    """There, the last state of use of a prompt counts as new in every step that its request computes with it."""
    knows_drafts: bool = False
    """Groups of layers that MTP drafts with are told from others, which drop no block of a prefix that is found."""
    past_attention: bool = True
    """There, with drafts, a state is looked for a block past what attention found, and gone on from."""
    parts_last: bool = False
    """There, the last token of a prompt that ends with a block is in a step after it."""
    reads_ahead: bool = False
    """Several prediction heads read as many tokens of a prompt ahead, for which steps of prompts leave enough."""
    weighs_cache: bool = False
    """Before data-parallel engines: requests in flight are counted at the least, waiting ones by how full the KV cache
    is; and engines of dense models tell their counts, too."""
    slots_by_step: bool = False
    """Tokens that a draft model takes off the budget are those of a step's sequences, not of ``max_num_seqs``."""
    pads_first: bool = False
    """A request that starts with one token gets dummy drafts where it is the first of a step, too."""
    latent_unit: int = 16
    """Tokens whose multiple a block of latent attention has beside states."""
    holders_first: bool = False
    """Requests that hold KV blocks while they wait, since these came from the host's memory, go before all others."""
    spares_under_way: bool = False
    """With KV in the host's memory, nobody gives way whose step is under way: its blocks would not be free at once."""
    stores_ends: bool = False
    """What an ended request has not stored in the host's memory yet is stored with the step after its end."""
    recency_by_request: bool = False
    """KV blocks in the host's memory count as used when a request with them ends, and ``store_threshold`` counts how
    often a block was offered to be stored; before that, every lookup did both."""
    host_page: int = 1
    """Bytes whose multiple a block in the host's memory takes there."""
    shares_latent: bool = False
    """There, blocks of latent attention, which all GPUs of an engine hold alike, are kept once."""
    v2_for_all: bool = False
    """Every model runs the V2 model runner, whose pipelines plan before results are known ..."""
    v2_experts: tuple[str, ...] = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
    """... before that models without experts and states, and these architectures with experts."""
    reserves_graphs: bool = False
    """The V2 model runner, too, sets the memory of CUDA graphs aside before it counts KV blocks."""
    limits_active: bool = False
    """There is ``max_num_active_seqs``: fewer sequences run than graphs and buffers are made for."""
    limits_queues: bool = False
    """There are limits on requests and tokens that wait, beyond which the server answers 503."""
    flashinfer_all_reduce: bool = False
    """FlashInfer's all-reduce runs where a table has sizes for it."""
    steps_over: bool = True
    """By priority: one that gives way and had nothing to compute costs the one after it its turn."""
    skipped_queue_separate: bool = True
    """Requests that wait for an adapter's slot have a queue of their own, before those who gave way."""
    prefers_humming: bool = False
    """Humming's kernels stand before Marlin's on Hopper."""

    def runs_v2(self, architecture: str, *, has_experts: bool, has_states: bool = False) -> bool:
        return self.v2_for_all or (not has_states and (not has_experts or architecture in self.v2_experts))


_DATA = read_data("engines/vllm/releases.toml")
MEASURED = f"vllm@{_DATA['measured']}"
"""The release whose costs were measured."""
NEWEST = f"vllm@{_DATA['releases'][-1]}"
"""The newest one whose rules are known, which is the default."""


def rules_of(version: str) -> EngineVersion:
    rules: dict[str, Any] = {}
    for fact in sorted(_DATA["facts"], key=lambda each: numbers(each["since"])):
        if numbers(fact["since"]) <= numbers(version):
            value = fact["value"]
            rules[fact["rule"]] = tuple(value) if isinstance(value, list) else value
    return EngineVersion(**rules)


ENGINES = {f"vllm@{version}": rules_of(version) for version in _DATA["releases"]}


@cache
def engine_version(engine: str) -> EngineVersion:
    """The rules of an engine by its name and version; those of the nearest release where it is none of ours."""
    nearest = nearest_version(engine, ENGINES)
    if nearest is None:
        raise UnknownNameError("engine", engine, ENGINES)
    return ENGINES[nearest]


_FACTS: dict[str, list[dict[str, Any]]] = read_data("engines/vllm/older.toml")


def before(version: Version, _: ModelConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Settings and options of `deploy` that a release had by default; none of a version that is unknown."""
    return _known("settings", version), _known("options", version)


def chat_turn(version: Version) -> float:
    """Seconds that a server's one thread spent on a chat beyond what it does today."""
    return MILLI * float(_value("chat_turn_ms", version, 0.0))


def sorts_logits(version: Version) -> bool:
    """Whether top-p sorted all logits of every sequence."""
    return bool(_value("sorts_logits", version, False))


def _known(kind: str, version: Version) -> dict[str, Any]:
    return {fact["name"]: fact["value"] for fact in _FACTS[kind] if _holds(fact, version)}


def _value(kind: str, version: Version, otherwise: Any) -> Any:
    return next((fact["value"] for fact in _FACTS[kind] if _holds(fact, version)), otherwise)


def _holds(fact: Mapping[str, Any], version: Version) -> bool:
    return bool(version) and numbers(fact.get("since", "0")) <= version < numbers(fact["until"])
