"""What fits on a GPU, as an answer: also when the answer is no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from infercast.engines.base import require_fit
from infercast.engines.memory import Memory, host_link
from infercast.engines.settings import Resolved, Settings
from infercast.errors import DoesNotFitError, require
from infercast.forecast.deploy import OWN, GpuSource, ModelSource, PlaceOptions, defaults, put_on, with_keywords
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig, rank_weight_bytes
from infercast.shown import PlottableResult
from infercast.units import format_many


@dataclass(frozen=True, slots=True, repr=False)
class Fit(PlottableResult):
    """How a model sits in the memory of one GPU."""

    model: ModelConfig
    gpu: Gpu
    layout: ParallelLayout
    settings: Resolved
    memory: Memory
    longest_sequence: int  # Tokens of the longest sequence that fits alone, at most the positions of the model
    most_sequences: int  # Sequences of ``context`` tokens that fit at once while they decode
    context: int  # Tokens of the sequences that are counted in ``most_sequences``
    problem: str  # Why an engine would refuse to start; empty if it starts
    most_weights: float  # Bytes of weights on the GPU with most of them, perhaps of another stage than ``memory``

    @property
    def load_seconds(self) -> float:
        """Seconds until the weights are on all GPUs if they wait in the host's memory, as when models are switched."""
        return self.most_weights / host_link(self.gpu, self.layout.gpus, 0.0, 0.0).rate

    def _words(self) -> str:
        if self.problem:
            return f"{self.model.name} on {self.gpu.name}: {self.problem}"
        room = f"{format_many(self.most_sequences, 'sequence')} of {self.context:,} tokens"
        return f"{self.model.name} on {self.gpu.name}: fits, with room for {room}"


def fit_memory(
    model: ModelSource, gpu: GpuSource, settings: Settings | None = None, *, context: int = 2048,
    **options: Unpack[PlaceOptions],
) -> Fit:  # fmt: skip
    """Weights, activations and KV blocks of a model on a GPU, whether they fit or not; ``options``: of `deploy`."""
    require(context >= 1, "context", "be at least 1 token", context)
    settings, given = with_keywords(settings, options.get("engine"), options)
    found = put_on(model, gpu, settings, defaults(OWN) | given, must_fit=False)
    engine, config, layout, resolved, memory = found.engine, found.model, found.layout, found.settings, found.memory
    chunk, problem = engine.tokens_under_way(resolved, layout), ""
    try:
        require_fit(engine, config, layout, found.gpu, resolved)
    except DoesNotFitError as reason:
        problem = str(reason)
    longest = min(memory.longest_sequence(chunk), config.max_positions)
    most = memory.most_sequences(context, chunk=1)
    weights = rank_weight_bytes(config, layout, engine.expert_multiples(config, found.gpu))
    return Fit(config, found.gpu, layout, resolved, memory, longest, most, context, problem, weights)
