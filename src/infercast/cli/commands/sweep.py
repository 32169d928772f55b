"""``infercast sweep``, ``energy`` and ``speculate``: one deployment along loads, settings or power limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from infercast import __version__
from infercast.cli.options import deployment_of, is_given, refuse_idle_router, with_options, workload_of
from infercast.cli.outputs import Form, check_files, print_answer, print_result, runs_bar, write_plot
from infercast.errors import InputError
from infercast.forecast.cost import facility_of, slo_of, tariff_of
from infercast.forecast.option_table import (
    COST,
    DEPLOYMENT,
    ENERGY,
    ENGINE_ARGS,
    LAYOUT,
    OPTIONS,
    PLACE,
    SWEEP,
    WORKLOAD,
    axis,
)
from infercast.forecast.sweep import (
    CONCURRENCY,
    HALVINGS,
    RATE,
    USUAL_CLIENTS,
    VALUES,
    break_even,
    parse_numbers,
    save_energy,
    sweep,
)
from infercast.report.sweep import (
    break_even_dict,
    render_break_even,
)
from infercast.serve.workload.request import Workload

AXES = {RATE: "rates", CONCURRENCY: "concurrencies"}
"""Options with several values, by those with one."""
SETTING = axis(
    *("setting", list, (), "NAME=V,V"),
    "Values of what --what-if can change: max_num_batched_tokens=2048,8192; with one value it is fixed.",
)
CLIENTS = OPTIONS["concurrencies"]._replace(
    help="Numbers of clients: 1:256:9, or 1,8,64; default: 1, 2, 4 to 512.",
)


def _run(ctx: typer.Context, run: Callable[..., Any], given: dict[str, Any], bar: str, total: int, **along: Any) -> Any:
    load, asked = workload_of(ctx), deployment_of(ctx)
    if not along.get("vary"):
        refuse_idle_router(ctx)
    source, device, settings = asked.args
    with runs_bar(bar, total) as tell:
        return run(
            source,
            device,
            load,
            **along,
            settings=settings,
            slo=slo_of(given),
            price=tariff_of(given),
            facility=facility_of(given),
            router=given["router"],
            tell=tell,
            **asked.keywords,
        )


@with_options(PLACE, SWEEP, [SETTING], LAYOUT, "plot csv", WORKLOAD, COST, ENGINE_ARGS, DEPLOYMENT)
def command(ctx: typer.Context, *, plot: Path | None, csv: Path | None, form: Form, **given: Any) -> None:
    """Sweep a rate, a number of clients or a setting: TTFT, TPOT, throughput, goodput, cost, knee and saturation.

    Each row is what `infercast simulate` says of that value with the same options.

    For example:

      infercast sweep llama-3.1-8b --gpu h200-sxm --rates 5:40:8 --slo "ttft_p99<500ms,tpot_p95<30ms"

      infercast sweep llama-3.1-8b --gpu h200-sxm --rate 20 --setting max_num_batched_tokens=2048,4096,8192,16384

      infercast sweep qwen3-32b --gpu h100-sxm --rate 2 --setting tensor_parallel_size=1,2,4 --plot sweep.html
    """
    vary = _split_settings(ctx, given["setting"])
    several = {f"--{name}": given[name] for name in AXES.values()} | {"--setting": vary}
    asked = [option for option, values in several.items() if values]
    if len(asked) != 1:
        which = f"not of {' and '.join(asked)}" if asked else "and none is given"
        raise InputError(f"a sweep is along --rates, --concurrencies or one --setting NAME=VALUE,VALUE, {which}")
    check_files(plot, ("--csv", csv))
    along: dict[str, Any] = {"vary": vary}
    for load, option in AXES.items():
        if given[option]:
            along = {option: _loads(ctx, load, given[option])}
    total = len(vary[1]) if vary else len(next(iter(along.values())))
    found = _run(ctx, sweep, given, "sweep", total, **along)
    print_answer(form, found, plot=plot, csv=csv)


def _split_settings(ctx: typer.Context, given: list[str]) -> tuple[str, list[str]] | None:
    """The one setting with several values; those with one stay what they are for other commands."""
    several = [text for text in given if "," in text]
    if len(several) > 1:
        raise InputError(f"--setting {several[0]} and --setting {several[1]} both have several values; sweep one")
    ctx.params["setting"] = [text for text in given if "," not in text]
    if not several:
        return None
    name, equals, values = several[0].partition("=")
    if not equals or not all(value.strip() for value in values.split(",")):
        raise InputError(f"--setting {several[0]!r} must be NAME=VALUE,VALUE")
    return name.strip().replace("-", "_"), [value.strip() for value in values.split(",")]


def _loads(ctx: typer.Context, load: str, text: str) -> list[Any]:
    """The values of a load, the first of which makes the workload that the others are variants of."""
    option, whole = f"--{AXES[load]}", load == CONCURRENCY
    for other in AXES:
        if is_given(ctx, other):
            raise InputError(f"--{other} has no meaning with {option}")
    numbers = parse_numbers(text, option, whole=whole)
    values = [int(number) for number in numbers] if whole else list(numbers)
    if values and not (ctx.params["trace"] is not None and whole):
        ctx.params[load] = values[0]
    return values


@with_options(PLACE, ENERGY, LAYOUT, "csv", WORKLOAD, COST, ENGINE_ARGS, DEPLOYMENT)
def energy_command(ctx: typer.Context, *, csv: Path | None, form: Form, **given: Any) -> None:
    """Find the power limit or the clock that saves most energy while an SLO holds: joules per token and latencies.

    Each row is what `infercast simulate` says with --power-limit or --gpu-clock; energy is counted at the wall.

    For example:

      infercast energy llama-3.1-8b --gpu h200-sxm --rate 12 --slo "ttft_p99<500ms,tpot_p95<15ms"

      infercast energy qwen3-32b --gpu h100-sxm -q fp8 --concurrency 64 --power-limits 300:700:9

      infercast energy llama-3.3-70b --gpu h200-sxm -q fp8 -tp 2 --rate 4 --gpu-clocks 900:1980:7 --pue 1.2
    """
    power_limits, gpu_clocks = given["power_limits"], given["gpu_clocks"]
    if power_limits is not None and gpu_clocks is not None:
        raise InputError("--power-limits and --gpu-clocks both have values; vary one of them")
    varied = OPTIONS["gpu_clock_mhz" if gpu_clocks else "power_limit_w"]
    if (value := given[varied.name]) is not None:
        raise InputError(f"{varied.spelled} {value:g} is one value of what is varied here; leave it out")
    check_files(None, ("--csv", csv))
    limits = None if power_limits is None else parse_numbers(power_limits, "--power-limits")
    clocks = None if gpu_clocks is None else parse_numbers(gpu_clocks, "--gpu-clocks")
    total = len(limits or clocks or range(VALUES)) + 2 * HALVINGS
    along = {"power_limits": limits, "clocks": clocks, "least_odds": given["least_odds"]}
    found = _run(ctx, save_energy, given, "energy", total, **along)
    print_answer(form, found, csv=csv)


@with_options(
    PLACE,
    [CLIENTS],
    "tensor_parallel_size data_parallel_size plot",
    ENGINE_ARGS,
    DEPLOYMENT,
    WORKLOAD,
    command="speculate",
)
def speculate_command(
    ctx: typer.Context, *, concurrencies: str | None, plot: Path | None, form: Form, **_: Any
) -> None:
    """Find the load at which speculative decoding stops paying: tokens/s and TPOT with and without it, by clients.

    For example:

      infercast speculate llama-3.1-8b --gpu h200-sxm --acceptance 0.7 --speculative-config
      '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'

      infercast speculate deepseek-r1 --gpu h200-sxm -tp 8 --plot pays.html --speculative-config
      '{"method": "mtp", "num_speculative_tokens": 1}'
    """
    check_files(plot)
    numbers = None
    if concurrencies is not None:
        numbers = [int(each) for each in parse_numbers(concurrencies, "--concurrencies", whole=True)]
    asked = deployment_of(ctx)
    with runs_bar("loads", len(numbers or USUAL_CLIENTS)) as tell:
        found = break_even(asked, _clients(ctx), numbers, tell)
    if plot is not None:
        from infercast.report.page.figures import break_even_plot  # noqa: PLC0415 - only where it is asked for

        write_plot(plot, break_even_plot(found, __version__))
    print_result(form, break_even_dict, render_break_even, found, rows="points")


def _clients(ctx: typer.Context) -> Callable[[int], Workload]:
    fixed = {"rate": None, "arrival": "poisson", "burstiness": 1.0, "trace": None, "rate_scale": 1.0}

    def workload(clients: int) -> Workload:
        ctx.params |= {**fixed, "concurrency": clients}
        return workload_of(ctx)

    return workload
