"""``infercast memory``: what fits, and ``infercast partition``: into which stages a pipeline is cut."""

from __future__ import annotations

from typing import Any

from infercast.cli.options import Context, settings_of, with_options
from infercast.cli.outputs import Form, print_answer
from infercast.errors import require
from infercast.forecast.deploy import deploy, taken_by
from infercast.forecast.memory import fit_memory
from infercast.forecast.option_table import ENGINE_ARGS, MEMORY, PARALLEL, PLACE, Option


@with_options(PLACE, MEMORY, PARALLEL, ENGINE_ARGS)
def command(ctx: Context, *, form: Form, **given: Any) -> None:
    require(given["context"] >= 1, "--context", "be at least 1", given["context"])
    fit = fit_memory(given["model"], given["gpu"], settings_of(ctx), **taken_by(fit_memory, given))
    print_answer(form, fit)


@with_options(
    PLACE,
    Option("input_len", int, "Tokens of a prompt; 0: by decode steps alone.", 1024),
    Option("output_len", int, "Tokens of an answer; 0: by prompts alone.", 256),
    Option("decode", int, "Sequences of a decode step.", 32),
    *(PARALLEL, ENGINE_ARGS, "network predictor"),
)
def partition_command(ctx: Context, *, form: Form, **given: Any) -> None:
    from infercast.forecast.layouts import estimate_partition  # noqa: PLC0415 - what fits needs none of it

    load = {"input_len": given["input_len"], "output_len": given["output_len"], "batch": given["decode"]}
    found = estimate_partition(given["model"], given["gpu"], settings_of(ctx), **load, **taken_by(deploy, given))
    print_answer(form, found)
