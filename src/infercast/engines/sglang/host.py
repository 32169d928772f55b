"""What the CPU beside the GPU costs a step of SGLang."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infercast.engines.engine import Launch
from infercast.engines.host import HostCosts
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.serve.step import HostCost

PROMPT = np.array([2])
GAP_SECONDS = 0.15e-6
"""What a GPU idles between two kernels of a step beyond what their estimates hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangHost(HostCosts):
    """Seconds of host time; what each is for is said in the data file."""

    plan: float
    plan_sequence: float
    plan_token: float
    prepare: float
    sample: float
    graph_launch: float
    prompt_step: float
    piece_layer: float
    eager_step: float
    eager_kernel: float
    process: float
    process_sequence: float
    wake: float


class SglangHostModel:
    """A host that runs one model."""

    def __init__(self, host: SglangHost, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> None:
        self._host = host
        calls = [*token_calls(model, layout, 2), *attention_calls(model, layout, PROMPT, PROMPT)]
        self._kernels = sum(call.count for call in calls)
        pieces = host.prompt_step * layout.pipeline + host.piece_layer * model.layers
        self._launching = {
            Launch.FULL_GRAPH: host.graph_launch * layout.pipeline,
            Launch.PIECEWISE_GRAPHS: pieces,
            Launch.EAGER: host.prompt_step + host.eager_step * layout.pipeline + host.eager_kernel * self._kernels,
        }

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""
        return GAP_SECONDS * self._kernels

    @property
    def waited_share(self) -> float:
        """Nothing is known to wait for the GPU while it launches."""
        return 0.0

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        """The host's part of a step."""
        host = self._host
        plan = host.plan + host.plan_sequence * num_sequences + host.plan_token * (num_tokens - num_sequences)
        process = host.process + host.process_sequence * num_sequences
        return HostCost(plan, host.prepare, self._launching[launch] + host.sample, process, host.wake)

    def borrowed_share(self, model: str) -> float:
        """No cost was seen in one model only."""
        return 0.0
