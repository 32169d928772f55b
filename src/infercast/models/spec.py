"""A model after its config.json was read: dimensions, parameter counts, and what a parallel layout makes of it.

A model is an embedding, a few *stacks* of equal layers and a head. Layers of one stack have the same token mixer
(attention, in most models) and the same feed-forward, so everything is counted once a stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from infercast.errors import InputError, require
from infercast.lazy_classes import NamedTuple, dataclass, field, replace
from infercast.models.feed_forward import UNPADDED, ExpertFeedForward, FeedForward, Multiples
from infercast.models.images import ImageEncoder
from infercast.models.layout import ParallelLayout, Shard, WeightFormat
from infercast.models.mixers.mixer import Mixer
from infercast.shown import ResultMixin

GREEDY, SORTED, TOP_P = "greedy", "sorted", "top_p"  # The largest logit, or top-p: with all in order, or by release
MOST_TENSOR = 64  # Sizes that a refusal looks at for alternatives
BLOCKED, BLOCK = "fp8_block", 128


@dataclass(frozen=True, slots=True)
class Stack:
    """``layers`` equal layers, not necessarily next to each other in the model."""

    layers: int
    mixer: Mixer  # What lets tokens see each other
    feed_forward: FeedForward
    norms: int = 2  # Norms over the hidden size in each layer: 2 before the halves, 4 if their outputs are normed too
    streams: int = 1  # Residual streams between the halves; hyper-connections mix several and norm them (DeepSeek-V4)
    residuals: int = 0  # Sums of earlier layers that each norm weighs and adds before it norms (Kimi-K3)
    parallel: bool = False  # Both halves read the layer's input, and GPUs add up their sum (GPT-J, Cohere)
    input_width: int = 0  # Values of a layer's own embedding, which it gates and adds (Gemma 4 E2B, E4B); 0: none

    @property
    def mixing_values(self) -> int:
        """Weights of one hyper-connection for each value of the hidden size; 0 without any."""
        return self.streams * self.streams * (2 + self.streams) if self.streams > 1 else 0


class Edits(NamedTuple):
    """Kernels by name that steps do without, that are one with their neighbours, and that run side by side."""

    drop: tuple[tuple[str, ...], ...] = ()
    fuse: tuple[tuple[str, ...], ...] = ()
    overlap: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> list[str]:
        return [name for groups in self for group in groups for name in group]


@dataclass(frozen=True, slots=True)
class VisionPart:
    """The image encoder of a language model: what it takes in memory, and what it computes."""

    split: int  # Parameters that the GPUs of a tensor-parallel group share
    whole: int  # Parameters that every GPU holds
    layers: int
    hidden: int
    images: ImageEncoder | None = None  # How it cuts images and what it computes, where that is known

    @property
    def parameters(self) -> int:
        return self.split + self.whole


@dataclass(frozen=True, slots=True)
class PredictionPart:
    """Heads that predict further tokens (multi-token prediction), which draft for speculative decoding. A head joins
    the hidden state of a token and the embedding of the next one in a product of twice the hidden size, runs layers of
    its own and asks the model's head. Engines load it for speculative decoding alone.
    """

    heads: int  # Heads with weights of their own
    stacks: tuple[Stack, ...]  # The layers of one head
    norms: int = 3  # Norms over the hidden size outside its layers: of both inputs, and of its output
    own_table: bool = False  # Whether each head has its own table of the vocabulary (Step-3.5), not the model's
    quantised: bool = True  # Whether its layers have the model's weight formats; else all of it is in the base format


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """Room for adapters on a GPU."""

    count: int  # Adapters that may be in a step
    rank: int  # The largest one, which all take room for


@dataclass(frozen=True, slots=True, repr=False)
class ModelConfig(ResultMixin):
    """A model as published, ready to be lowered to operators."""

    name: str
    architecture: str
    hidden: int  # Values of a token between two layers
    vocabulary: int  # Number of different tokens
    max_positions: int  # Tokens of the longest sequence that it was made for
    stacks: tuple[Stack, ...]
    weights: WeightFormat = field(default_factory=WeightFormat)
    kv_dtype: str = "auto"  # KV-cache format that checkpoint or user ask for; ``auto``: that of the activations
    tied_embedding: bool = False  # The head reuses the embedding table, or there is none
    positions: int = 0  # Rows of a table of learned positions, on every GPU
    pools: bool = False  # A prompt gives a vector or a score, and no tokens
    order: tuple[int, ...] = ()  # The stack of each layer, first layer first; empty: one stack after the other
    vision: VisionPart | None = None
    prediction: PredictionPart | None = None
    sampling: str = GREEDY
    notes: tuple[str, ...] = ()  # What was left out or assumed, in words: ``vision tower left out``
    assumed: str = ""  # What a checkpoint's name or an unknown architecture was taken to mean; one of the notes
    adapters: AdapterSlots | None = None  # LoRA adapters that an engine has room for
    edits: Edits = Edits()  # What is asked of its kernels

    def _words(self) -> str:
        return f"{self.name}, {self.architecture}, {self.layers} layers, {self.weights.name}"

    @property
    def cache_dtype(self) -> str:
        """The format keys and values are cached in."""
        return self.weights.base if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def layers(self) -> int:
        """Layers in all."""
        return sum(stack.layers for stack in self.stacks)

    @property
    def layer_inputs(self) -> int:
        """Values of a token's embeddings for single layers, all together."""
        return sum(stack.layers * stack.input_width for stack in self.stacks)

    @property
    def layer_stacks(self) -> tuple[int, ...]:
        """The stack of each layer, first layer first."""
        return self.order or tuple(number for number, stack in enumerate(self.stacks) for _ in range(stack.layers))

    @property
    def has_experts(self) -> bool:
        return any(stack.feed_forward.experts for stack in self.stacks)

    def has_mixer(self, kind: type[Mixer]) -> bool:
        return any(isinstance(stack.mixer, kind) for stack in self.stacks)

    def with_experts(self, change: Callable[[ExpertFeedForward], ExpertFeedForward]) -> ModelConfig:
        halves = [(stack, stack.feed_forward) for stack in self.stacks]
        stacks = (
            replace(stack, feed_forward=change(half)) if isinstance(half, ExpertFeedForward) else stack
            for stack, half in halves
        )
        return replace(self, stacks=tuple(stacks))

    def with_mixers(self, change: Callable[[Mixer], Mixer]) -> ModelConfig:
        return replace(self, stacks=tuple(replace(stack, mixer=change(stack.mixer)) for stack in self.stacks))

    def pooling(self) -> ModelConfig:
        """The same model, which gives a vector or a score for each prompt."""
        return replace(self, pools=True, tied_embedding=True, prediction=None)

    def sequence_bytes(self, num_tokens: int) -> float:
        """What a sequence takes in the caches of all layers and all GPUs that share it, each head counted once."""
        shard = self.shard(ParallelLayout())
        return sum(
            stack.layers * cache.bytes_for(num_tokens) for stack in self.stacks for cache in stack.mixer.caches(shard)
        )

    def shard(self, layout: ParallelLayout) -> Shard:
        """What one GPU of a layout needs to know of the model to hold and compute its part of any layer."""
        return Shard(self.hidden, self.architecture, self.weights, self.cache_dtype, layout)


class WeightBytes(NamedTuple):
    """Bytes of the whole model's weights by part, as an engine holds them in memory."""

    embedding: float
    attention: float
    feed_forward: float  # Dense feed-forward and shared experts
    experts: float
    head: float  # 0 where the head shares the embedding's memory
    other: float  # Norms, routers, biases and sinks
    vision: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(self))


def parameter_count(config: ModelConfig) -> int:
    """All stored parameters of the language model; a tied head counts once, with the embedding."""
    tables = (config.vocabulary * (1 if config.tied_embedding else 2) + config.positions) * config.hidden
    tables += config.layer_inputs * config.vocabulary
    outside = config.hidden + _input_values(config)
    return tables + outside + sum(stack.layers * _layer(stack, config.hidden) for stack in config.stacks)


def _input_values(config: ModelConfig) -> int:
    """What makes the inputs of single layers from a token's embedding: a matrix for all, and one norm."""
    return config.layer_inputs * config.hidden + max(stack.input_width for stack in config.stacks)


def active_parameter_count(config: ModelConfig) -> int:
    """Parameters that one token is multiplied with: the head, and not the embedding, as gpt-oss and others count."""
    head = config.vocabulary * config.hidden + config.hidden + _input_values(config)
    return head + sum(stack.layers * _layer(stack, config.hidden, active=True) for stack in config.stacks)


def prediction_parameter_count(config: ModelConfig) -> int:
    """Parameters of the heads that predict further tokens, which `parameter_count` leaves out; 0 without any."""
    part, hidden = config.prediction, config.hidden
    if part is None:
        return 0
    layers = sum(stack.layers * _layer(stack, hidden) for stack in part.stacks)
    table = config.vocabulary * hidden if part.own_table else 0
    return part.heads * (layers + 2 * hidden * hidden + part.norms * hidden + table)


def weight_bytes(config: ModelConfig) -> WeightBytes:
    """Memory of all weights on one GPU, quantised parts with their scales."""
    weights, hidden = config.weights, config.hidden
    bytes_of = weights.stored_bytes
    table = config.vocabulary * hidden

    def over_layers(count: Callable[[Stack], int]) -> int:
        return sum(stack.layers * count(stack) for stack in config.stacks)

    def vectors(stack: Stack) -> int:
        return common_vectors(stack, hidden) + stack.feed_forward.expert_values(hidden)[1]

    return WeightBytes(
        embedding=(table + config.positions * hidden + config.vocabulary * config.layer_inputs)
        * bytes_of(weights.base),
        attention=sum(
            stack.layers * stack.mixer.matrices(hidden) * bytes_of(getattr(weights, stack.mixer.part))
            for stack in config.stacks
        ),
        feed_forward=over_layers(lambda stack: stack.feed_forward.matrices(hidden)) * bytes_of(weights.feed_forward),
        experts=over_layers(lambda stack: stack.feed_forward.expert_values(hidden)[0]) * bytes_of(weights.experts),
        head=0.0 if config.tied_embedding else table * bytes_of(weights.head),
        other=(over_layers(vectors) + hidden + _input_values(config)) * bytes_of(weights.base),
        vision=config.vision.parameters * bytes_of(weights.base) if config.vision else 0.0,
    )


def common_vectors(stack: Stack, hidden: int) -> int:
    """Norms, hyper-connections, gates of its input, routers, biases and sinks of a layer, on every GPU."""
    # What weighs earlier sums is a norm and a row for each norm.
    norms = stack.norms * (3 if stack.residuals else 1)
    between = (norms + 2 * stack.mixing_values + 2 * stack.input_width) * hidden
    return between + stack.mixer.vectors(hidden) + stack.feed_forward.vectors(hidden)


def _layer(stack: Stack, hidden: int, active: bool = False) -> int:
    """All parameters of one layer, or those that one token meets."""
    mixer, feed_forward = stack.mixer, stack.feed_forward
    matrices = mixer.matrices(hidden) + feed_forward.matrices(hidden)
    return matrices + common_vectors(stack, hidden) + sum(feed_forward.expert_values(hidden, active=active))


def copies_sharing_experts(config: ModelConfig, layout: ParallelLayout) -> int:
    """Copies that exchange tokens in each layer of experts, and so step together: all, if the model has experts."""
    return layout.sharing if config.has_experts else 1


def talking_gpus(config: ModelConfig, layout: ParallelLayout) -> int:
    """GPUs that exchange something in every layer or between stages."""
    return layout.replica_gpus * copies_sharing_experts(config, layout)


def check_layout(config: ModelConfig, layout: ParallelLayout) -> None:
    """Refuse a layout that the model's dimensions do not allow, naming the ones that they do."""
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
    for name, size in sizes.items():
        require(size >= 1, f"{name}_parallel_size", "be at least 1", size)
    if not divides(config, layout.tensor, split_experts=not layout.experts):
        valid = [size for size in range(1, MOST_TENSOR + 1) if divides(config, size, split_experts=not layout.experts)]
        raise InputError(
            f"tensor_parallel_size {layout.tensor} does not divide the heads and widths of {config.name}; "
            f"valid: {', '.join(map(str, valid))}"
        )
    if not divides(config, layout.tensor, split_experts=not layout.experts, copies=layout.sharing):
        raise InputError(
            f"data_parallel_size {layout.data} splits the experts of {config.name} over "
            f"{layout.tensor * layout.data} GPUs (tensor x data parallel size), which does not divide their width; use "
            "another, or enable_expert_parallel"
        )
    _check_blocks(config, layout)
    if layout.pipeline > config.layers:
        raise InputError(
            f"pipeline_parallel_size {layout.pipeline} is more than the {config.layers} layers of {config.name}; use "
            f"1 to {config.layers}"
        )
    if layout.pipeline > 1 and any(getattr(stack.mixer, "borrows", False) for stack in config.stacks):
        raise InputError(
            f"pipeline_parallel_size {layout.pipeline} is not modelled for {config.name}, whose last layers read the "
            "KV cache of earlier ones; use 1"
        )
    if layout.experts:
        _check_experts(config, layout)
    if layout.balanced and layout.expert_gpus == 1:
        raise InputError(
            "enable_eplb needs experts spread over GPUs: add enable_expert_parallel (or ep_size), or drop it"
        )


def _check_blocks(config: ModelConfig, layout: ParallelLayout) -> None:
    """Weights in blocks are cut between blocks only."""
    cut = cut_block(config, layout.tensor, layout.gpus_per_expert)
    if cut is None:
        return
    valid = [
        size
        for size in range(1, MOST_TENSOR + 1)
        if divides(config, size, split_experts=not layout.experts, copies=layout.sharing)
        and cut_block(config, size, 1 if layout.experts else size * layout.sharing) is None
    ]
    remedies = [f"tensor_parallel_size {' or '.join(map(str, valid))}"] if valid else []
    if cut.what == "experts" and not layout.experts and cut_block(config, layout.tensor, 1) is None:
        remedies.append("enable_expert_parallel")
    raise InputError(
        f"layout {layout} cuts the {cut.size:,} columns of the {cut.what} of {config.name} to "
        f"{cut.size / cut.gpus:g} per GPU, and an engine does not cut fp8 weights inside their blocks of {BLOCK}; "
        f"what works: {', or '.join(remedies) or 'nothing'}"
    )


def _check_experts(config: ModelConfig, layout: ParallelLayout) -> None:
    """Experts are spread in equal numbers, and there must be some."""
    counts = [count for stack in config.stacks if (count := stack.feed_forward.experts)]
    if not counts:
        raise InputError(f"enable_expert_parallel needs a model with experts, and {config.name} has none; leave it out")
    gpus, more, most = layout.expert_gpus, layout.redundant, min(counts)
    if any((count + more) % gpus for count in counts):
        sizes = (size for size in range(1, most + 1) if not any((count + more) % size for count in counts))
        valid, copies = ", ".join(map(str, sizes)), f" and {more} redundant ones" if more else ""
        raise InputError(
            f"enable_expert_parallel spreads the {most} experts{copies} of {config.name} over {gpus} GPUs "
            f"(tensor x data parallel size), which does not divide them; valid: {valid}"
            + (f", or {more + -(most + more) % gpus} redundant experts" if more else "")
        )


def divides(config: ModelConfig, tensor: int, *, split_experts: bool = True, copies: int = 1) -> bool:
    """Whether heads and widths split evenly over ``tensor`` GPUs, experts' over all ``copies`` unless spread."""
    expert_gpus = tensor * copies if split_experts else 1
    halves = [(stack.mixer, stack.feed_forward) for stack in config.stacks]
    return all(
        mixer.divides(tensor)
        and all(width % tensor == 0 for width in feed_forward.dense_widths)
        and (not feed_forward.experts or feed_forward.inter % expert_gpus == 0)
        for mixer, feed_forward in halves
    )


class Cut(NamedTuple):
    what: str
    size: int
    gpus: int


def cut_block(config: ModelConfig, tensor: int, expert_gpus: int) -> Cut | None:
    """The first cut inside a block, with matrices split over ``tensor`` GPUs and each expert over ``expert_gpus``.
    Weights that are quantised in blocks of 128 x 128 can only be cut between blocks. Facts of vLLM 0.25
    (``quantization/fp8.py``, ``quantization/utils/fp8_utils.py``): experts need whole blocks in any layout, products
    that are split by their inputs (and the expansions of latent attention) once they are split. Joined products
    (queries with keys and values, gate with up) may be cut inside a block.
    """
    cuts = (cut for stack in config.stacks for cut in _cuts(config, stack, tensor, expert_gpus))
    cuts = (cut for cut in cuts if cut.gpus > 1 or cut.what == "experts")
    return next((cut for cut in cuts if cut.size / cut.gpus % BLOCK != 0), None)


def _cuts(config: ModelConfig, stack: Stack, tensor: int, expert_gpus: int) -> Iterator[Cut]:
    weights, spec = config.weights, stack.feed_forward
    if getattr(weights, stack.mixer.part) == BLOCKED:
        yield from (Cut(what, width, tensor) for what, width in stack.mixer.split_widths.items())
    if weights.experts == BLOCKED and spec.experts:
        yield Cut("experts", spec.inter, expert_gpus)
    if weights.feed_forward == BLOCKED:
        yield Cut("feed-forward", sum(spec.dense_widths), tensor)


def stage_layers(layers: int, layout: ParallelLayout) -> tuple[int, ...]:
    """Layers of each stage: as cut, or equal numbers, what is left over one each from the end backwards."""
    stages = layout.pipeline
    if len(layout.cut) == stages:
        return layout.cut
    counts = [layers // stages] * stages
    for position in range(layers % stages):
        counts[-(1 if layout.extra_last else 2) - position] += 1
    return tuple(counts)


def stage_range(layers: int, layout: ParallelLayout, stage: int) -> range:
    """The layers of one stage, by their place in the model."""
    counts = stage_layers(layers, layout)
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def stage_config(config: ModelConfig, layout: ParallelLayout, stage: int) -> ModelConfig:
    if layout.pipeline == 1:
        return config
    order = config.layer_stacks
    counts = Counter(order[position] for position in stage_range(config.layers, layout, stage))
    stacks = tuple(replace(config.stacks[number], layers=count) for number, count in sorted(counts.items()))
    return replace(config, stacks=stacks, order=())


def rank_weight_bytes(config: ModelConfig, layout: ParallelLayout, multiples: Multiples = UNPADDED) -> float:
    return max(known_weight_bytes(config, layout, stage, multiples) for stage in range(layout.pipeline))


def stage_weight_bytes(
    config: ModelConfig, layout: ParallelLayout, stage: int, multiples: Multiples = UNPADDED
) -> float:
    """Weights of each GPU in one stage of a pipeline (stage 0 without one). Matrices are split over the tensor group,
    routed experts over the GPUs that share them; norms and routers, scarce key-value heads and the projections down to
    a latent are on every GPU. The first stage has the embedding, the last one the head (a tied head is the embedding
    once more), and every stage the encoder of images.
    """
    weights = config.weights
    table = config.vocabulary * config.hidden / layout.tensor
    is_last = stage == layout.pipeline - 1
    total = (table + config.positions * config.hidden) * weights.stored_bytes(weights.base) if stage == 0 else 0.0
    if is_last and not (config.tied_embedding and (stage == 0 or config.pools)):
        total += table * weights.stored_bytes(weights.base if config.tied_embedding else weights.head)
    values = config.layer_inputs * (config.vocabulary + config.hidden) / layout.tensor
    values += (config.hidden if is_last else 0) + max(stack.input_width for stack in config.stacks)
    if config.vision:
        values += config.vision.split / layout.tensor + config.vision.whole
    total += values * weights.stored_bytes(weights.base)
    shard = config.shard(layout)
    for stack in stage_config(config, layout, stage).stacks:
        total += stack.layers * layer_bytes(shard, stack, multiples)
    return total


known_weight_bytes = lru_cache(maxsize=1024)(stage_weight_bytes)  # for layouts that are asked for again and again


def layer_bytes(shard: Shard, stack: Stack, multiples: Multiples) -> float:
    vectors = common_vectors(stack, shard.hidden) * shard.weights.stored_bytes(shard.weights.base)
    return stack.mixer.held_bytes(shard) + vectors + stack.feed_forward.held_bytes(shard, multiples)
