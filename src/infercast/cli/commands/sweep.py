"""``infercast sweep``, ``energy`` and ``speculate``: one deployment along loads, settings or power limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import __version__
from infercast.cli import outputs as plots
from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.cost import Decided, facility_of, of_decision, slo_of, tariff_of
from infercast.cli.options.deployment import is_given
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.outputs import Form, print_result, runs_bar
from infercast.errors import InputError
from infercast.forecast.speculation import USUAL_CLIENTS, break_even
from infercast.forecast.sweep import CONCURRENCY, HALVINGS, RATE, VALUES, parse_numbers, save_energy, sweep
from infercast.report.files import write_whole
from infercast.report.sweep import (
    break_even_dict,
    render_break_even,
    render_savings,
    render_sweep,
    savings_dict,
    savings_rows,
    sweep_dict,
    sweep_rows,
)
from infercast.serve.workload.request import Workload


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
        from infercast.report.page.figures import sweep_plot  # noqa: PLC0415 - only those who ask for it

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


@takes(Served, Decided, Deployed)
def energy_command(
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


OF_CLIENTS = (
    "num_requests", "input_len", "output_len", "declared_output_len", "prefix_len", "prefix_groups", "too_long", "seed",
)  # fmt: skip
"""What can be said of requests that clients send one after the other."""


@takes(Deployed, Served, only=OF_CLIENTS)
def speculate_command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    concurrencies: Annotated[
        str | None,
        plots.of_axis(
            "--concurrencies", metavar="A:B:N", help="Numbers of clients: 1:256:9, or 1,8,64; default: 1, 2, 4 to 512."
        ),
    ] = None,
    tensor_parallel_size: options.TensorParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    plot: plots.Plot = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Find the load at which speculative decoding stops paying: tokens/s and TPOT with and without it, by clients.

    For example:

      infercast speculate llama-3.1-8b --gpu h200-sxm --acceptance 0.7 --speculative-config
      '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'

      infercast speculate deepseek-r1 --gpu h200-sxm -tp 8 --plot pays.html --speculative-config
      '{"method": "mtp", "num_speculative_tokens": 1}'
    """
    plots.check_files(plot)
    numbers = None
    if concurrencies is not None:
        numbers = [int(each) for each in parse_numbers(concurrencies, "--concurrencies", whole=True)]
    asked = asked_deployment(
        context, gpu, tensor_parallel_size=tensor_parallel_size, data_parallel_size=data_parallel_size
    )
    with runs_bar("loads", len(numbers or USUAL_CLIENTS)) as tell:
        found = break_even(asked, _clients(context), numbers, tell)
    if plot is not None:
        from infercast.report.page.figures import break_even_plot  # noqa: PLC0415 - only those who ask

        plots.write_plot(Path(plot), break_even_plot(found, __version__))
    print_result(form, break_even_dict, render_break_even, found, rows="points")


def _clients(context: typer.Context) -> Callable[[int], Workload]:
    """What so many clients send."""
    fixed = {"rate": None, "arrival": "poisson", "burstiness": 1.0, "trace": None, "rate_scale": 1.0}

    def workload(clients: int) -> Workload:
        context.params |= {**fixed, "concurrency": clients}
        return served.workload_of(context)

    return workload
