"""``infercast layouts``: every way to put a model on some GPUs, side by side."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from infercast.cli import completion
from infercast.cli.options import engine as engine_options
from infercast.cli.options import shared as options
from infercast.cli.options import workload
from infercast.cli.options.decision import Decided, slo_of, tariff_of
from infercast.cli.options.facility import facility_of
from infercast.cli.options.groups import Deployed, Served, asked_calibration, takes
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.errors import InputError
from infercast.forecast.layouts import CONCURRENCY, NUM_INPUT, NUM_OUTPUT, compare_layouts, count_layouts
from infercast.report.layouts import layouts_list, render_layouts

OF_LAYOUTS = ("quantization", "kv_cache_dtype", "network", "pcie_topology", "api_server", "predictor")
"""Options that `compare_layouts` takes as they are ..."""
OF_ENGINE = (
    "engine",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "setting",
    "speculative_config",
    "acceptance",
)
"""... and those that settings are made of."""


@takes(Served, Decided, Deployed, only=(*OF_LAYOUTS, *OF_ENGINE, "calibration"))
def command(
    context: typer.Context,
    model: options.Model,
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            metavar="GPU",
            autocompletion=completion.gpus,
            help="Bundled names or your own TOML files, with commas between them or one an option.",
        ),
    ],
    gpus: Annotated[
        list[str], typer.Option("--gpus", metavar="N,N", help="Numbers of GPUs to fill, with commas between them.")
    ] = ["1,2,4,8"],  # noqa: B006 - read only
    concurrency: Annotated[
        int | None,
        options.of_workload("--concurrency", help=f"Closed loop: clients of all GPUs together; default {CONCURRENCY}."),
    ] = None,
    input_len: workload.InputLen = f"{NUM_INPUT}",
    output_len: workload.OutputLen = f"{NUM_OUTPUT}",
    router: options.RouterName = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Compare tensor, pipeline, data and expert parallelism: what fits, TTFT, TPOT and throughput per GPU.

    Each row is what `infercast simulate` says of that layout with the same workload.

    For example:

      infercast layouts llama-3.3-70b --gpu h100-sxm,h200-sxm,b200-sxm --quantization fp8

      infercast layouts deepseek-v3 --gpu h200-sxm --gpus 8,16 --network infiniband-ndr

      infercast layouts qwen3-32b --gpu h100-sxm,l40s --rate 4 --slo "ttft_p99<2s,tpot_p95<50ms" --provider aws
    """
    if concurrency is None and given["rate"] is None and given["arrival"] == "poisson" and given["trace"] is None:
        concurrency = context.params["concurrency"] = CONCURRENCY
    load = workload.workload_of(context)
    slo, tariff = slo_of(given), tariff_of(given)
    names, counts = options.comma_list("--gpu", gpu), _counts(gpus)
    total = count_layouts(model, names, counts, given["network"])
    with runs_bar("layouts", total) as tell:
        costs = compare_layouts(
            model,
            names,
            num_gpus=counts,
            workload=load,
            settings=engine_options.settings_of(context),
            router=router,
            slo=slo,
            tariff=tariff,
            facility=facility_of(given),
            tell=tell,
            calibration=asked_calibration(given),
            **{name: given[name] for name in OF_LAYOUTS},
        )
    print_result(form, layouts_list, partial(render_layouts, model, load, tariff=tariff), costs)


def _counts(given: list[str]) -> list[int]:
    """Numbers with commas between them."""
    parts = options.comma_list("--gpus", given)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--gpus must be numbers of at least 1 with commas between them, not {','.join(given)!r}")
    return [int(part) for part in parts]
