"""States of recurrent layers: how the engine caches them, and what of a model decides it.

Facts of vLLM 0.25 (``model_executor/models/config.py``, ``MambaModelConfig``; ``config/model.py``). Without prefix
caching a sequence has one state a layer (``none``). With it, states are kept where blocks of tokens end: at the end of
every block, by kernels that write them there (``all``), or at the end of steps that end with a block (``align``).
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.vllm.versions import EngineVersion
from infercast.errors import InputError, UnknownNameError
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.serve.cache.shape import StateRules

NONE, ALIGN, ALL = "none", "align", "all"
MODES = (NONE, ALIGN, ALL)
"""vLLM's ``mamba_cache_mode``."""

WRITE_EVERY_BLOCK = (
    "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "Zamba2ForCausalLM",
)  # fmt: skip
"""Architectures whose kernels write a state at the end of every block."""


class StateBlocks(NamedTuple):
    """How states of recurrent layers are cached, beside which blocks of tokens are as large as a state."""

    mode: str = NONE
    multiple: int = 0
    """Tokens whose multiples a block has where a state is written at the end of each; 0: the layer's own chunk."""
    drafts: int = 0
    """States of each sequence beside the one that it goes on from: after each draft that may be wrong."""
    rules: StateRules = StateRules()
    """Those of the release."""


ONE_STATE = StateBlocks()
"""One for each sequence, which nobody finds again."""


class States(NamedTuple):
    """What of a model's layers decides how states are cached."""

    kept: bool = False
    """Some layers keep a state of each sequence."""
    beside_tokens: bool = True
    """Others keep something of every token."""
    every_block: bool = False
    """Kernels can write a state at the end of every block."""

    @classmethod
    def of(cls, model: ModelConfig) -> States:
        """Those of a model."""
        shard = model.shard(ParallelLayout())
        caches = [cache for stack in model.stacks for cache in stack.mixer.caches(shard)]
        return cls(
            any(cache.bytes_per_sequence for cache in caches),
            any(cache.bytes_per_token for cache in caches),
            model.architecture in WRITE_EVERY_BLOCK,
        )

    def caches_prefixes(self, asked: bool | None, version: EngineVersion) -> bool:
        """Whether prefixes are cached, where nobody says."""
        if asked is not None:
            return asked
        return not self.kept or (self.beside_tokens and version.caches_states)

    def mode(self, asked: str, caching: bool, version: EngineVersion) -> str:
        """How states are cached; ``none`` is also what an engine takes for no answer."""
        if asked not in MODES:
            raise UnknownNameError("mamba_cache_mode", asked, MODES)
        if not (self.kept and caching):
            return NONE
        can_write = self.every_block and version.writes_every_state
        return ALL if can_write and asked != ALIGN else ALIGN


def runs_v2(model: ModelConfig, version: EngineVersion) -> bool:
    """Whether a release runs a model by the V2 model runner."""
    return version.runs_v2(model.architecture, has_experts=model.has_experts, has_states=States.of(model).kept)


def check_aligned(block_size: int, max_num_batched_tokens: int, threshold: int, *, chunked_prefill: bool) -> None:
    """Refuse what states at the end of blocks cannot be had with: a step has to be able to end with a block."""
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
