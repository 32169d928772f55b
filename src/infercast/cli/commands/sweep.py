"""``infercast sweep``: one deployment at several loads, or one load on several settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import __version__
from infercast.cli.options import plots
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.decision import Decided, slo_of, tariff_of
from infercast.cli.options.engine import is_given
from infercast.cli.options.facility import facility_of
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.errors import InputError
from infercast.forecast.sweep.axis import CONCURRENCY, RATE, parse_numbers
from infercast.forecast.sweep.sweep import sweep
from infercast.report.files import write_whole
from infercast.report.sweep import render_sweep
from infercast.report.sweep_data import sweep_dict, sweep_rows


@takes(Served, Decided, Deployed)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    rates: Annotated[
        str | None, plots.of_axis("--rates", metavar="A:B:N", help="Requests per second: 1:40:8, or 1,5,10,20.")
    ] = None,
    concurrencies: Annotated[
        str | None,
        plots.of_axis("--concurrencies", metavar="A:B:N", help="Closed loop: numbers of clients, as for --rates."),
    ] = None,
    setting: Annotated[
        list[str],
        plots.of_axis(
            "--setting",
            metavar="NAME=V,V",
            help="Values of what --what-if can change: max_num_batched_tokens=2048,8192; with one value it is fixed.",
        ),
    ] = [],  # noqa: B006 - read only
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    router: options.RouterName = None,
    plot: plots.Plot = None,
    csv: plots.Csv = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Sweep a rate, a number of clients or a setting: TTFT, TPOT, throughput, goodput, cost, knee and saturation.

    Each row is what `infercast simulate` says of that value with the same options.

    For example:

      infercast sweep llama-3.1-8b --gpu h200-sxm --rates 5:40:8 --slo "ttft_p99<500ms,tpot_p95<30ms"

      infercast sweep llama-3.1-8b --gpu h200-sxm --rate 20 --setting max_num_batched_tokens=2048,4096,8192,16384

      infercast sweep qwen3-32b --gpu h100-sxm --rate 2 --setting tensor_parallel_size=1,2,4 --plot sweep.html
    """
    vary = _split_settings(context, setting)
    asked_axes = [
        name for name, value in (("--rates", rates), ("--concurrencies", concurrencies), ("--setting", vary)) if value
    ]
    if len(asked_axes) != 1:
        several = f"not of {' and '.join(asked_axes)}" if asked_axes else "and none is given"
        raise InputError(f"a sweep is along --rates, --concurrencies or one --setting NAME=VALUE,VALUE, {several}")
    plots.check_files(plot, ("--csv", csv))
    along: dict[str, Any] = {"vary": vary}
    for name, text in ((RATE, rates), (CONCURRENCY, concurrencies)):
        if text:
            along = {"rates" if name == RATE else "concurrencies": _loads(context, name, text)}
    load = served.workload_of(context)
    asked = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )
    if router is not None and data_parallel_size == 1 and not vary:
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")
    source, device, settings = asked.args
    total = len(next(iter(along.values()))) if not vary else len(vary[1])
    with runs_bar("sweep", total) as tell:
        found = sweep(
            source,
            device,
            load,
            **along,
            settings=settings,
            slo=slo_of(given),
            price=tariff_of(given),
            facility=facility_of(given),
            router=router,
            tell=tell,
            **asked.keywords,
        )
    if csv is not None:
        write_whole(csv, sweep_rows(found))
    if plot is not None:
        from infercast.report.page.sweep_page import sweep_plot  # noqa: PLC0415 - only those who ask for it

        plots.write_plot(Path(plot), sweep_plot(found, __version__))
    print_result(form, sweep_dict, render_sweep, found, rows="points")


def _split_settings(context: typer.Context, given: list[str]) -> tuple[str, list[str]] | None:
    """The one setting with several values; those with one stay what they are for other commands."""
    several = [text for text in given if "," in text]
    if len(several) > 1:
        raise InputError(f"--setting {several[0]} and --setting {several[1]} both have several values; sweep one")
    context.params["setting"] = [text for text in given if "," not in text]
    if not several:
        return None
    name, equals, values = several[0].partition("=")
    if not equals or not all(value.strip() for value in values.split(",")):
        raise InputError(f"--setting {several[0]!r} must be NAME=VALUE,VALUE")
    return name.strip().replace("-", "_"), [value.strip() for value in values.split(",")]


def _loads(context: typer.Context, name: str, text: str) -> list[Any]:
    """The values of a load, the first of which makes the workload that the others are variants of."""
    for other in (RATE, CONCURRENCY):
        if is_given(context, other):
            raise InputError(f"--{other} has no meaning with --{'rates' if name == RATE else 'concurrencies'}")
    numbers = parse_numbers(text, "--rates" if name == RATE else "--concurrencies", whole=name == CONCURRENCY)
    values = [int(number) for number in numbers] if name == CONCURRENCY else list(numbers)
    if values and not (context.params["trace"] is not None and name == CONCURRENCY):
        context.params[name] = values[0]
    return values
