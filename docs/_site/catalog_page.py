"""Every bundled model and GPU, from the files that `infercast models` and `infercast gpus` read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from infercast.hardware import gpu_names, load_gpu
from infercast.models.library import model_names
from infercast.models.read import read_model
from infercast.report import catalog, deployment
from infercast.report.terminal import Field
from infercast.units import format_bytes

INTRODUCTION = """# Reference: bundled models and GPUs

This page is generated from `data/models` and `data/gpus`. `infercast models NAME` and `infercast gpus NAME` print
everything known about one of them, with its sources; `--json` prints it for programs.
"""
MODELS = """## Models

*Active* parameters are those that one token is multiplied with. *Heads* are queries/keys x width, or the width of a
latent (MLA). The last column is the KV cache of one sequence of 8,192 tokens over all layers, with windows and
recurrent states, in the checkpoint's format.
"""
GPUS = """## GPUs

Dense TFLOP/s without sparsity (fp16 where a chip has no bf16), memory visible to a program, and link bandwidth in one
direction.
"""


LENGTH = 8192
CACHE: Field[Any] = Field("", lambda model: model.sequence_bytes(LENGTH), "KV cache of 8,192 tokens", format_bytes)


def table(columns: Sequence[Field[Any]], rows: Iterable[Any]) -> str:
    """A Markdown table; names are code."""
    first, *others = columns
    lines = [
        "| " + " | ".join(str(each.title) for each in columns) + " |",
        "| " + " | ".join("---" if each.words or each is first else "--:" for each in columns) + " |",
    ]
    lines += [f"| `{first.cell(row)}` | {' | '.join(each.cell(row) for each in others)} |" for row in rows]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Two tables."""
    return "\n".join(
        [
            INTRODUCTION,
            MODELS,
            table((*deployment.MODEL_FIELDS, CACHE), map(read_model, model_names())),
            GPUS,
            table(catalog.GPU_FIELDS, map(load_gpu, gpu_names())),
        ]
    )
