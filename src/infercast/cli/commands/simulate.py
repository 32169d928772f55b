"""``infercast simulate``: what users of a deployment would see."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from infercast.cli import outputs
from infercast.cli.commands.runs import compare_runs, explain_run, refuse_overload, show_fleet
from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.progress import simulation_bar
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.errors import InputError
from infercast.forecast.deploy import ROUTINGS, deploy
from infercast.forecast.intervals.intervals import forecast_intervals
from infercast.forecast.serving import simulate
from infercast.report.layout import show
from infercast.report.serving import forecast_dict, render_forecast
from infercast.serve.workload.too_long import TOO_LONG


def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    rate: served.Rate = None,
    arrival: served.Arrival = "poisson",
    burstiness: served.Burstiness = 1.0,
    concurrency: served.Concurrency = None,
    num_requests: served.NumRequests = None,
    input_len: served.InputLen = served.INPUT_LEN,
    output_len: served.OutputLen = served.OUTPUT_LEN,
    prefix_len: served.PrefixLen = 0,
    prefix_groups: served.PrefixGroups = 1,
    trace: served.Trace = None,
    rate_scale: served.RateScale = 1.0,
    too_long: served.TooLong = TOO_LONG[0],
    seed: served.Seed = 0,
    allow_overload: options.AllowOverload = False,
    steady: options.Steady = False,
    quantization: options.Quantization = None,
    dtype: engine_options.Dtype = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    all2all_backend: options.All2AllBackend = None,
    moe_backend: options.MoeBackend = "auto",
    language_model_only: options.LanguageModelOnly = False,
    expert_routing: options.ExpertRouting = ROUTINGS[0],
    network: options.NetworkName = None,
    pcie_topology: options.PcieTopology = None,
    router: options.RouterName = None,
    api_server: options.ApiServer = True,
    engine: options.EngineName = DEFAULT_ENGINE,
    max_num_batched_tokens: options.MaxBatchedTokens = None,
    max_num_seqs: options.MaxSeqs = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.MemoryUtilization = 0.92,
    block_size: options.BlockSize = None,
    enable_prefix_caching: engine_options.PrefixCaching = True,
    async_scheduling: engine_options.AsyncScheduling = True,
    enable_chunked_prefill: engine_options.ChunkedPrefill = True,
    long_prefill_token_threshold: engine_options.LongPrefill = 0,
    num_gpu_blocks_override: engine_options.NumBlocks = None,
    compilation_config: engine_options.CompilationConfig = None,
    cudagraph_capture_sizes: engine_options.CaptureSizes = None,
    max_cudagraph_capture_size: engine_options.LargestCapture = None,
    scheduling_policy: engine_options.SchedulingPolicy = "fcfs",
    decode_context_parallel_size: engine_options.DecodeContextParallel = 1,
    enforce_eager: options.EnforceEager = False,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    predictor: options.PredictorName = "learned",
    anchors: options.Anchors = None,
    measurements: options.Measurements = None,
    host: options.HostFile = None,
    breakdown: Annotated[
        bool,
        typer.Option("--breakdown", metavar="", help="Say where every second goes: kernels, host, waiting, requests."),
    ] = False,
    what_if: options.WhatIf = None,
    report: outputs.Report = None,
    trace_out: outputs.TraceOut = None,
    trace_window: outputs.TraceWindow = outputs.WINDOW,
    as_json: options.Json = False,
) -> None:
    """Simulate a served workload: TTFT, TPOT, throughput, load, and where GPU time goes.

    For example:

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12

      infercast simulate ./config.json --gpu l40s --concurrency 32 --input-len 2048 --output-len 256

      infercast simulate llama-3.3-70b --gpu h100-sxm --quantization fp8 -tp 4 -dp 2 --router prefix_aware --rate 8

      infercast simulate qwen3-32b --gpu h100-sxm --quantization fp8 --trace azure.csv --rate-scale 0.5
    """
    files = outputs.outputs_of(report, trace_out, trace_window)
    workload = served.workload_of(context)
    named_host = None
    if host is not None:
        from infercast.forecast.host_speed import host_from  # noqa: PLC0415 - as above

        named_host = host_from(host, gpu, engine)
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
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        all2all_backend=all2all_backend,
        moe_backend=moe_backend,
        language_model_only=language_model_only,
        expert_routing=expert_routing,
        network=network,
        pcie_topology=pcie_topology,
        api_server=api_server,
        predictor=options.choose_predictor(predictor, anchors, gpu, measurements),
        host=named_host,
    )
    if what_if is not None:
        if files:
            raise InputError("--what-if shows two runs side by side; ask for --report or --trace-out of one")
        compare_runs(asked, what_if, workload, router, allow_overload, as_json, breakdown, steady)
        return
    deployment = asked()
    if router is not None and data_parallel_size == 1:
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")
    if breakdown or files:
        explain_run(deployment, workload, router, allow_overload, as_json, files, breakdown, steady)
        return
    if data_parallel_size > 1:
        show_fleet(deployment, workload, router, allow_overload, as_json, steady)
        return
    with simulation_bar(len(workload.requests)) as progress:
        forecast = simulate(deployment, workload, progress=progress, steady=steady)
    refuse_overload(forecast.saturation, allow_overload)
    intervals = forecast_intervals(forecast)
    if as_json:
        options.print_json(forecast_dict(forecast, intervals))
    else:
        show(*render_forecast(forecast, intervals))
