"""``infercast diagnose``: which kernels stand in the way, and what better ones would buy."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.errors import SaturatedError
from infercast.forecast.deploy import ROUTINGS, deploy
from infercast.forecast.explain.diagnose import diagnose
from infercast.forecast.host_speed import host_from
from infercast.forecast.what_if import deploy_changed, parse_changes
from infercast.report.diagnosis import diagnosis_dict, render_diagnosis
from infercast.report.layout import show
from infercast.serve.workload.too_long import TOO_LONG

DEFAULT_COUNT, DEFAULT_CONCURRENCY = 300, 32


def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    rate: served.Rate = None,
    concurrency: served.Concurrency = None,
    num_requests: served.NumRequests = None,
    input_len: served.InputLen = served.INPUT_LEN,
    output_len: served.OutputLen = served.OUTPUT_LEN,
    trace: served.Trace = None,
    too_long: served.TooLong = TOO_LONG[0],
    seed: served.Seed = 0,
    quantization: options.Quantization = None,
    dtype: engine_options.Dtype = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    all2all_backend: options.All2AllBackend = None,
    moe_backend: options.MoeBackend = "auto",
    expert_routing: options.ExpertRouting = ROUTINGS[0],
    network: options.NetworkName = None,
    api_server: options.ApiServer = True,
    engine: options.EngineName = DEFAULT_ENGINE,
    max_num_batched_tokens: options.MaxBatchedTokens = None,
    max_num_seqs: options.MaxSeqs = None,
    max_model_len: options.MaxModelLen = None,
    enforce_eager: options.EnforceEager = False,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    predictor: options.PredictorName = "learned",
    measurements: options.Measurements = None,
    host: options.HostFile = None,
    what_if: Annotated[
        str | None, typer.Option("--what-if", metavar="CHANGES", help="Diagnose it with changes: sms=160,gpu=...")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Rank kernels by what users would gain if each were as good as the best of its shape.

    Without --rate, --concurrency or --trace, 32 clients send 300 requests in a closed loop.

    For example:

      infercast diagnose qwen3-30b-a3b --gpu h100-sxm

      infercast diagnose llama-3.1-8b --gpu l40s --rate 2 --input-len 2048 --output-len 256
    """
    if trace is None and rate is None and concurrency is None:
        context.params["concurrency"] = DEFAULT_CONCURRENCY
    workload = served.workload_of(context, DEFAULT_COUNT)
    asked = partial(
        deploy,
        model,
        gpu,
        engine_options.settings_of(context),
        quantization=quantization,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        all2all_backend=all2all_backend,
        moe_backend=moe_backend,
        expert_routing=expert_routing,
        network=network,
        api_server=api_server,
        predictor=options.choose_predictor(predictor, None, gpu, measurements),
        host=None if host is None else host_from(host, gpu, engine),
    )
    deployment = asked() if what_if is None else deploy_changed(asked, parse_changes(what_if))
    diagnosis = diagnose(deployment, workload)
    if diagnosis.forecast.saturation is not None:
        raise SaturatedError(f"{diagnosis.forecast.saturation.sentence}; lower --rate or add GPUs")
    if as_json:
        options.print_json(diagnosis_dict(diagnosis))
    else:
        show(*render_diagnosis(diagnosis))
