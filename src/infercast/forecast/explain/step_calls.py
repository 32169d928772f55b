"""What one step launches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.engine import Launch
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.ops import Call
from infercast.serve.step import StepShape


class StepCalls(NamedTuple):
    """The operators of a step, in three groups."""

    by_tokens: list[Call]
    by_sequences: list[Call]
    by_rows: list[Call]
    launch: Launch
    padded_tokens: int

    @property
    def all(self) -> list[Call]:
        """One group after the other."""
        return [*self.by_tokens, *self.by_sequences, *self.by_rows]


def step_calls(deployment: Deployment, shape: StepShape) -> StepCalls:
    """The operators of a step over a given batch, padded as its graphs are."""
    model, layout = deployment.model, deployment.layout
    launch, padded = deployment.graphs.launch(shape.num_tokens, shape.is_decode)
    queries = np.array(shape.new_tokens)
    return StepCalls(
        token_calls(model, layout, padded),
        attention_calls(model, layout, queries, queries + np.array(shape.computed)),
        head_calls(model, layout, max(1, shape.num_sampled)),  # an engine runs its head even where nobody samples
        launch,
        padded,
    )
