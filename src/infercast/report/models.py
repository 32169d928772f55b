"""The models that are known, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from infercast.models import spec
from infercast.report.terminal import Facts, Field, FittingTable, RenderableType, Renderers, Section, styled
from infercast.units import format_bytes, format_count, format_many

ENDINGS = "For(CausalLM|ConditionalGeneration)$"  # of names of architectures
MODEL_FIELDS: tuple[Field[spec.ModelConfig], ...] = (
    Field("", lambda model: model.name, "name"),
    Field("", lambda model: re.sub(ENDINGS, "", model.architecture), "architecture", rank=4, words=True),
    Field("", lambda model: format_count(spec.parameter_count(model)), "total"),
    Field("", lambda model: format_count(spec.active_parameter_count(model)), "active"),
    Field("", lambda model: f"{model.layers}", "layers", rank=3),
    Field("", lambda model: model.stacks[0].mixer.label, "heads", rank=2, words=True),
    Field("", lambda model: model.weights.name, "weights", rank=1, words=True),
)


def render_models(models: Iterable[spec.ModelConfig]) -> list[RenderableType]:
    legend = "active: parameters one token uses. heads: query/key-value x width; of a latent (MLA); of a state."
    return [FittingTable(MODEL_FIELDS, list(models)), styled(legend, style="dim")]


def render_model(model: spec.ModelConfig) -> list[RenderableType]:
    weights = spec.weight_bytes(model)
    parameters, active = (format_count(count(model)) for count in (spec.parameter_count, spec.active_parameter_count))
    rows = [
        ("architecture", model.architecture),
        ("parameters", f"{parameters}, {active} per token"),
        ("weights", f"{model.weights.name}, {format_bytes(weights.total)}"),
        ("hidden size", f"{model.hidden:,}"),
        ("vocabulary", f"{model.vocabulary:,}{' (head shares the embedding)' if model.tied_embedding else ''}"),
        ("positions", f"{model.max_positions:,}"),
        *([("layer inputs", f"{model.layer_inputs:,} values a token, from a table")] if model.layer_inputs else []),
        ("KV cache", model.cache_dtype),
        *(
            (f"{stack.layers} layers", f"{stack.mixer.description}; {stack.feed_forward.description}")
            for stack in model.stacks
        ),
        *_prediction_rows(model),
        *(("note", note) for note in model.notes),
    ]
    return [Section(model.name, Facts(rows))]


def _prediction_rows(model: spec.ModelConfig) -> list[tuple[str, str]]:
    part = model.prediction
    if part is None:
        return []
    halves = [half for stack in part.stacks for half in (stack.mixer, stack.feed_forward) if not half.is_empty]
    counted = format_count(spec.prediction_parameter_count(model))
    words = "; ".join(half.description for half in halves)
    return [("prediction", f"{format_many(part.heads, 'head')}, {counted} parameters: {words}")]


def model_dict(model: spec.ModelConfig) -> dict[str, Any]:
    counts = {"parameters": spec.parameter_count(model), "active_parameters": spec.active_parameter_count(model)}
    values = asdict(model)
    values["stacks"] = _named_stacks(values["stacks"])
    if values["prediction"]:
        values["prediction"]["stacks"] = _named_stacks(values["prediction"]["stacks"])
        counts["prediction_parameters"] = spec.prediction_parameter_count(model)
    return {**values, **counts, "weight_bytes": spec.weight_bytes(model).total}


def _named_stacks(stacks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON keeps the name `attention` for every mixer."""
    names = {"mixer": "attention"}
    return [{names.get(name, name): value for name, value in stack.items()} for stack in stacks]


RENDERERS = {"ModelConfig": Renderers(model_dict, render_model)}
