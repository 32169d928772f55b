"""What the CPU beside the GPU costs a step of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from infercast.engines.engine import Launch
from infercast.engines.host import HostCosts
from infercast.engines.vllm.launches import LaunchWork
from infercast.engines.vllm.states import ALL, NONE
from infercast.serve.step import HostCost


class Seen(NamedTuple):
    """Where the host time of a kind of layers was seen."""

    layers: str
    models: tuple[str, ...]
    """None: those of the nearest layers stand."""
    conditions: str = ""
    """What was special about it, and what other engines do."""


SEEN_IN_FEW = {
    "latent_layer": Seen("latent attention", ("deepseek-v2-lite",)),
    "recurrent_layer": Seen("short convolutions", ()),
    "delta_layer": Seen("delta nets by Triton's kernels", ("qwen3.5-35b-a3b", "qwen3.5-4b")),
    "fused_delta_layer": Seen(
        "gated delta nets by FlashInfer's kernels",
        ("published idle prompts of Qwen3.5-9B and Qwen3.5-35B-A3B",),
        "on hosts that are not known; where FlashInfer is not installed, vLLM takes Triton's kernels "
        "(--gdn-prefill-backend triton), which were measured and take 2.5 times as long",
    ),
    "mamba_layer": Seen("Mamba2", ("nemotron-3-nano-30b-a3b", "nemotron-nano-9b-v2")),
    "sparse_layer": Seen("an indexer and attention over what it chose", ("glm-5",), "in six of its layers"),
    "grouped_choice_layer": Seen("experts chosen from groups", ("deepseek-v2-lite",)),
    "packed_expert_layer": Seen(
        "4-bit experts by Triton's kernels",
        ("gpt-oss-20b",),
        "in idle prompts; steps that replay CUDA graphs (--max-cudagraph-capture-size) do not pay it, nor does "
        "--moe-backend marlin",
    ),
}
"""Host times of layers that were seen in one or two models only."""


RECURRENT_WAIT = 0.6
"""Of a step with prompts, the share of the GPU's time that the host waits for where every layer is Mamba2 that writes
states at the end of blocks: prompts of 2,048 and 8,192 tokens of Nemotron 3 Nano."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmHost(HostCosts):
    """Seconds of host time; what each is for is said in the data file."""

    plan: float
    plan_sequence: float
    plan_group: float = 0.004e-3
    plan_token: float
    prepare: float
    prepare_sequence: float = 0.0
    kv_group: float
    sample: float
    sample_prompt: float = 0.0
    graph_launch: float
    prompt_step: float
    piece_layer: float
    piece_decode: float = 0.09e-3
    eager_step: float
    eager_kernel: float
    latent_layer: float
    recurrent_layer: float = 0.35e-3
    delta_layer: float = 1.5e-3
    fused_delta_layer: float = 0.6e-3
    mamba_layer: float = 0.95e-3
    mamba_piece: float = 0.4e-3
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

    def launching(self, launch: Launch, work: LaunchWork, *, has_prompts: bool = True) -> float:
        """From a step's first kernel to its last one before sampling; what every step costs, each stage pays."""
        if launch is Launch.FULL_GRAPH:
            return self.graph_launch * work.stages
        by_hand = self.latent_layer * work.latent_layers + self.sparse_layer * work.sparse_layers
        if has_prompts:
            by_hand += (
                self.prompt_step * work.stages
                + self.recurrent_layer * work.recurrent_layers
                + self.delta_layer * work.delta_layers
                + self.fused_delta_layer * work.fused_delta_layers
                + self.mamba_layer * work.mamba_layers
            )
        else:
            by_hand += self.mixed_layer * (work.recurrent_layers + work.scanned_layers)
        if launch is Launch.PIECEWISE_GRAPHS:
            piece = self.piece_layer if has_prompts else self.piece_decode
            return by_hand + piece * work.layers
        return (
            by_hand
            + self.eager_step * work.stages
            + self.eager_kernel * work.kernels
            + self.expert_layer * work.expert_layers
            + self.grouped_choice_layer * work.grouped_choice_layers
            + self.packed_expert_layer * work.packed_expert_layers
        )


class VllmHostModel:
    """A host that runs one model, whose recurrent layers keep states in one of vLLM's modes."""

    def __init__(self, host: VllmHost, work: LaunchWork, mode: str = NONE) -> None:
        self._host, self._work, self._mode = host, work, mode
        self._prepare = host.prepare + host.kv_group * (work.kv_groups - 1)
        self._plan_sequence = host.plan_sequence + host.plan_group * (work.kv_groups - 1)
        self._launching = {
            (launch, has_prompts): host.launching(launch, work, has_prompts=has_prompts) + host.sample
            for launch in Launch
            for has_prompts in (False, True)
        }

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return self._work.gap_seconds

    @property
    def waited_share(self) -> float:
        """Where Mamba2 writes states at the end of every block, each layer asks the GPU how many of a prompt to write,
        so that the two work by turns in part. Nothing else that runs recurrent layers waits for the GPU.
        """
        return RECURRENT_WAIT * self._work.mamba_layers / self._work.layers if self._mode == ALL else 0.0

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        """The host's part of a step."""
        host, work = self._host, self._work
        launching = self._launching[launch, num_prompts > 0]
        if num_prompts and work.scanned_layers:
            # Each layer asks the GPU for each prompt how many states to write; between graphs it waits for the answer.
            if self._mode == ALL:
                asking = host.mamba_piece if launch is Launch.PIECEWISE_GRAPHS else 0.0
                launching += (asking + host.mamba_prompt * num_prompts) * work.mamba_layers
            # Sequences that decode run kernels of their own.
            if num_prompts < num_sequences:
                launching += host.mixed_layer * work.scanned_layers
        plan = host.plan + self._plan_sequence * num_sequences + host.plan_token * (num_tokens - num_sequences)
        if num_prompts:
            launching += host.sample_prompt
        process = host.process + host.process_sequence * num_sequences
        prepare = self._prepare + host.prepare_sequence * num_sequences
        if work.sparse_layers and num_sequences > 1:
            prepare += host.sparse_step
        return HostCost(plan, prepare, launching, process, host.wake)

    def borrowed_share(self, model: str) -> float:
        """The share of what launching a prompt costs that was seen in one or two other models only."""
        borrowed = sum(seconds for seen, seconds in self._seen_in_few() if model not in seen.models)
        return borrowed / self._host.launching(Launch.EAGER, self._work) if borrowed else 0.0

    def rests_on(self) -> list[str]:
        """A sentence for each kind of layers whose host time was seen in few models, or under special conditions."""
        sentences = []
        for seen, seconds in self._seen_in_few():
            where = " and ".join(seen.models) + " only" if seen.models else "no model (that of latent attention stands)"
            share = f"{1e3 * seconds:.3g} ms of a step with prompts outside CUDA graphs"
            said = f"The host time of {seen.layers} ({share}) was seen in {where}"
            sentences.append(f"{said}, {seen.conditions}." if seen.conditions else f"{said}.")
        return sentences

    def _seen_in_few(self) -> list[tuple[Seen, float]]:
        """Those that the model has, and their seconds in a step with a prompt outside graphs."""
        host, work = self._host, self._work
        found = [(seen, getattr(host, term) * getattr(work, f"{term}s")) for term, seen in SEEN_IN_FEW.items()]
        return [(seen, seconds) for seen, seconds in found if seconds]
