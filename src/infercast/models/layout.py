"""How a model is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from infercast.ops.collective import DEFAULT_LIBRARY


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
    """All-reduces carry the norm that follows them in one kernel (``fuse_allreduce_rms``)."""
    library: str = DEFAULT_LIBRARY
    """Whose kernels all-reduces run, as in `Collective`."""
    apart: bool = False
    """Each copy has all experts to itself, so that copies share nothing."""

    @property
    def gpus(self) -> int:
        """GPUs that all copies occupy together."""
        return self.replica_gpus * self.data

    @property
    def replica_gpus(self) -> int:
        """GPUs of one copy, which one engine drives."""
        return self.tensor * self.pipeline

    @property
    def sharing(self) -> int:
        """Copies that share experts, if the model has any."""
        return 1 if self.apart else self.data

    @property
    def expert_gpus(self) -> int:
        """GPUs that the experts of a layer are spread over; 1 where each GPU holds a share of every expert."""
        return self.tensor * self.sharing if self.experts else 1

    @property
    def gpus_per_expert(self) -> int:
        """GPUs that the width of each routed expert is split over."""
        return 1 if self.experts else self.tensor * self.sharing

    def share_expert_width(self, inter: int) -> int:
        """Columns of each routed expert that a GPU holds."""
        return -(-inter // self.gpus_per_expert)

    def share(self, size: int) -> int:
        """What one GPU holds of a dimension that is split, rounded up as engines pad it."""
        return -(-size // self.tensor)

    def share_kv_heads(self, kv_heads: int) -> int:
        """Key-value heads one GPU holds: with fewer heads than GPUs each is kept more than once."""
        return max(1, kv_heads // self.tensor)

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        return "+".join([*parts, "EP"] if self.experts else parts)
