"""CPU time of a vLLM step: individually launched kernels, gaps between kernels, and draft passes.

The V2 model runner replays a graph for each pass over one token per sequence, including its head; the first pass is
launched like the target's own. The V1 runner has piecewise graphs of passes, and eager heads.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from infercast.bundled import read_data
from infercast.engines.base import Deployment
from infercast.engines.host import HostCosts, Launch, next_size
from infercast.engines.vllm.kernels import default_block_size, packs_experts
from infercast.engines.vllm.kv_cache import ALL, NONE, kv_layout
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.mixers.mixer import SequenceBatch
from infercast.models.spec import ModelConfig
from infercast.ops import Call, Scan
from infercast.ops.op import FUSED_NORM
from infercast.predict.identity import kernel_profile
from infercast.serve.step import HostCost, host_cost_of

EXPERT_KERNELS, HEAD_KERNELS = 7, 8
"""Kernels of a routed expert layer beyond the one it is counted as, and those of head and sampling."""
SCANS = {"gdn": "gdn", "kda": "delta", "mamba2": "mamba"}
"""Host cost of a layer with a scan, by kind; kinds that were not measured cost the same as Kimi's."""
PROMPT = np.array([2])
DRAFT_HEAD_KERNELS = 6  # Kernels of a draft head: the GEMM, mapping to the target's vocabulary, token selection


class VllmLaunchWork(NamedTuple):
    layers: int
    kernels: int  # Kernels of an eager step with a prompt, with a layer's experts counted as one
    latent_layers: int  # Layers with latent attention, which is many small operations in Python
    expert_layers: int  # Layers with routed experts, whose kernels are launched individually from Python
    grouped_choice_layers: int
    """Those with grouped expert selection by plain scores, for which vLLM has no kernel: many operations."""
    kv_groups: int = 1  # Layer groups with a block table of their own
    stages: int = 1
    recurrent_layers: int = 0  # Layers with a state and no scan: short convolutions
    delta_layers: int = 0
    """Gated delta nets and Kimi's, whose convolutions, scans and state copies are launched individually from Python."""
    fused_delta_layers: int = 0  # Gated delta nets whose scan is one call to FlashInfer, with the rest the same
    mamba_layers: int = 0
    sparse_layers: int = 0  # Layers with sparse attention: indexer and attention are launched separately, both eagerly
    packed_expert_layers: int = 0
    """Those whose 4-bit experts run OpenAI's Triton kernels, which Python sets up anew each time."""
    quantisers: int = 0  # Products whose inputs are quantised

    @property
    def scanned_layers(self) -> int:
        """All layers that scan prompts; decoding sequences in the same step run kernels of their own."""
        return self.delta_layers + self.fused_delta_layers + self.mamba_layers

    @property
    def gaps(self) -> int:
        return self.kernels + EXPERT_KERNELS * self.expert_layers + HEAD_KERNELS


def _is_fused(call: Call) -> bool:
    """The compiler fuses quantisation into the preceding kernel, and norms into an all-reduce where it may."""
    return call.op.family == "quantise" or getattr(call.op, "kind", "") == FUSED_NORM


def _composed_layers(config: ModelConfig, layout: ParallelLayout) -> Counter[str]:
    """Layers with a token mixer of many operations, by kind: with a scan, a state, an indexer or none of these."""
    shard, counts = config.shard(layout), Counter[str]()
    for stack in config.stacks:
        if stack.mixer.is_composed:
            calls = stack.mixer.sequence_calls(shard, SequenceBatch(PROMPT, PROMPT))
            scans = [call.op.kind for call in calls if isinstance(call.op, Scan)]
            caches = stack.mixer.caches(shard)
            kind = "sparse" if len(caches) > 1 else "latent"
            kind = "recurrent" if any(cache.bytes_per_sequence for cache in caches) else kind
            counts[SCANS.get(scans[0], "delta") if scans else kind] += stack.layers
    return counts


@lru_cache
def compiles_kernels(config: ModelConfig, layout: ParallelLayout) -> bool:
    """True if layers have scans or indexers: their kernels are compiled and tuned as the engine starts."""
    return any(_composed_layers(config, layout)[kind] for kind in ("gdn", "delta", "mamba", "sparse"))


@lru_cache
def launch_work(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> VllmLaunchWork:
    calls = [*token_calls(config, layout, 2), *attention_calls(config, layout, PROMPT, PROMPT)]
    composed = _composed_layers(config, layout)
    experts = [stack for stack in config.stacks if stack.feed_forward.experts]
    scans = config.weights.scans_kernel or kernel_profile("vllm").scans.get(gpu.kernels, {}).get("gdn", "")
    is_fused = scans == "flashinfer"
    # Other chips have kernels of their own for them (Marlin, FlashInfer).
    grouped = (stack.layers for stack in experts if stack.feed_forward.has_plain_groups)
    # The compiler fuses the norm after one half of a layer with the norm before the next.
    joined = sum((stack.norms - 2) * stack.layers for stack in config.stacks if stack.norms > 2)
    recurrent = ("scan", "state_update", "convolution")  # Kernels included in the host time of a recurrent layer
    return VllmLaunchWork(
        layers=sum(stack.layers for stack in config.stacks if not stack.mixer.is_empty),
        kernels=sum(call.count for call in calls if not _is_fused(call) and call.op.family not in recurrent) - joined,
        latent_layers=composed["latent"], recurrent_layers=composed["recurrent"],
        delta_layers=composed["delta"] + (0 if is_fused else composed["gdn"]),
        fused_delta_layers=composed["gdn"] if is_fused else 0, mamba_layers=composed["mamba"],
        sparse_layers=composed["sparse"], expert_layers=sum(stack.layers for stack in experts),
        grouped_choice_layers=sum(grouped), stages=layout.pipeline,
        kv_groups=kv_layout(config, layout, default_block_size(config, gpu)).shape.num_tables,
        packed_expert_layers=sum(stack.layers for stack in experts) if packs_experts(config, gpu) else 0,
        quantisers=sum(call.count for call in calls if call.op.family == "quantise"),
    )  # fmt: skip


class MeasuredLayers(NamedTuple):
    """Where the host time of a kind of layer was measured."""

    layers: str
    models: tuple[str, ...]  # Empty: the times of the most similar layers stand in
    conditions: str = ""  # What was special about it, and what other engines do


SEEN_IN_FEW = {term: MeasuredLayers(**row) for term, row in read_data("engines/vllm/seen.toml").items()}
"""Host times of layers measured in only one or two models."""


RECURRENT_WAIT = 0.6
"""Share of a prefill step's GPU time that the host blocks on if every layer is Mamba2 that writes states at block ends:
from prompts of 2,048 and 8,192 tokens of Nemotron 3 Nano."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmHost(HostCosts):
    plan: float
    plan_sequence: float
    plan_group: float = 0.004e-3
    plan_token: float
    prepare: float
    prepare_sequence: float = 0.0
    kv_group: float
    scan_inputs: float = 0.0
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
    quantiser_piece: float = 0.0
    quantiser_kernel: float = 0.0
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

    def launching(self, launch: Launch, work: VllmLaunchWork, *, has_prompts: bool = True) -> float:
        """From a step's first kernel to its last one before sampling; every stage pays the per-step costs."""
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
            return by_hand + piece * work.layers + self.quantiser_piece * work.quantisers
        return (
            by_hand
            + self.eager_step * work.stages
            + self.eager_kernel * work.kernels
            + self.expert_layer * work.expert_layers
            + self.grouped_choice_layer * work.grouped_choice_layers
            + self.packed_expert_layer * work.packed_expert_layers
            + self.quantiser_kernel * work.quantisers
        )


class VllmHostModel:
    """A host running one model, with recurrent states in one of vLLM's modes."""

    def __init__(self, host: VllmHost, work: VllmLaunchWork, mode: str = NONE) -> None:
        self._host, self._work, self._mode = host, work, mode
        self._scanned_layers, self._sparse_layers = work.scanned_layers, work.sparse_layers
        told = host.scan_inputs if work.scanned_layers else 0.0
        self._prepare = host.prepare + host.kv_group * (work.kv_groups - 1) + told
        self._plan_sequence = host.plan_sequence + host.plan_group * (work.kv_groups - 1)
        self._launching = {
            (launch, has_prompts): host.launching(launch, work, has_prompts=has_prompts) + host.sample
            for launch in Launch
            for has_prompts in (False, True)
        }

    @property
    def gap_seconds(self) -> float:
        return self._host.kernel_gap * self._work.gaps

    @property
    def waited_share(self) -> float:
        """Mamba2 that writes states at block ends asks the GPU in each layer: host and GPU partly take turns."""
        return RECURRENT_WAIT * self._work.mamba_layers / self._work.layers if self._mode == ALL else 0.0

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        host, work = self._host, self._work
        launching = self._launching[launch, num_prompts > 0]
        if num_prompts and self._scanned_layers:
            # Each layer asks the GPU for each prompt how many states to write; between graphs it waits for the answer.
            if self._mode == ALL:
                asking = host.mamba_piece if launch is Launch.PIECEWISE_GRAPHS else 0.0
                launching += (asking + host.mamba_prompt * num_prompts) * work.mamba_layers
            # Decoding sequences run kernels of their own.
            if num_prompts < num_sequences:
                launching += host.mixed_layer * self._scanned_layers
        plan = host.plan + self._plan_sequence * num_sequences + host.plan_token * (num_tokens - num_sequences)
        if num_prompts:
            launching += host.sample_prompt
        process = host.process + host.process_sequence * num_sequences
        prepare = self._prepare + host.prepare_sequence * num_sequences
        if self._sparse_layers and num_sequences > 1:
            prepare += host.sparse_step
        return host_cost_of((plan, prepare, launching, process, host.wake))

    def borrowed_share(self, model: str) -> float:
        """Share of a prompt's launch cost that was measured in only one or two other models."""
        borrowed = sum(seconds for seen, seconds in self._seen_in_few() if model not in seen.models)
        return borrowed / self._host.launching(Launch.EAGER, self._work) if borrowed else 0.0

    def rests_on(self) -> list[str]:
        """A sentence for each kind of layer with a host time from few models, or under special conditions."""
        sentences = []
        for seen, seconds in self._seen_in_few():
            where = " and ".join(seen.models) + " only" if seen.models else "no model (that of latent attention stands)"
            share = f"{1e3 * seconds:.3g} ms of a step with prompts outside CUDA graphs"
            said = f"The host time of {seen.layers} ({share}) was seen in {where}"
            sentences.append(f"{said}, {seen.conditions}." if seen.conditions else f"{said}.")
        return sentences

    def _seen_in_few(self) -> list[tuple[MeasuredLayers, float]]:
        """Those that the model has, with their seconds in a prefill step outside graphs."""
        host, work = self._host, self._work
        found = [(seen, getattr(host, term) * getattr(work, f"{term}s")) for term, seen in SEEN_IN_FEW.items()]
        return [(seen, seconds) for seen, seconds in found if seconds]


class VllmPasses:
    def __init__(self, deployment: Deployment) -> None:
        settings, host, drafting = deployment.settings, deployment.host, deployment.drafting
        assert isinstance(settings, ResolvedSettings)
        assert isinstance(host, VllmHost)
        assert drafting is not None
        self._host, self._drafting = host, drafting
        sizes = settings.capture_sizes
        self._sizes = tuple(size for size in sizes if size <= settings.max_num_seqs) if drafting.v2_runner else sizes
        layout = replace(deployment.layout, tensor=drafting.tensor)
        self._work: VllmLaunchWork | None = None
        if drafting.draft is not None:
            self._work = launch_work(drafting.draft.config, layout, deployment.gpu)

    @property
    def gap_seconds(self) -> float:
        return 0.0 if self._work is None else self._host.kernel_gap * (self._work.kernels + DRAFT_HEAD_KERNELS)

    def padded(self, num_sequences: int) -> int:
        return next_size(self._sizes, num_sequences) or num_sequences

    def cost(self, launch: Launch, passes: int, num_sequences: int, *, has_prompts: bool) -> HostCost:
        """Added launch time of a step that verifies and then drafts in ``passes`` passes."""
        host, drafting = self._host, self._drafting
        seconds = host.verify
        if launch is not Launch.FULL_GRAPH and not has_prompts:
            seconds += host.verify_by_hand
        if self._work is None:
            return HostCost(launch=seconds + host.lookup_sequence * num_sequences)
        if not passes:
            return HostCost(launch=seconds)
        has_graph = bool(self._sizes) and num_sequences <= self._sizes[-1]
        if not drafting.v2_runner:
            first = Launch.EAGER if launch is Launch.EAGER else Launch.PIECEWISE_GRAPHS
            later = Launch.PIECEWISE_GRAPHS if has_graph else Launch.EAGER
            by_hand = self._launching(first) + (passes - 1) * self._launching(later)
            each = host.draft_v1_pass + host.prompt_step + host.draft_v1_layer * self._work.layers
            return HostCost(launch=seconds + passes * each + by_hand)
        seconds += host.draft_first + (passes - 1) * host.draft_pass
        if launch is not Launch.FULL_GRAPH:
            seconds += host.draft_by_hand + self._launching(launch)
        if not has_graph:
            seconds += (passes - 1) * (host.draft_by_hand + self._launching(Launch.EAGER))
        return HostCost(launch=seconds)

    def _launching(self, launch: Launch) -> float:
        host, work = self._host, self._work
        assert work is not None
        if launch is Launch.PIECEWISE_GRAPHS:
            return host.piece_layer * work.layers
        return (
            host.eager_kernel * (work.kernels + DRAFT_HEAD_KERNELS)
            + host.expert_layer * work.expert_layers
            + host.latent_layer * work.latent_layers
        )
