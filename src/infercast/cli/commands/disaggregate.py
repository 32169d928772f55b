"""``infercast disaggregate``: prompts on one pool of GPUs, decoding on another."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from infercast.cli.commands.runs import refuse_overload
from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options import workload
from infercast.cli.progress import simulation_bar
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.errors import InputError
from infercast.forecast.deploy import ROUTINGS, deploy
from infercast.forecast.disaggregate import PROXY_ROUTER, disaggregated_intervals, forecast_disaggregated
from infercast.forecast.host_speed import host_from
from infercast.report.layout import show
from infercast.report.pools import disaggregated_dict, pools_compared_dict, render_disaggregated, render_pools_compared
from infercast.serve.fleet.pool import MOST_ENGINES
from infercast.serve.workload.too_long import TOO_LONG

POOLS = "Pools"


def _size(option: str, what: str) -> typer.models.OptionInfo:
    """An option that is the size of something in a pool."""
    info: typer.models.OptionInfo = typer.Option(option, metavar="N", help=what, rich_help_panel=POOLS)
    return info


def command(
    context: typer.Context,
    model: options.Model,
    prefill_gpu: Annotated[
        str, typer.Option("--prefill-gpu", metavar="GPU", help="GPUs of the prefill pool.", rich_help_panel=POOLS)
    ],
    decode_gpu: Annotated[
        str, typer.Option("--decode-gpu", metavar="GPU", help="GPUs of the decode pool.", rich_help_panel=POOLS)
    ],
    prefill_engines: Annotated[int, _size("--prefill-engines", "Engines of the prefill pool, each for itself.")] = 1,
    prefill_tp: Annotated[int, _size("--prefill-tp", "Tensor parallel size of each.")] = 1,
    prefill_pp: Annotated[int, _size("--prefill-pp", "Pipeline parallel size of each.")] = 1,
    prefill_dp: Annotated[int, _size("--prefill-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    decode_engines: Annotated[int, _size("--decode-engines", "Engines of the decode pool, each for itself.")] = 1,
    decode_tp: Annotated[int, _size("--decode-tp", "Tensor parallel size of each.")] = 1,
    decode_pp: Annotated[int, _size("--decode-pp", "Pipeline parallel size of each.")] = 1,
    decode_dp: Annotated[int, _size("--decode-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    link: Annotated[
        str,
        typer.Option("--link", metavar="NAME", help="Between the pools: nvlink or a network.", rich_help_panel=POOLS),
    ] = "infiniband-ndr",
    router: options.RouterName = None,
    rate: workload.Rate = None,
    arrival: workload.Arrival = "poisson",
    burstiness: workload.Burstiness = 1.0,
    concurrency: workload.Concurrency = None,
    num_requests: workload.NumRequests = None,
    input_len: workload.InputLen = workload.INPUT_LEN,
    output_len: workload.OutputLen = workload.OUTPUT_LEN,
    prefix_len: workload.PrefixLen = 0,
    prefix_groups: workload.PrefixGroups = 1,
    trace: workload.Trace = None,
    rate_scale: workload.RateScale = 1.0,
    too_long: workload.TooLong = TOO_LONG[0],
    seed: workload.Seed = 0,
    quantization: options.Quantization = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
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
    gpu_memory_utilization: options.MemoryUtilization = 0.92,
    block_size: options.BlockSize = None,
    enforce_eager: options.EnforceEager = False,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    predictor: options.PredictorName = "learned",
    host: options.HostFile = None,
    what_if: options.WhatIf = None,
    allow_overload: options.AllowOverload = False,
    steady: options.Steady = False,
    as_json: options.Json = False,
) -> None:
    """Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did.

    For example:

      infercast disaggregate llama-3.1-8b --prefill-gpu h100-sxm --decode-gpu h200-sxm --rate 12

      infercast disaggregate llama-3.3-70b --quantization fp8 --prefill-gpu h200-sxm --prefill-tp 2 --prefill-engines 2
      --decode-gpu h200-sxm --decode-tp 4 --link nvlink --concurrency 64

      infercast disaggregate qwen3-235b-a22b-fp8 --prefill-gpu h200-sxm --prefill-tp 4 --decode-gpu h200-sxm
      --decode-dp 8 --enable-expert-parallel --rate 10
    """
    pools = {
        "prefill": (prefill_gpu, prefill_engines, prefill_tp, prefill_pp, prefill_dp),
        "decode": (decode_gpu, decode_engines, decode_tp, decode_pp, decode_dp),
    }
    for name, (_, *sizes) in pools.items():
        for option, value in zip(("engines", "tp", "pp", "dp"), sizes, strict=True):
            if not 1 <= value <= MOST_ENGINES:
                bound = "at least 1" if value < 1 else f"at most {MOST_ENGINES:,}"
                raise InputError(f"--{name}-{option} must be {bound}, not {value}")
    load = workload.workload_of(context)
    settings = engine_options.settings_of(context)
    asked = [
        partial(
            deploy,
            model,
            gpu,
            settings,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            data_parallel_size=data,
            enable_expert_parallel=enable_expert_parallel,
            all2all_backend=all2all_backend if data > 1 else None,
            moe_backend=moe_backend,
            expert_routing=expert_routing,
            network=network,
            api_server=api_server,
            predictor=predictor,
            host=None if host is None else host_from(host, gpu, engine),
        )
        for gpu, _, tensor, pipeline, data in pools.values()
    ]
    serve = partial(
        forecast_disaggregated,
        workload=load,
        prefill_instances=prefill_engines,
        decode_instances=decode_engines,
        link=link,
        router=router or PROXY_ROUTER,
        steady=steady,
    )
    with simulation_bar(len(load.requests)) as progress:
        forecast = serve(asked[0](), asked[1](), progress=progress)
    refuse_overload(forecast.saturation, allow_overload)
    if what_if is None:
        intervals = disaggregated_intervals(forecast)
        if as_json:
            options.print_json(disaggregated_dict(forecast, intervals))
        else:
            show(*render_disaggregated(forecast, intervals))
        return
    from infercast.forecast.what_if import deploy_changed, parse_changes  # noqa: PLC0415 - most runs need none of it

    changes = parse_changes(what_if)
    with simulation_bar(len(load.requests)) as progress:
        prefill, decode = (deploy_changed(each, changes) for each in asked)
        other = serve(prefill, decode, router=changes.router or router or PROXY_ROUTER, progress=progress)
    refuse_overload(other.saturation, allow_overload)
    if as_json:
        options.print_json(pools_compared_dict((forecast, other), changes.text))
    else:
        show(*render_pools_compared((forecast, other), changes.text))
