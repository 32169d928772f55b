"""The models that are known, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from infercast.models.parameters import active_parameter_count, parameter_count, weight_bytes
from infercast.models.spec import ModelConfig
from infercast.report.layout import facts, grid, section, styled
from infercast.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_models(models: Iterable[ModelConfig]) -> list[RenderableType]:
    """One line per model."""
    columns = ("name", "architecture", "total", "active", "layers", "heads", "weights")
    rows = [
        (
            model.name,
            model.architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration"),
            format_count(parameter_count(model)),
            format_count(active_parameter_count(model)),
            f"{model.layers}",
            model.stacks[0].mixer.label,
            model.weights.name,
        )
        for model in models
    ]
    legend = "active: parameters one token uses. heads: query/key-value x width; of a latent (MLA); of a state."
    return [grid(columns, rows, text_columns=2, notes_at=(5, 6)), styled(legend, style="dim")]


def render_model(model: ModelConfig) -> list[RenderableType]:
    """Everything that is known of one model."""
    weights = weight_bytes(model)
    rows = [
        ("architecture", model.architecture),
        (
            "parameters",
            f"{format_count(parameter_count(model))}, {format_count(active_parameter_count(model))} per token",
        ),
        ("weights", f"{model.weights.name}, {format_bytes(weights.total)}"),
        ("hidden size", f"{model.hidden:,}"),
        ("vocabulary", f"{model.vocabulary:,}{' (head shares the embedding)' if model.tied_embedding else ''}"),
        ("positions", f"{model.max_positions:,}"),
        ("KV cache", model.cache_dtype),
        *(
            (f"{stack.layers} layers", f"{stack.mixer.description}; {stack.feed_forward.description}")
            for stack in model.stacks
        ),
        *(("note", note) for note in model.notes),
    ]
    return [section(model.name, facts(rows))]


def model_dict(model: ModelConfig) -> dict[str, Any]:
    """One model as plain data."""
    counts = {"parameters": parameter_count(model), "active_parameters": active_parameter_count(model)}
    values = asdict(model)
    # Whatever mixes tokens has always been called attention here.
    names = {"mixer": "attention"}
    stacks = [{names.get(name, name): value for name, value in stack.items()} for stack in values["stacks"]]
    return {**values, "stacks": stacks, **counts, "weight_bytes": weight_bytes(model).total}
