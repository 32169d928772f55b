"""``infercast memory``: what fits."""

from __future__ import annotations

from typing import Any

import typer

from infercast.cli.options import settings_of, with_options
from infercast.cli.outputs import Form, print_answer
from infercast.errors import InputError
from infercast.forecast.deploy import taken_by
from infercast.forecast.memory import fit_memory
from infercast.forecast.option_table import ENGINE_ARGS, MEMORY, PLACE


@with_options(PLACE, MEMORY, "tensor_parallel_size pipeline_parallel_size data_parallel_size", ENGINE_ARGS)
def command(ctx: typer.Context, *, form: Form, **given: Any) -> None:
    if given["context"] < 1:
        raise InputError(f"--context must be at least 1, not {given['context']}")
    fit = fit_memory(given["model"], given["gpu"], settings_of(ctx), **taken_by(fit_memory, given))
    print_answer(form, fit)
