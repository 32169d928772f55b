"""``infercast energy``: the power limit or the clock that saves most energy while the SLO holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infercast.cli.options import plots
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.decision import Decided, of_decision, slo_of, tariff_of
from infercast.cli.options.facility import facility_of
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.errors import InputError
from infercast.forecast.sweep.axis import parse_numbers
from infercast.forecast.sweep.savings import HALVINGS, VALUES, save_energy
from infercast.report.files import write_whole
from infercast.report.savings import render_savings, savings_dict, savings_rows


@takes(Served, Decided, Deployed)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    power_limits: Annotated[
        str | None,
        plots.of_axis("--power-limits", metavar="A:B:N", help="Watts of a GPU board: 400:700:7, or 400,500,600."),
    ] = None,
    gpu_clocks: Annotated[
        str | None,
        plots.of_axis("--gpu-clocks", metavar="A:B:N", help="MHz to lock the GPU at instead: 1000:1980:8."),
    ] = None,
    least_odds: Annotated[
        float | None,
        of_decision(
            "--odds", metavar="P", help="How sure the SLO must be to hold; default: 0.8; 0: by the forecast itself."
        ),
    ] = None,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    router: options.RouterName = None,
    csv: plots.Csv = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Find the power limit or the clock that saves most energy while an SLO holds: joules per token and latencies.

    Each row is what `infercast simulate` says with --power-limit or --gpu-clock; energy is counted at the wall.

    For example:

      infercast energy llama-3.1-8b --gpu h200-sxm --rate 12 --slo "ttft_p99<500ms,tpot_p95<15ms"

      infercast energy qwen3-32b --gpu h100-sxm -q fp8 --concurrency 64 --power-limits 300:700:9

      infercast energy llama-3.3-70b --gpu h200-sxm -q fp8 -tp 2 --rate 4 --gpu-clocks 900:1980:7 --pue 1.2
    """
    if power_limits is not None and gpu_clocks is not None:
        raise InputError("--power-limits and --gpu-clocks both have values; vary one of them")
    fixed = [name for name, option in (("power_limit_w", power_limits), ("gpu_clock_mhz", gpu_clocks)) if option]
    for name in fixed or ["power_limit_w"]:
        if given.get(name) is not None:
            flag = "--power-limit" if name == "power_limit_w" else "--gpu-clock"
            raise InputError(f"{flag} {given[name]:g} is one value of what is varied here; leave it out")
    plots.check_files(None, ("--csv", csv))
    limits = None if power_limits is None else parse_numbers(power_limits, "--power-limits")
    clocks = None if gpu_clocks is None else parse_numbers(gpu_clocks, "--gpu-clocks")
    load = served.workload_of(context)
    asked = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )
    if router is not None and data_parallel_size == 1:
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")
    source, device, settings = asked.args
    total = len(limits or clocks or range(VALUES)) + 2 * HALVINGS
    with runs_bar("energy", total) as tell:
        found = save_energy(
            source,
            device,
            load,
            power_limits=limits,
            clocks=clocks,
            settings=settings,
            slo=slo_of(given),
            least_odds=least_odds,
            price=tariff_of(given),
            facility=facility_of(given),
            router=router,
            tell=tell,
            **asked.keywords,
        )
    if csv is not None:
        write_whole(csv, savings_rows(found))
    print_result(form, savings_dict, render_savings, found, rows="points")
