"""``infercast kernels``, ``diagnose`` and ``estimate``: kernels of a step, slow ones of a run, single ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from infercast.bundled import read_data
from infercast.cli.options import choose_predictor, deployment_of, with_options, workload_of
from infercast.cli.outputs import Form, print_answer, print_result
from infercast.engines.base import engine_named
from infercast.errors import InputError, SaturatedError
from infercast.forecast.deploy import deploy_changed, load_model, parse_changes
from infercast.forecast.estimate import (
    ALONE,
    CONDITIONS,
    ENDS,
    ENGINE,
    LASTING,
    SHAPES,
    estimate_kernel,
    estimate_table,
    power_of,
)
from infercast.forecast.explain.diagnose import diagnose
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape, verify_shape
from infercast.forecast.option_table import DEPLOYMENT, ENGINE_ARGS, OPTIONS, PLACE, WORKLOAD, Option, own_options
from infercast.hardware import Gpu, load_gpu, with_network
from infercast.predict.learned import make_predictor
from infercast.predict.roofline import Predictor
from infercast.report.comparison import render_steps, steps_dict
from infercast.report.kernels import power_dict, power_facts, render_step, step_dict
from infercast.report.terminal import Facts, Grid, Section
from infercast.units import format_seconds

SPARE_TOKENS = 64  # room for drafts behind a sequence


@with_options(PLACE, own_options("kernels"), ENGINE_ARGS, DEPLOYMENT, command="kernels")
def command(
    ctx: typer.Context, *, prefill: int | None, decode: int | None, explain: bool, form: Form, **given: Any
) -> None:
    if (prefill is None) == (decode is None):
        raise InputError("say which step: either --prefill TOKENS, or --decode SEQUENCES with --context TOKENS")
    model, context, most_tokens = given["model"], given["context"], given["max_num_batched_tokens"]
    if prefill is not None:
        cached = context or 0
        shape = prefill_shape(_at_least(1, "--prefill", prefill), _at_least(0, "--context", cached))
        question = f"prefill of {prefill:,} tokens" + (f" after {cached:,} cached ones" if cached else "")
    else:
        assert decode is not None
        before = 1024 if context is None else context
        shape = decode_shape(_at_least(1, "--decode", decode), _at_least(0, "--context", before))
        question = f"decode of {decode:,} sequences, each after {before:,} tokens"
    longest, positions = shape.new_tokens[0] + shape.computed[0], load_model(model).max_positions
    if longest > positions:
        raise InputError(
            f"a {question} needs {longest} tokens in one sequence, above the {positions} positions of {model}"
        )
    spare = SPARE_TOKENS if given["speculative_config"] else 0
    most_tokens = max(shape.num_tokens, 8192) if most_tokens is None else most_tokens
    room = engine_named(given["engine"]).room_for(
        most_tokens, max(len(shape.new_tokens), min(most_tokens, 256)), min(longest + spare, positions)
    )
    asked = deployment_of(ctx, room=room)
    deployment = asked()
    if decode is not None and deployment.drafting is not None:
        shape = verify_shape(decode, shape.computed[0], deployment.drafting)
        question = f"{question}, each with {deployment.drafting.num_drafts} drafts to verify and as many to make"
    cost = estimate_step(deployment, shape, explain=explain or form.is_data)
    if given["what_if"] is None:
        tables = partial(render_step, question=question, explain=explain)
        print_result(form, step_dict, tables, deployment, cost, rows="kernels")
        return
    changes = parse_changes(given["what_if"])
    other = deploy_changed(asked, changes)
    costs = (deployment, cost), (other, estimate_step(other, shape, explain=form.is_data))
    print_result(form, steps_dict, partial(render_steps, question=question), *costs, changes.text, rows="step_time")


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise InputError(f"{name} must be {'0 or more' if least == 0 else 'at least 1'}, not {value}")
    return value


DEFAULT_COUNT, DEFAULT_CONCURRENCY = 300, 32


SIZES_OF_ONE = "tensor_parallel_size pipeline_parallel_size"


@with_options(PLACE, SIZES_OF_ONE, own_options("diagnose"), WORKLOAD, ENGINE_ARGS, DEPLOYMENT)
def diagnose_command(ctx: typer.Context, *, what_if: str | None, form: Form, **given: Any) -> None:
    said = any(given[name] is not None for name in ("trace", "rate", "concurrency"))
    if not said and given["arrival"] == "poisson":
        ctx.params["concurrency"] = DEFAULT_CONCURRENCY
    workload = workload_of(ctx, DEFAULT_COUNT)
    asked = deployment_of(ctx)
    deployment = asked() if what_if is None else deploy_changed(asked, parse_changes(what_if))
    diagnosis = diagnose(deployment, workload)
    if diagnosis.forecast.saturation is not None:
        raise SaturatedError(f"{diagnosis.forecast.saturation.sentence}; lower --rate or add GPUs")
    print_answer(form, diagnosis)


WORDS = {ALONE: "latency, alone", ENGINE: "inside an engine", LASTING: "sustained, at the power limit"}
SIZES = {name for shape in SHAPES.values() for name in (*shape.sizes, *shape.optional)}


KERNEL_SIZES, KERNEL_FORMATS = read_data("kernel_options.toml").values()
KERNEL = (
    Option("family", str, ..., "FAMILY", f"One of {', '.join(SHAPES)}.", argument=True),
    OPTIONS["gpu"],
    *(Option(*(name, int, None, "N", what), "Sizes", shows_default=False) for name, what in KERNEL_SIZES.items()),
    *(Option(*(name, str, None, "T", what), "Formats", shows_default=False) for name, what in KERNEL_FORMATS.items()),
    Option("table", Path, None, "FILE", "A CSV of shapes; prints CSV.", flag="--csv"),
)


@with_options(KERNEL, "network predictor anchors measurements")
def estimate_command(*, family: str, gpu: str, table: Path | None, form: Form, **given: Any) -> None:
    values = {name: value for name, value in given.items() if name in SIZES and value is not None}
    chosen = choose_predictor(given["predictor"], given["anchors"], gpu, given["measurements"])
    device = with_network(load_gpu(gpu), given["network"])
    used = make_predictor(chosen) if isinstance(chosen, str) else chosen
    if table is None:
        _print_kernel(used, device, family, values, form)
        return
    if values:
        raise InputError(f"--csv brings its own sizes; leave out {', '.join(f'--{name}' for name in values)}")
    rows = list(estimate_table(used, device, family, table))
    tables = [Grid(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])] if rows else []
    # As CSV, in which it came, unless another form is asked for.
    print_result(Form.CSV if form is Form.TABLE else form, lambda: rows, lambda: tables)


def _print_kernel(predictor: Predictor, device: Gpu, family: str, values: dict[str, Any], form: Form) -> None:
    """One kernel in all conditions, and its power."""
    found = {each: estimate_kernel(predictor, device, family, values, each) for each in CONDITIONS}
    estimate = found[ALONE]
    numbers = {each: {end: float(getattr(found[each], end)) for end in ENDS} for each in CONDITIONS}
    sizes = ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in values.items()
    )
    power, words = power_of(device, family, values, estimate), "{} (80 % interval {} to {})"
    rows = [
        *((WORDS[each], words.format(*(format_seconds(numbers[each][end]) for end in ENDS))) for each in CONDITIONS),
        ("source", estimate.source),
        ("bound by", str(estimate.bound)),
        *power_facts(power),
    ]
    others = {each: numbers[each] for each in CONDITIONS if each != ALONE}
    known = {"source": estimate.source, "bound": str(estimate.bound), "power": power_dict(power)}
    document = {**numbers[ALONE], "condition": ALONE, **others, **known}
    print_result(form, lambda: document, lambda: [Section(f"{family} on {device.title}: {sizes}", Facts(rows))])
