"""How a model is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.errors import InputError
from infercast.models.blocks import BLOCK, cut_block
from infercast.models.spec import ExpertFeedForward, GroupedAttention, ModelConfig

MOST_TENSOR = 64
"""Sizes that a refusal looks at for alternatives."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """``tensor`` GPUs share every layer: heads, feed-forward columns and vocabulary are split over them.

    ``pipeline`` such groups hold one stage of the layers each, and there are ``data`` copies of the whole. Copies of a
    model with routed experts share these and have the rest to themselves: the width of every expert is split over the
    GPUs of all copies, or with ``experts`` (expert parallelism) whole experts are spread over them.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    all_to_all: bool = False
    """Tokens go to the GPUs of their experts alone, and not to all that share experts (DeepEP's kernels)."""
    fused_norms: bool = False
    """All-reduces carry the norm that follows them in one kernel (vLLM's ``fuse_allreduce_rms``)."""

    @property
    def gpus(self) -> int:
        """GPUs that all copies occupy together."""
        return self.replica_gpus * self.data

    @property
    def replica_gpus(self) -> int:
        """GPUs of one copy, which one engine drives."""
        return self.tensor * self.pipeline

    @property
    def expert_gpus(self) -> int:
        """GPUs that the experts of a layer are spread over; 1 where each GPU holds a share of every expert."""
        return self.tensor * self.data if self.experts else 1

    @property
    def exchanging_gpus(self) -> int:
        """GPUs of several copies that bring their tokens together before the experts.

        With spread experts all of them do, a share of a copy's tokens each; otherwise one GPU of every copy.
        """
        return self.tensor * self.data if self.experts else self.data

    @property
    def gpus_per_expert(self) -> int:
        """GPUs that the width of each routed expert is split over."""
        return 1 if self.experts else self.tensor * self.data

    def share_expert_width(self, inter: int) -> int:
        """Columns of each routed expert that a GPU holds."""
        return -(-inter // self.gpus_per_expert)

    def share(self, size: int) -> int:
        """What one GPU holds of a dimension that is split, rounded up as engines pad it."""
        return -(-size // self.tensor)

    def share_kv_heads(self, kv_heads: int) -> int:
        """Key-value heads one GPU holds: with fewer heads than GPUs each is kept more than once."""
        return max(1, kv_heads // self.tensor)

    @property
    def fuses_norms(self) -> bool:
        """Whether there are all-reduces for norms to ride on."""
        return self.fused_norms and self.tensor > 1

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        return "+".join([*parts, "EP"] if self.experts else parts)


def copies_sharing_experts(config: ModelConfig, layout: ParallelLayout) -> int:
    """Copies whose tokens meet in each layer of experts, so that they step together: all, if the model has experts."""
    return layout.data if config.has_experts else 1


def talking_gpus(config: ModelConfig, layout: ParallelLayout) -> int:
    """GPUs that exchange something in every layer or between stages."""
    return layout.replica_gpus * copies_sharing_experts(config, layout)


def check_layout(config: ModelConfig, layout: ParallelLayout) -> None:
    """Refuse a layout that the model's dimensions do not allow, naming the ones that they do."""
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name}_parallel_size must be at least 1, not {size}")
    if not divides(config, layout.tensor, split_experts=not layout.experts):
        valid = [size for size in range(1, MOST_TENSOR + 1) if divides(config, size, split_experts=not layout.experts)]
        raise InputError(
            f"tensor_parallel_size {layout.tensor} does not divide the heads and widths of {config.name}; "
            f"valid: {', '.join(map(str, valid))}"
        )
    if not divides(config, layout.tensor, split_experts=not layout.experts, copies=layout.data):
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
    if layout.experts:
        _check_experts(config, layout)


def _check_blocks(config: ModelConfig, layout: ParallelLayout) -> None:
    """Weights in blocks are cut between blocks only."""
    cut = cut_block(config, layout.tensor, layout.gpus_per_expert)
    if cut is None:
        return
    valid = [
        size
        for size in range(1, MOST_TENSOR + 1)
        if divides(config, size, split_experts=not layout.experts, copies=layout.data)
        and cut_block(config, size, 1 if layout.experts else size * layout.data) is None
    ]
    remedies = [f"tensor_parallel_size {' or '.join(map(str, valid))}"] if valid else []
    if cut.what == "experts" and not layout.experts and cut_block(config, layout.tensor, 1) is None:
        remedies.append("enable_expert_parallel")
    raise InputError(
        f"layout {layout} cuts the {cut.size:,} columns of the {cut.what} of {config.name} to {cut.width:g} a GPU, and "
        f"an engine does not cut fp8 weights inside their blocks of {BLOCK}; what works: "
        f"{', or '.join(remedies) or 'nothing'}"
    )


def _check_experts(config: ModelConfig, layout: ParallelLayout) -> None:
    """Experts are spread in equal numbers, and there must be some."""
    feed_forwards = (stack.feed_forward for stack in config.stacks)
    counts = [each.experts for each in feed_forwards if isinstance(each, ExpertFeedForward)]
    if not counts:
        raise InputError(f"enable_expert_parallel needs a model with experts, and {config.name} has none; leave it out")
    if any(count % layout.expert_gpus for count in counts):
        most = min(counts)
        valid = ", ".join(str(size) for size in range(1, most + 1) if not any(count % size for count in counts))
        raise InputError(
            f"enable_expert_parallel spreads the {most} experts of {config.name} over {layout.expert_gpus} GPUs "
            f"(tensor x data parallel size), which does not divide them; valid: {valid}"
        )


def divides(config: ModelConfig, tensor: int, *, split_experts: bool = True, copies: int = 1) -> bool:
    """Whether heads, key-value heads and feed-forward widths split evenly over ``tensor`` GPUs.

    The width of routed experts is split over those of all ``copies``, unless whole experts are spread.
    """
    for stack in config.stacks:
        attention = stack.attention
        if attention.heads % tensor:
            return False
        if isinstance(attention, GroupedAttention) and attention.kv_heads % tensor and tensor % attention.kv_heads:
            return False
        feed_forward = stack.feed_forward
        widths = [feed_forward.inter]
        if isinstance(feed_forward, ExpertFeedForward):
            if split_experts and feed_forward.inter % (tensor * copies):
                return False
            widths = [feed_forward.shared_inter, feed_forward.dense_inter]
        if any(width % tensor for width in widths):
            return False
    return True
