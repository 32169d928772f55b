"""``infercast layouts``: every way to put a model on some GPUs, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from infercast.cli import options
from infercast.cli.options import WORKLOAD
from infercast.errors import InputError
from infercast.forecast.layouts import Load, compare_layouts
from infercast.report.layout import show
from infercast.report.layouts import layouts_list, render_layouts


def command(
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
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Sequences at once on all GPUs together.", rich_help_panel=WORKLOAD)
    ] = 64,
    input_len: Annotated[int, typer.Option("--input-len", help="Prompt tokens.", rich_help_panel=WORKLOAD)] = 1024,
    output_len: Annotated[int, typer.Option("--output-len", help="Output tokens.", rich_help_panel=WORKLOAD)] = 256,
    quantization: options.Quantization = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    network: options.NetworkName = None,
    pcie_topology: options.PcieTopology = None,
    predictor: options.PredictorName = "learned",
    as_json: options.Json = False,
) -> None:
    """Compare tensor, pipeline, data and expert parallelism: what fits, TTFT, TPOT and throughput by the GPU.

    For example:

      infercast layouts llama-3.3-70b --gpu h100-sxm,h200-sxm,b200-sxm --quantization fp8

      infercast layouts deepseek-v3 --gpu h200-sxm --gpus 8,16 --network infiniband-ndr
    """
    load = Load(concurrency, input_len, output_len)
    costs = compare_layouts(
        model,
        options.comma_list("--gpu", gpu),
        num_gpus=_counts(gpus),
        load=load,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        network=network,
        pcie_topology=pcie_topology,
        predictor=predictor,
    )
    if as_json:
        options.print_json(layouts_list(costs))
    else:
        show(*render_layouts(model, load, costs))


def _counts(given: list[str]) -> list[int]:
    """Numbers with commas between them."""
    parts = options.comma_list("--gpus", given)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--gpus must be numbers of at least 1 with commas between them, not {','.join(given)!r}")
    return [int(part) for part in parts]
