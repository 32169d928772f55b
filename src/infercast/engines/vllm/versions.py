"""What differs between the releases of vLLM a forecast can be asked for; ``releases.toml`` has one table for each.

All of it is read from the sources of the released packages; costs were measured on vLLM 0.25. What a version changes in
costs and is not known here (host costs of the V2 runner with experts, graph memory, new kernels) is in docs/engine.md.
"""

from __future__ import annotations

from typing import NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError

V2_EXPERTS = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
"""Architectures with experts that vLLM 0.25 runs with its V2 model runner, like all without experts."""


class EngineVersion(NamedTuple):
    """One release and its rules."""

    spares_lone_prompts: bool
    """``long_prefill_token_threshold`` does not hold for a request that is alone."""
    settles: bool
    """Windows move on by processed tokens, not by planned ones, and a request needs room for what is under way."""
    sparse_windows: bool
    """Layers with windows keep blocks findable only before a prompt's end and where two prompts were seen to part."""
    captures_max_num_seqs: bool
    """A graph is recorded for exactly ``max_num_seqs`` tokens, whatever the grid of sizes."""
    large_graphs: bool
    """Graphs go up to 1,024 tokens on datacentre Blackwell, not 512."""
    largest_step: int
    """Default tokens a step of a server on GPUs of 160 GiB and more."""
    caches_states: bool
    """Prefixes are cached by default where layers keep states, too."""
    writes_every_state: bool
    """Some models' kernels write a state at the end of every block (``mamba_cache_mode`` of ``all``)."""
    needs_whole_blocks: bool
    """Where states are kept at the end of steps that end with a block, a step has to have room for one."""
    latent_unit: int
    """Tokens whose multiple a block of latent attention has beside states."""
    v2_for_all: bool
    """Every model runs the V2 model runner, whose pipelines plan before results are known."""

    def runs_v2(self, architecture: str, *, has_experts: bool, has_states: bool = False) -> bool:
        """Whether a model runs the V2 model runner."""
        return self.v2_for_all or (not has_states and (not has_experts or architecture in V2_EXPERTS))


MEASURED = "vllm@0.25"
"""The release whose costs were measured."""

ENGINES = {name: EngineVersion(**rules) for name, rules in read_data("engines/vllm/releases.toml").items()}


def engine_version(engine: str) -> EngineVersion:
    """The rules of an engine by its name and version."""
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    return ENGINES[engine]
