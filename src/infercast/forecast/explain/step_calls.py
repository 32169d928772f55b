"""What one step launches."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from infercast.engines.deployment import Deployment
from infercast.engines.engine import Launch
from infercast.models.lower import attention_calls, head_calls, token_calls, verify_calls
from infercast.ops import Call
from infercast.ops.elementwise import rejection
from infercast.serve.step import DraftShape, StepShape


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


def draft_step_calls(deployment: Deployment, shape: DraftShape) -> StepCalls:
    """The operators of a step that verifies drafts and makes the next ones."""
    model, layout, drafting = deployment.model, deployment.layout, deployment.drafting
    assert drafting is not None
    launch, padded = deployment.graphs.launch(shape.num_tokens, shape.is_decode)
    rows, number = max(1, shape.num_sampled), shape.num_sequences
    verifying = shape.num_verifying
    keys = np.array(shape.new_tokens) + np.array(shape.computed)
    prompts = np.array(shape.new_tokens[verifying:]), keys[verifying:]
    width = 1 + round(shape.num_drafts / verifying) if verifying else 1
    by_tokens = token_calls(model, layout, padded)
    by_sequences = verify_calls(model, layout, width, keys[:verifying]) if verifying else []
    by_sequences += attention_calls(model, layout, *prompts) if shape.prompts else []
    by_rows = [*head_calls(model, layout, rows), Call("rejection", rejection(rows, model.vocabulary))]
    draft, passes = drafting.draft, min(drafting.passes, shape.num_next)
    if draft is not None and passes:
        own = replace(layout, tensor=drafting.tensor)
        by_tokens += [*draft.combining_calls(padded), *draft.pass_calls(own, padded)]
        by_sequences += draft.verify_calls(own, width, keys[:verifying]) if verifying else []
        by_sequences += draft.attention_calls(own, *prompts) if shape.prompts else []
        by_rows += _times(passes, draft.head_calls(own, number))
        if passes > 1:
            later = [*draft.pass_calls(own, number), *draft.attention_calls(own, np.ones_like(keys), keys)]
            by_rows += _times(passes - 1, later)
    return StepCalls(by_tokens, by_sequences, by_rows, launch, padded)


def _times(count: int, calls: list[Call]) -> list[Call]:
    """Calls of so many passes."""
    return [replace(call, count=count * call.count) for call in calls]


def step_calls(deployment: Deployment, shape: StepShape) -> StepCalls:
    """The operators of a step over a given batch, padded as its graphs are."""
    if isinstance(shape, DraftShape):
        return draft_step_calls(deployment, shape)
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
