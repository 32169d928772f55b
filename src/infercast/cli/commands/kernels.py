"""``infercast kernels``: where the time of one step goes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options.printed import Json, print_json
from infercast.engines.registry import DEFAULT_ENGINE, engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import ROUTINGS, deploy, load_model
from infercast.forecast.explain.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.what_if import deploy_changed, parse_changes
from infercast.report.comparison import render_steps, steps_dict
from infercast.report.kernels import render_step, step_dict
from infercast.report.layout import show


def command(
    invocation: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    prefill: Annotated[int | None, typer.Option("--prefill", help="Tokens of one prompt, in one step.")] = None,
    decode: Annotated[int | None, typer.Option("--decode", help="Sequences that each compute one new token.")] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens before the new ones, of each sequence.")
    ] = None,
    quantization: options.Quantization = None,
    dtype: engine_options.Dtype = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    tensor_parallel_size: options.TensorParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    all2all_backend: options.All2AllBackend = None,
    moe_backend: options.MoeBackend = "auto",
    expert_routing: options.ExpertRouting = ROUTINGS[0],
    network: options.NetworkName = None,
    pcie_topology: options.PcieTopology = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens",
            metavar="N",
            help="Most tokens in one step; default: 8192, or this step's.",
            rich_help_panel=options.ENGINE,
        ),
    ] = None,
    engine: options.EngineName = DEFAULT_ENGINE,
    enforce_eager: options.EnforceEager = False,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    explain: Annotated[bool, typer.Option("--explain", help="Show the terms that each estimate is made of.")] = False,
    predictor: options.PredictorName = "learned",
    anchors: options.Anchors = None,
    measurements: options.Measurements = None,
    what_if: options.WhatIf = None,
    as_json: Json = False,
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
        shape = prefill_shape(_positive("--prefill", prefill), _not_negative("--context", cached))
        question = f"prefill of {prefill:,} tokens" + (f" after {cached:,} cached ones" if cached else "")
    else:
        assert decode is not None
        before = 1024 if context is None else context
        shape = decode_shape(_positive("--decode", decode), _not_negative("--context", before))
        question = f"decode of {decode:,} sequences, each after {before:,} tokens"
    longest, positions = shape.new_tokens[0] + shape.computed[0], load_model(model).max_positions
    if longest > positions:
        raise InputError(
            f"a {question} needs {longest} tokens in one sequence, above the {positions} positions of {model}"
        )
    most_tokens = max(shape.num_tokens, 8192) if max_num_batched_tokens is None else max_num_batched_tokens
    room = engine_named(engine).room_for(most_tokens, max(len(shape.new_tokens), min(most_tokens, 256)), longest)
    settings = engine_options.settings_of(invocation, **room)
    asked = partial(
        deploy,
        model,
        gpu,
        settings,
        quantization=quantization,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        all2all_backend=all2all_backend,
        moe_backend=moe_backend,
        expert_routing=expert_routing,
        network=network,
        pcie_topology=pcie_topology,
        predictor=options.choose_predictor(predictor, anchors, gpu, measurements),
    )
    deployment = asked()
    cost = estimate_step(deployment, shape, explain=explain or as_json)
    if what_if is not None:
        changes = parse_changes(what_if)
        other = deploy_changed(asked, changes)
        costs = (deployment, cost), (other, estimate_step(other, shape, explain=as_json))
        if as_json:
            print_json(steps_dict(*costs, changes.text))
        else:
            show(*render_steps(*costs, changes.text, question))
        return
    if as_json:
        print_json(step_dict(deployment, cost))
    else:
        show(*render_step(deployment, cost, question, explain=explain))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, not {value}")
    return value


def _not_negative(name: str, value: int) -> int:
    if value < 0:
        raise InputError(f"{name} must be 0 or more, not {value}")
    return value
