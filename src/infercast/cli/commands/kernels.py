"""``infercast kernels``, ``diagnose`` and ``estimate``: kernels of a step, slow ones of a run, single ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.outputs import Form, print_result
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
from infercast.forecast.explain.kernels import decode_shape, estimate_step, prefill_shape, verify_shape
from infercast.hardware import load_gpu, with_network
from infercast.predict.learned import make_predictor
from infercast.report.comparison import render_steps, steps_dict
from infercast.report.kernels import diagnosis_dict, power_dict, power_facts, render_diagnosis, render_step, step_dict
from infercast.report.terminal import facts, grid, section
from infercast.units import format_seconds

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


DEFAULT_COUNT, DEFAULT_CONCURRENCY = 300, 32


@takes(Served, Deployed)
def diagnose_command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    what_if: Annotated[
        str | None, typer.Option("--what-if", metavar="CHANGES", help="Diagnose it with changes: sms=160,gpu=...")
    ] = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Rank kernels by what users would gain if each were as good as the best of its shape.

    Without --rate, --concurrency or --trace, 32 clients send 300 requests in a closed loop.

    For example:

      infercast diagnose qwen3-30b-a3b --gpu h100-sxm

      infercast diagnose llama-3.1-8b --gpu l40s --rate 2 --input-len 2048 --output-len 256
    """
    said = any(given[name] is not None for name in ("trace", "rate", "concurrency"))
    if not said and given["arrival"] == "poisson":
        context.params["concurrency"] = DEFAULT_CONCURRENCY
    workload = served.workload_of(context, DEFAULT_COUNT)
    asked = asked_deployment(
        context, gpu, tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size
    )
    deployment = asked() if what_if is None else deploy_changed(asked, parse_changes(what_if))
    diagnosis = diagnose(deployment, workload)
    if diagnosis.forecast.saturation is not None:
        raise SaturatedError(f"{diagnosis.forecast.saturation.sentence}; lower --rate or add GPUs")
    print_result(form, diagnosis_dict, render_diagnosis, diagnosis, rows="findings")


WORDS = {
    ALONE: "latency, alone",
    ENGINE: "inside an engine",
    LASTING: "sustained, at the power limit",
}
SIZES = {name for shape in SHAPES.values() for name in (*shape.sizes, *shape.optional)}


def _size(meaning: str, *names: str) -> Any:
    return typer.Option(*names, rich_help_panel="Sizes", metavar="N", show_default=False, help=meaning)


def _word(meaning: str) -> Any:
    return typer.Option(rich_help_panel="Formats", metavar="T", show_default=False, help=meaning)


def estimate_command(
    context: typer.Context,
    family: Annotated[str, typer.Argument(metavar="FAMILY", help=f"One of {', '.join(SHAPES)}.")],
    gpu: options.GpuName,
    m: Annotated[int | None, _size("Products: rows, the tokens.")] = None,
    n: Annotated[int | None, _size("Columns, the outputs.")] = None,
    k: Annotated[int | None, _size("What is summed over, the inputs.")] = None,
    batch: Annotated[int | None, _size("Attention: sequences.")] = None,
    q_len: Annotated[int | None, _size("Prompt tokens of each.")] = None,
    prefix: Annotated[int | None, _size("Tokens cached before each prompt; none by default.")] = None,
    kv_len: Annotated[int | None, _size("Tokens before, of each decoding sequence.")] = None,
    heads: Annotated[int | None, _size("Query heads, also of rope.")] = None,
    kv_heads: Annotated[int | None, _size("Key-value heads.")] = None,
    head_dim: Annotated[int | None, _size("Values per head.")] = None,
    window: Annotated[int | None, _size("Sliding window; 0, the default: none.")] = None,
    key_heads: Annotated[int | None, _size("Recurrent layers: heads of keys, or groups.")] = None,
    key_dim: Annotated[int | None, _size("Values per key, or of a state space's state.")] = None,
    value_dim: Annotated[int | None, _size("Values per head.")] = None,
    chunk: Annotated[int | None, _size("Tokens that a scan takes at a time.")] = None,
    channels: Annotated[int | None, _size("Convolutions: channels.")] = None,
    taps: Annotated[int | None, _size("Tokens that one is made of; 4 by default.")] = None,
    tokens: Annotated[int | None, _size("Experts: tokens of the step.")] = None,
    hidden: Annotated[int | None, _size("The model's width.")] = None,
    inter: Annotated[int | None, _size("An expert's width.")] = None,
    experts: Annotated[int | None, _size("Number of experts.")] = None,
    topk: Annotated[int | None, _size("Experts per token; keys or blocks chosen for one.")] = None,
    compress: Annotated[int | None, _size("Sparse attention: tokens of one entry; 1 by default.")] = None,
    rows: Annotated[int | None, _size("Memory-bound kernels: rows, the tokens.")] = None,
    width: Annotated[int | None, _size("Values per row.")] = None,
    bytes_: Annotated[int | None, _size("Collectives: bytes on each GPU.", "--bytes")] = None,
    gpus: Annotated[int | None, _size("GPUs that take part.")] = None,
    dtype: Annotated[str | None, _word("Of activations: bf16 by default.")] = None,
    weight_dtype: Annotated[str | None, _word("Of weights: that of activations by default.")] = None,
    kv_dtype: Annotated[str | None, _word("Of keys and values: bf16 by default.")] = None,
    state_dtype: Annotated[str | None, _word("Of recurrent states: fp32 by default.")] = None,
    table: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="A CSV of shapes; prints CSV."),
    ] = None,
    network: options.NetworkName = None,
    predictor: options.PredictorName = "learned",
    anchors: options.Anchors = None,
    measurements: options.Measurements = None,
    form: Form = Form.TABLE,
) -> None:
    """Estimate the latency and the power of one kernel, or of a CSV of shapes: 80 % interval, source and bound.

    Latency is of one launch alone; then of the same kernel inside an engine, and without a pause at the power limit.

    For example:

      infercast estimate gemm --m 4096 --n 14336 --k 4096 --dtype bf16 --gpu h200-sxm

      infercast estimate decode --batch 32 --kv-len 1400 --heads 32 --kv-heads 8 --head-dim 128 --gpu h200-sxm

      infercast estimate decode --csv shapes.csv --gpu b200-sxm
    """
    given = {name.rstrip("_"): value for name, value in context.params.items()}
    values = {name: value for name, value in given.items() if name in SIZES and value is not None}
    chosen = options.choose_predictor(predictor, anchors, gpu, measurements)
    device = with_network(load_gpu(gpu), network)
    used = make_predictor(chosen) if isinstance(chosen, str) else chosen
    if table is not None:
        if values:
            raise InputError(f"--csv brings its own sizes; leave out {', '.join(f'--{name}' for name in values)}")
        _print_table(list(estimate_table(used, device, family, table)), form)
        return
    found = {each: estimate_kernel(used, device, family, values, each) for each in CONDITIONS}
    estimate = found[ALONE]
    numbers = {each: {end: float(getattr(found[each], end)) for end in ENDS} for each in CONDITIONS}
    sizes = ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in values.items()
    )
    rows_ = [(WORDS[each], _shown(numbers[each])) for each in CONDITIONS]
    rows_.append(("source", estimate.source))
    power = power_of(device, family, values, estimate)
    rows_ += [("bound by", str(estimate.bound)), *power_facts(power)]
    print_result(
        form,
        lambda: {
            **numbers[ALONE],
            "condition": ALONE,
            **{each: numbers[each] for each in CONDITIONS if each != ALONE},
            "source": estimate.source,
            "bound": str(estimate.bound),
            "power": power_dict(power),
        },
        lambda: [section(f"{family} on {device.title}: {sizes}", facts(rows_))],
    )


def _shown(numbers: dict[str, float]) -> str:
    seconds, low, high = (format_seconds(numbers[end]) for end in ENDS)
    return f"{seconds} (80 % interval {low} to {high})"


def _print_table(rows: list[dict[str, Any]], form: Form) -> None:
    """The table with its estimates: as CSV, in which it came, unless another form is asked for."""

    def tables() -> list[Any]:
        return [grid(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])]

    print_result(Form.CSV if form is Form.TABLE else form, lambda: rows, tables)
