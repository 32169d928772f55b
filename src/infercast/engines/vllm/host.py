"""What the CPU beside the GPU costs a step of vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.engines.engine import Launch
from infercast.engines.host import HostCosts
from infercast.engines.vllm.launches import LaunchWork
from infercast.serve.step import HostCost

SEEN_IN_ONE = {
    "latent_layer": "deepseek-v2-lite",
    "recurrent_layer": "",
    "delta_layer": "qwen3.5-35b-a3b",
    "mamba_layer": "nemotron-3-nano-30b-a3b",
    "sparse_layer": "glm-5",
    "grouped_choice_layer": "deepseek-v2-lite",
    "packed_expert_layer": "gpt-oss-20b",
}
"""Host times of layers that were seen in one model only, and the model; in none, those of the nearest layers stand."""


RECURRENT_WAIT = 0.6
"""Of a step with prompts, the share of the GPU's time that the host waits for where every layer is recurrent. Prompts
of 2,048 and 8,192 tokens of Nemotron 3 Nano, whose layers ask the GPU for sizes, and of Qwen3.5-35B-A3B tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmHost(HostCosts):
    """Seconds of host time; what each is for is said in the data file."""

    plan: float
    plan_sequence: float
    plan_token: float
    prepare: float
    prepare_sequence: float = 0.0
    kv_group: float
    sample: float
    sample_prompt: float = 0.0
    graph_launch: float
    prompt_step: float
    piece_layer: float
    eager_step: float
    eager_kernel: float
    latent_layer: float
    recurrent_layer: float = 0.35e-3
    delta_layer: float = 1.5e-3
    mamba_layer: float = 0.95e-3
    mamba_piece: float = 0.5e-3
    mamba_prompt: float = 0.045e-3
    mixed_layer: float = 0.35e-3
    sparse_layer: float = 0.20e-3
    sparse_step: float = 1.1e-3
    expert_layer: float
    grouped_choice_layer: float
    packed_expert_layer: float
    process: float
    process_sequence: float
    wake: float
    verify: float = 0.2e-3
    draft_first: float = 0.3e-3
    draft_pass: float = 0.25e-3
    draft_by_hand: float = 0.85e-3
    draft_v1_pass: float = 1.4e-3
    draft_v1_layer: float = 0.21e-3
    verify_by_hand: float = 1.0e-3
    lookup_sequence: float = 0.01e-3

    def launching(self, launch: Launch, work: LaunchWork) -> float:
        """From a step's first kernel to its last one before sampling; what every step costs, each stage pays."""
        if launch is Launch.FULL_GRAPH:
            return self.graph_launch * work.stages
        by_hand = (
            self.prompt_step * work.stages
            + self.latent_layer * work.latent_layers
            + self.recurrent_layer * work.recurrent_layers
            + self.delta_layer * work.delta_layers
            + self.mamba_layer * work.mamba_layers
            + self.sparse_layer * work.sparse_layers
        )
        if launch is Launch.PIECEWISE_GRAPHS:
            return by_hand + self.piece_layer * work.layers + self.mamba_piece * work.mamba_layers
        return (
            by_hand
            + self.eager_step * work.stages
            + self.eager_kernel * work.kernels
            + self.expert_layer * work.expert_layers
            + self.grouped_choice_layer * work.grouped_choice_layers
            + self.packed_expert_layer * work.packed_expert_layers
        )


class VllmHostModel:
    """A host that runs one model."""

    def __init__(self, host: VllmHost, work: LaunchWork) -> None:
        self._host, self._work = host, work
        self._prepare = host.prepare + host.kv_group * (work.kv_groups - 1)
        self._launching = {launch: host.launching(launch, work) + host.sample for launch in Launch}

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return self._work.gap_seconds

    @property
    def waited_share(self) -> float:
        """Each recurrent layer waits for the GPU to come to it, so that the two work by turns in part."""
        return RECURRENT_WAIT * (self._work.delta_layers + self._work.mamba_layers) / self._work.layers

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        """The host's part of a step."""
        host, work = self._host, self._work
        launching = self._launching[launch]
        if num_prompts and (work.delta_layers or work.mamba_layers):
            # Mamba2 asks for each prompt how many states to keep; sequences that decode run kernels of their own.
            launching += host.mamba_prompt * work.mamba_layers * num_prompts
            if num_prompts < num_sequences:
                launching += host.mixed_layer * (work.delta_layers + work.mamba_layers)
        plan = host.plan + host.plan_sequence * num_sequences + host.plan_token * (num_tokens - num_sequences)
        if num_prompts:
            launching += host.sample_prompt
        process = host.process + host.process_sequence * num_sequences
        prepare = self._prepare + host.prepare_sequence * num_sequences
        if work.sparse_layers and num_sequences > 1:
            prepare += host.sparse_step
        return HostCost(plan, prepare, launching, process, host.wake)

    def borrowed_share(self, model: str) -> float:
        """The share of what launching a prompt costs that was seen in one other model only."""
        host, work = self._host, self._work
        borrowed = sum(
            getattr(host, term) * getattr(work, f"{term}s") for term, seen in SEEN_IN_ONE.items() if model != seen
        )
        return borrowed / host.launching(Launch.EAGER, work) if borrowed else 0.0
