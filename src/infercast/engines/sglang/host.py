"""CPU time of an SGLang step: one thread that schedules, launches and processes results."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from infercast.engines.host import HostCosts, Launch, next_size
from infercast.engines.sglang.settings import ResolvedSglang, facts_of
from infercast.engines.speculation import Drafting
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple, dataclass
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.mixers.mixer import GroupedAttention, LatentAttention
from infercast.models.spec import ModelConfig
from infercast.ops import Gemm
from infercast.serve.step import HostCost, host_cost_of

PROMPT = np.array([2])
SEEN_IN_ONE = {"composed_layer": "deepseek-v2-lite", "grouped_choice_layer": "deepseek-v2-lite"}
LAYERS = {
    "composed_layer": "latent attention, which stands for all layers of many small operations,",
    "grouped_choice_layer": "experts chosen from groups",
}  # Host times of layers measured in one model only: the model, and what these layers are


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangHost(HostCosts):
    plan: float
    plan_sequence: float
    prepare: float
    graph_launch: float
    sample: float
    process: float
    process_sequence: float
    prompt_plan: float
    plan_prompt: float
    plan_token: float
    prompt_step: float
    piece_layer: float
    stored_layer: float
    eager_step: float
    eager_kernel: float
    tuned_product: float
    expert_layer: float
    composed_layer: float
    grouped_choice_layer: float
    prompt_process: float
    process_prompt: float
    wake: float
    verify: float
    draft_graph: float
    draft_extend: float
    draft_prompt: float


class SglangLaunchWork(NamedTuple):
    kernels: int  # Kernels of a step with a prompt, with a layer's experts counted as one
    tuned_products: int  # Those of FlashInfer, which are looked up in Python
    piece_layers: int  # Layers with attention between two graphs ...
    stored_layers: int  # ... and those of them where a graph has already written the KV cache.
    composed_layers: int  # Layers that mix tokens by many small operations in Python: latent attention, recurrence
    latent_layers: int  # Of these, latent attention
    expert_layers: int
    grouped_choice_layers: int  # Layers that choose experts from groups by plain scores, for which there is no kernel
    stages: int


@lru_cache
def launch_work(model: ModelConfig, layout: ParallelLayout) -> SglangLaunchWork:
    calls = [*token_calls(model, layout, 2), *attention_calls(model, layout, PROMPT, PROMPT)]
    mixers = [(stack.mixer, stack.layers) for stack in model.stacks if not stack.mixer.is_empty]
    stored = sum(layers for mixer, layers in mixers if isinstance(mixer, GroupedAttention) and mixer.stores_rotated)
    composed = sum(layers for mixer, layers in mixers if mixer.is_composed)
    tuned = "nvfp4"  # Formats whose products FlashInfer tunes
    return SglangLaunchWork(
        kernels=sum(call.count for call in calls),
        tuned_products=sum(call.count for call in calls if isinstance(call.op, Gemm) and call.op.dtype == tuned),
        piece_layers=sum(layers for _, layers in mixers) - stored - composed,
        stored_layers=stored,
        composed_layers=composed,
        latent_layers=sum(layers for mixer, layers in mixers if isinstance(mixer, LatentAttention)),
        expert_layers=sum(stack.layers for stack in model.stacks if stack.feed_forward.experts),
        grouped_choice_layers=sum(
            stack.layers for stack in model.stacks if stack.feed_forward.experts and stack.feed_forward.has_plain_groups
        ),
        stages=layout.pipeline,
    )


class SglangHostModel:
    def __init__(
        self, host: SglangHost, model: ModelConfig, layout: ParallelLayout, _: Gpu, settings: ResolvedSglang
    ) -> None:
        self._host, self._work = host, launch_work(model, layout)
        work, by_hand = self._work, host.composed_layer * self._work.composed_layers
        # Breakable graphs hold the small operations of latent attention, and are cut at its kernel alone.
        is_cut = settings.prefill_sizes and facts_of(settings.engine, "graphs")["latent"]
        self._cut = cut = work.latent_layers if is_cut else 0
        pieces = host.piece_layer * (work.piece_layers + cut) + host.stored_layer * work.stored_layers
        steps = {
            Launch.FULL_GRAPH: host.graph_launch * work.stages,
            Launch.PIECEWISE_GRAPHS: host.prompt_step * work.stages + pieces + by_hand - host.composed_layer * cut,
            Launch.EAGER: (host.prompt_step + host.eager_step) * work.stages
            + host.eager_kernel * work.kernels
            + host.tuned_product * work.tuned_products
            + host.expert_layer * work.expert_layers
            + host.grouped_choice_layer * work.grouped_choice_layers
            + by_hand,
        }
        self._launching = {launch: seconds + host.sample for launch, seconds in steps.items()}

    @property
    def gap_seconds(self) -> float:
        return self._host.kernel_gap * self._work.kernels

    @property
    def waited_share(self) -> float:
        return 0.0

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        host = self._host
        plan = host.plan + host.plan_sequence * num_sequences
        process = host.process + host.process_sequence * num_sequences
        if num_prompts:
            plan += host.prompt_plan + host.plan_prompt * num_prompts + host.plan_token * num_tokens
            process += host.prompt_process + host.process_prompt * num_prompts
        return host_cost_of((plan, host.prepare, self._launching[launch], process, host.wake))

    def borrowed_share(self, model: str) -> float:
        """Share of a prompt's launch cost that was measured in only one other model, or for other attention."""
        if self._cut:
            return self._host.piece_layer * self._cut / self._launching[Launch.PIECEWISE_GRAPHS]
        borrowed = sum(
            getattr(self._host, term) * getattr(self._work, f"{term}s")
            for term, seen in SEEN_IN_ONE.items()
            if model != seen
        )
        return borrowed / self._launching[Launch.EAGER] if borrowed else 0.0

    def rests_on(self) -> list[str]:
        if self._cut:
            return [
                "The host time of latent attention between graphs of prompts was not measured: as of plain attention."
            ]
        return [
            f"The host time of {LAYERS[term]} was seen in {seen} only."
            for term, seen in SEEN_IN_ONE.items()
            if getattr(self._work, f"{term}s")
        ]


class SglangPasses:
    """Draft passes: those of a decode step are one graph, and the pass over its verified tokens another."""

    def __init__(self, host: SglangHost, drafting: Drafting, layout: ParallelLayout, sizes: tuple[int, ...]) -> None:
        self._host, self._sizes = host, sizes
        draft = drafting.draft
        draft_head_kernels = 6  # The product, mapping to the target's vocabulary, and the choice of tokens
        self._kernels = 0 if draft is None else launch_work(draft.config, layout).kernels + draft_head_kernels

    @property
    def gap_seconds(self) -> float:
        around = 45e-6  # Tree, mask, slots and accepted tokens (EAGLE-3 of llama-3.1-8b on an H200)
        return around + self._host.kernel_gap * self._kernels if self._kernels else 0.0

    def padded(self, num_sequences: int) -> int:
        return next_size(self._sizes, num_sequences) or num_sequences

    def cost(self, launch: Launch, passes: int, num_sequences: int, *, has_prompts: bool) -> HostCost:
        host, kernels = self._host, self._kernels
        if has_prompts:
            return HostCost(launch=host.draft_prompt if kernels else 0.0)
        seconds = host.verify
        if kernels:
            seconds += host.draft_extend + host.draft_graph * (passes > 1)
            seconds += passes * (host.eager_step + host.eager_kernel * kernels) * (launch is not Launch.FULL_GRAPH)
        return HostCost(launch=seconds)
