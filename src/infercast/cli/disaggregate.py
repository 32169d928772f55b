"""``infercast disaggregate``: prompts on one pool of GPUs, decoding on another."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli import options
from infercast.cli.options import WORKLOAD
from infercast.cli.runs import refuse_overload
from infercast.engine.settings import DEFAULT_ENGINE, EngineSettings
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.disaggregate import disaggregated_intervals, forecast_disaggregated
from infercast.forecast.fleet import DEFAULT_ROUTER
from infercast.report.fleet import disaggregated_dict, render_disaggregated
from infercast.report.layout import show
from infercast.serve.lengths import parse_lengths
from infercast.serve.workload import synthetic_workload

POOLS = "Pools"


def command(
    model: options.Model,
    prefill_gpu: Annotated[
        str, typer.Option("--prefill-gpu", metavar="GPU", help="GPUs that compute prompts.", rich_help_panel=POOLS)
    ],
    decode_gpu: Annotated[
        str, typer.Option("--decode-gpu", metavar="GPU", help="GPUs that produce tokens.", rich_help_panel=POOLS)
    ],
    prefill_tp: Annotated[
        int, typer.Option("--prefill-tp", metavar="N", help="GPUs an engine for prompts.", rich_help_panel=POOLS)
    ] = 1,
    prefill_engines: Annotated[
        int, typer.Option("--prefill-engines", metavar="N", help="Engines for prompts.", rich_help_panel=POOLS)
    ] = 1,
    decode_tp: Annotated[
        int, typer.Option("--decode-tp", metavar="N", help="GPUs an engine for decoding.", rich_help_panel=POOLS)
    ] = 1,
    decode_engines: Annotated[
        int, typer.Option("--decode-engines", metavar="N", help="Engines for decoding.", rich_help_panel=POOLS)
    ] = 1,
    link: Annotated[
        str,
        typer.Option("--link", metavar="NAME", help="Between the pools: nvlink or a network.", rich_help_panel=POOLS),
    ] = "infiniband-ndr",
    router: options.RouterName = DEFAULT_ROUTER,
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Requests a second.", rich_help_panel=WORKLOAD)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Closed loop: so many clients.", rich_help_panel=WORKLOAD)
    ] = None,
    num_requests: Annotated[
        int, typer.Option("--num-requests", "-n", help="How many in all.", rich_help_panel=WORKLOAD)
    ] = 1000,
    input_len: Annotated[
        str, typer.Option("--input-len", help="Prompt tokens, as for simulate.", rich_help_panel=WORKLOAD)
    ] = "lognormal:700:0.9:16:8000",
    output_len: Annotated[
        str, typer.Option("--output-len", help="Output tokens.", rich_help_panel=WORKLOAD)
    ] = "lognormal:180:0.8:4:1000",
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result.", rich_help_panel=WORKLOAD)] = 0,
    quantization: options.Quantization = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    engine: options.EngineName = DEFAULT_ENGINE,
    max_num_batched_tokens: options.MaxBatchedTokens = None,
    max_num_seqs: options.MaxSeqs = None,
    max_model_len: options.MaxModelLen = None,
    predictor: options.PredictorName = "learned",
    allow_overload: options.AllowOverload = False,
    as_json: options.Json = False,
) -> None:
    """Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did.

    For example:

      infercast disaggregate llama-3.1-8b --prefill-gpu h100-sxm --decode-gpu h200-sxm --rate 12

      infercast disaggregate llama-3.3-70b --quantization fp8 --prefill-gpu h200-sxm --prefill-tp 2 --prefill-engines 2
      --decode-gpu h200-sxm --decode-tp 4 --link nvlink --concurrency 64
    """
    if rate is None and concurrency is None:
        raise InputError("say how requests arrive: --rate R or --concurrency N")
    for option, value in (
        ("--prefill-tp", prefill_tp), ("--prefill-engines", prefill_engines),
        ("--decode-tp", decode_tp), ("--decode-engines", decode_engines),
    ):  # fmt: skip
        if value < 1:
            raise InputError(f"{option} must be at least 1, not {value}")
    settings = EngineSettings(
        engine=engine,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )
    prefill, decode = (
        deploy(
            model,
            gpu,
            settings,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor,
            data_parallel_size=engines,
            predictor=predictor,
        )
        for gpu, tensor, engines in (
            (prefill_gpu, prefill_tp, prefill_engines),
            (decode_gpu, decode_tp, decode_engines),
        )
    )
    workload = synthetic_workload(
        rate=rate,
        concurrency=concurrency,
        count=num_requests,
        input_lengths=parse_lengths(input_len, "--input-len"),
        output_lengths=parse_lengths(output_len, "--output-len"),
        seed=seed,
    )
    forecast = forecast_disaggregated(prefill, decode, workload, link=link, router=router)
    refuse_overload(forecast.saturation, allow_overload)
    intervals = disaggregated_intervals(forecast)
    if as_json:
        options.print_json(disaggregated_dict(forecast, intervals))
    else:
        show(*render_disaggregated(forecast, intervals))
