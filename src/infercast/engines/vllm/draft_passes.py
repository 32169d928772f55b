"""What drafting costs the host in vLLM, and how its passes reach the GPU.

The V2 model runner replays a graph for each pass over one token a sequence, its head with it; the first pass goes as
the target's own does. The V1 runner has piecewise graphs of passes, and heads by hand.
"""

from __future__ import annotations

import bisect
from dataclasses import replace

from infercast.engines.deployment import Deployment
from infercast.engines.engine import Launch
from infercast.engines.vllm.host import VllmHost
from infercast.engines.vllm.launches import GAP_SECONDS, LaunchWork, launch_work
from infercast.engines.vllm.settings import ResolvedSettings
from infercast.serve.step import HostCost

HEAD_KERNELS = 6
"""Kernels of a head that drafts: the product, its spreading over the target's vocabulary, the choice of a token."""


class VllmPasses:
    """Passes of one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        settings, host, drafting = deployment.settings, deployment.host, deployment.drafting
        assert isinstance(settings, ResolvedSettings)
        assert isinstance(host, VllmHost)
        assert drafting is not None
        self._host, self._drafting = host, drafting
        sizes = settings.capture_sizes
        self._sizes = tuple(size for size in sizes if size <= settings.max_num_seqs) if drafting.v2_runner else sizes
        layout = replace(deployment.layout, tensor=drafting.tensor)
        self._work: LaunchWork | None = None
        if drafting.draft is not None:
            self._work = launch_work(drafting.draft.config, layout, deployment.gpu)

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one pass."""
        return 0.0 if self._work is None else GAP_SECONDS * (self._work.kernels + HEAD_KERNELS)

    def padded(self, num_sequences: int) -> int:
        """Sequences that a later pass computes for so many."""
        place = bisect.bisect_left(self._sizes, num_sequences)
        return self._sizes[place] if place < len(self._sizes) else num_sequences

    def cost(self, launch: Launch, passes: int, num_sequences: int, *, has_prompts: bool) -> HostCost:
        """What a step takes longer to launch that verifies, and drafts by so many passes."""
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
        """The layers of one pass, by hand or in pieces."""
        host, work = self._host, self._work
        assert work is not None
        if launch is Launch.PIECEWISE_GRAPHS:
            return host.piece_layer * work.layers
        return (
            host.eager_kernel * (work.kernels + HEAD_KERNELS)
            + host.expert_layer * work.expert_layers
            + host.latent_layer * work.latent_layers
        )
