"""How one replica of a model is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.errors import InputError
from infercast.models.spec import ExpertFeedForward, GroupedAttention, ModelConfig


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """``tensor`` GPUs share every layer: heads, feed-forward columns and vocabulary are split over them."""

    tensor: int = 1

    @property
    def gpus(self) -> int:
        """GPUs one replica occupies."""
        return self.tensor

    def share(self, size: int) -> int:
        """What one GPU holds of a dimension that is split, rounded up as engines pad it."""
        return -(-size // self.tensor)

    def share_kv_heads(self, kv_heads: int) -> int:
        """Key-value heads one GPU holds: with fewer heads than GPUs each is kept more than once."""
        return max(1, kv_heads // self.tensor)


def check_layout(config: ModelConfig, layout: ParallelLayout) -> None:
    """Refuse a layout that the model's dimensions do not allow, naming the ones that they do."""
    if layout.tensor < 1:
        raise InputError(f"tensor_parallel_size must be at least 1, not {layout.tensor}")
    if not divides(config, layout.tensor):
        valid = ", ".join(str(size) for size in range(1, 65) if divides(config, size))
        raise InputError(
            f"tensor_parallel_size {layout.tensor} does not divide the heads and widths of {config.name}; "
            f"valid: {valid}"
        )


def divides(config: ModelConfig, tensor: int) -> bool:
    """Whether heads, key-value heads and feed-forward widths split evenly over ``tensor`` GPUs."""
    for stack in config.stacks:
        attention = stack.attention
        if attention.heads % tensor:
            return False
        if isinstance(attention, GroupedAttention) and attention.kv_heads % tensor and tensor % attention.kv_heads:
            return False
        feed_forward = stack.feed_forward
        widths = [feed_forward.inter]
        if isinstance(feed_forward, ExpertFeedForward):
            widths += [feed_forward.shared_inter, feed_forward.dense_inter]
        if any(width % tensor for width in widths):
            return False
    return True
