"""``infercast layouts``: every way to put a model on some GPUs, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options import workload
from infercast.cli.options.printed import Json, print_json
from infercast.cli.progress import runs_bar
from infercast.engines.registry import DEFAULT_ENGINE
from infercast.errors import InputError
from infercast.forecast.layouts import CONCURRENCY, NUM_INPUT, NUM_OUTPUT, ROUNDS, compare_layouts, count_layouts
from infercast.report.layout import show
from infercast.report.layouts import layouts_list, render_layouts
from infercast.serve.workload.too_long import TOO_LONG


def command(
    context: typer.Context,
    model: options.Model,
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            metavar="GPU",
            help="Bundled names or your own TOML files, with commas between them or one an option.",
        ),
    ],
    gpus: Annotated[
        list[str], typer.Option("--gpus", metavar="N,N", help="Numbers of GPUs to fill, with commas between them.")
    ] = ["1,2,4,8"],  # noqa: B006 - read only
    rate: workload.Rate = None,
    arrival: workload.Arrival = "poisson",
    burstiness: workload.Burstiness = 1.0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            help=f"Closed loop: clients of all GPUs together; default {CONCURRENCY}.",
            rich_help_panel=workload.WORKLOAD,
        ),
    ] = None,
    num_requests: workload.NumRequests = None,
    input_len: workload.InputLen = f"{NUM_INPUT}",
    output_len: workload.OutputLen = f"{NUM_OUTPUT}",
    prefix_len: workload.PrefixLen = 0,
    prefix_groups: workload.PrefixGroups = 1,
    trace: workload.Trace = None,
    rate_scale: workload.RateScale = 1.0,
    too_long: workload.TooLong = TOO_LONG[0],
    seed: workload.Seed = 0,
    quantization: options.Quantization = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    engine: options.EngineName = DEFAULT_ENGINE,
    max_num_batched_tokens: options.MaxBatchedTokens = None,
    max_num_seqs: options.MaxSeqs = None,
    max_model_len: options.MaxModelLen = None,
    setting: engine_options.Setting = [],  # noqa: B006 - read only
    network: options.NetworkName = None,
    pcie_topology: options.PcieTopology = None,
    router: options.RouterName = None,
    api_server: options.ApiServer = True,
    predictor: options.PredictorName = "learned",
    as_json: Json = False,
) -> None:
    """Compare tensor, pipeline, data and expert parallelism: what fits, TTFT, TPOT and throughput per GPU.

    Each row is what `infercast simulate` says of that layout with the same workload.

    For example:

      infercast layouts llama-3.3-70b --gpu h100-sxm,h200-sxm,b200-sxm --quantization fp8

      infercast layouts deepseek-v3 --gpu h200-sxm --gpus 8,16 --network infiniband-ndr
    """
    if rate is None and concurrency is None and arrival == "poisson" and trace is None:
        concurrency = context.params["concurrency"] = CONCURRENCY
    load = workload.workload_of(context, ROUNDS * concurrency if concurrency else workload.DEFAULT_COUNT)
    names, counts = options.comma_list("--gpu", gpu), _counts(gpus)
    total = count_layouts(model, names, counts, network)
    with runs_bar("layouts", total) as tell:
        costs = compare_layouts(
            model,
            names,
            num_gpus=counts,
            workload=load,
            settings=engine_options.settings_of(context),
            router=router,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            network=network,
            pcie_topology=pcie_topology,
            api_server=api_server,
            predictor=predictor,
            tell=tell,
        )
    if as_json:
        print_json(layouts_list(costs))
    else:
        show(*render_layouts(model, load, costs))


def _counts(given: list[str]) -> list[int]:
    """Numbers with commas between them."""
    parts = options.comma_list("--gpus", given)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--gpus must be numbers of at least 1 with commas between them, not {','.join(given)!r}")
    return [int(part) for part in parts]
