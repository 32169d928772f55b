"""``infercast kernels``: where the time of one step goes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from infercast.cli.options import shared as options
from infercast.cli.options.groups import Deployed, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.engines.registry import engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.explain.kernels import decode_shape, estimate_step, prefill_shape, verify_shape
from infercast.forecast.what_if import deploy_changed, parse_changes
from infercast.report.comparison import render_steps, steps_dict
from infercast.report.kernels import render_step, step_dict

OPTIONS = (
    "quantization", "dtype", "kv_cache_dtype", "enable_expert_parallel", "all2all_backend", "moe_backend",
    "expert_routing", "network", "pcie_topology", "engine", "enforce_eager", "setting", "predictor", "anchors",
    "measurements", "speculative_config", "acceptance",
)  # fmt: skip
"""Of a deployment, those that a single step depends on."""
SPARE_TOKENS = 64
"""Room for drafts behind a sequence."""


@takes(Deployed, only=OPTIONS)
def command(
    invocation: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    prefill: Annotated[int | None, typer.Option("--prefill", help="Tokens of one prompt, in one step.")] = None,
    decode: Annotated[int | None, typer.Option("--decode", help="Sequences that each compute one new token.")] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens before the new ones, of each sequence.")
    ] = None,
    tensor_parallel_size: options.TensorParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    max_num_batched_tokens: Annotated[
        int | None,
        options.of_count("--max-num-batched-tokens", help="Most tokens in one step; default: 8192, or this step's."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the terms that each estimate is made of.")] = False,
    what_if: options.WhatIf = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Estimate one step kernel by kernel: launches, time, share, what bounds each, and how close it comes.

    For example:

      infercast kernels llama-3.1-8b --gpu h200-sxm --prefill 8192

      infercast kernels qwen3-30b-a3b --gpu b200-sxm --decode 32 --context 1400
    """
    if (prefill is None) == (decode is None):
        raise InputError("say which step: either --prefill TOKENS, or --decode SEQUENCES with --context TOKENS")
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
    most_tokens = max(shape.num_tokens, 8192) if max_num_batched_tokens is None else max_num_batched_tokens
    room = engine_named(given["engine"]).room_for(
        most_tokens, max(len(shape.new_tokens), min(most_tokens, 256)), min(longest + spare, positions)
    )
    layout = {"tensor_parallel_size": tensor_parallel_size, "data_parallel_size": data_parallel_size}
    asked = asked_deployment(invocation, gpu, room, **layout)
    deployment = asked()
    if decode is not None and deployment.drafting is not None:
        shape = verify_shape(decode, shape.computed[0], deployment.drafting)
        question = f"{question}, each with {deployment.drafting.num_drafts} drafts to verify and as many to make"
    cost = estimate_step(deployment, shape, explain=explain or form.is_data)
    if what_if is None:
        tables = partial(render_step, question=question, explain=explain)
        print_result(form, step_dict, tables, deployment, cost, rows="kernels")
        return
    changes = parse_changes(what_if)
    other = deploy_changed(asked, changes)
    costs = (deployment, cost), (other, estimate_step(other, shape, explain=form.is_data))
    print_result(form, steps_dict, partial(render_steps, question=question), *costs, changes.text, rows="step_time")


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise InputError(f"{name} must be {'0 or more' if least == 0 else 'at least 1'}, not {value}")
    return value
