"""``infercast sweep``, ``energy`` and ``speculate``: one deployment along loads, settings or power limits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from pathlib import Path
from typing import Any

from infercast.cli import options
from infercast.cli.outputs import Form, check_files, print_answer, print_result, runs_bar, write_plot
from infercast.errors import InputError
from infercast.forecast import sweep as sweeps
from infercast.forecast.cost import facility_of, slo_of, tariff_of
from infercast.forecast.elasticities import design, elasticities
from infercast.forecast.option_table import (
    COST,
    DEPLOYMENT,
    ENERGY,
    ENGINE_ARGS,
    LAYOUT,
    OPTIONS,
    PLACE,
    SWEEP,
    TIME,
    WORKLOAD,
    Option,
)
from infercast.forecast.progress import share_of_time, time_budget
from infercast.report.files import check_writable, write_whole
from infercast.report.sweep import break_even_dict, render_break_even
from infercast.serve.workload.request import Workload

RUNS = 0.6  # Share of the time that the runs may take; intervals and changes take the rest
AXES = {sweeps.RATE: "rates", sweeps.CONCURRENCY: "concurrencies"}  # Options with several values, by those with one


def _run(
    ctx: options.Context, run: Callable[..., Any], given: dict[str, Any], bar: str, total: int, **along: Any
) -> Any:
    load, asked = options.workload_of(ctx), options.deployment_of(ctx)
    if not along.get("vary"):
        options.refuse_idle_router(ctx)
    source, device, settings = asked.args
    with runs_bar(bar, total) as tell, share_of_time(RUNS):
        promised = {"slo": slo_of(given), "price": tariff_of(given), "facility": facility_of(given)}
        common = {"settings": settings, "router": given["router"], "tell": tell, **asked.keywords}
        return run(source, device, load, **along, **promised, **common)


@options.with_options(
    *(PLACE, SWEEP),
    Option("setting", list,
           "Values of what --what-if can change: max_num_batched_tokens=2048,8192; with one value it is fixed.", (),
           metavar="NAME=V,V", panel="What changes"),
    Option("vary", list, "The same as a range, and of two settings every pair: dram_bandwidth=1x:2x:5.", (),
           metavar="NAME=A:B:N", panel="What changes"),
    Option("elasticities", bool, "Say what 1 % of each number of the hardware brings, and sweep nothing.", False,
           panel="What changes"),
    *(LAYOUT, "plot csv", WORKLOAD, COST, ENGINE_ARGS, DEPLOYMENT, TIME),
)  # fmt: skip
def command(ctx: options.Context, *, plot: Path | None, csv: Path | None, form: Form, **given: Any) -> None:
    if given["elasticities"]:
        _print_elasticities(ctx, form, {**given, "plot": plot, "csv": csv})
        return
    vary = _split_settings(ctx, given["setting"], given["vary"])
    several = {f"--{name}": given[name] for name in AXES.values()} | {"--setting": vary}
    asked = [option for option, values in several.items() if values]
    if len(asked) != 1:
        which = f"not of {' and '.join(asked)}" if asked else "and none is given"
        raise InputError(f"a sweep is along --rates, --concurrencies or one --setting NAME=VALUE,VALUE, {which}")
    check_files(plot, ("--csv", csv))
    along: dict[str, Any] = {"vary": vary or None}
    for load, option in AXES.items():
        if given[option]:
            along = {option: _loads(ctx, load, given[option])}
    total = prod(map(len, vary.values())) if vary else len(next(iter(along.values())))
    with time_budget(options.time_limit_of(ctx)):
        print_answer(form, _run(ctx, sweeps.sweep, given, "sweep", total, **along), plot=plot, csv=csv)


def _print_elasticities(ctx: options.Context, form: Form, given: dict[str, Any]) -> None:
    if idle := [f"--{name}" for name in (*AXES.values(), "vary", "plot", "csv") if given[name]]:
        raise InputError(f"--elasticities gives one table (--format csv) and takes no {idle[0]}; leave it out")
    with time_budget(options.time_limit_of(ctx)):
        print_answer(form, _run(ctx, elasticities, given, "elasticities", 26))


@options.with_options(
    PLACE,
    Option("vary", list, "Numbers of the chip and values of each; all combinations are tried.", ...,
           metavar="NAME=A:B:N", panel="What changes"),
    Option("cost", str, "What a chip costs, over shares of what it has now: '0.6*sms + 0.4*dram_bandwidth'.", ...,
           metavar="FORMULA", panel="What changes"),
    Option("budget", float, "The most that a chip may cost; default: no limit.", panel="What changes"),
    Option("chip_out", Path, "Write the best chip as a GPU file (.toml).", panel="Files"),
    *(LAYOUT, WORKLOAD, COST, ENGINE_ARGS, DEPLOYMENT, TIME),
)  # fmt: skip
def design_command(ctx: options.Context, *, chip_out: Path | None, form: Form, **given: Any) -> None:
    if chip_out is not None:
        check_writable(chip_out, "--chip-out", (".toml",))
    vary = {name: ",".join(values) for name, values in _split_settings(ctx, [], given["vary"]).items()}
    total = prod(len(values.split(",")) for values in vary.values())
    along = {"vary": vary, "cost": given["cost"], "budget": inf if given["budget"] is None else given["budget"]}
    with time_budget(options.time_limit_of(ctx)):
        found = _run(ctx, design, given, "design", total, **along)
        if chip_out is not None:
            write_whole(chip_out, [found.toml()])
        print_answer(form, found)


def _split_settings(ctx: options.Context, given: list[str], ranges: list[str]) -> dict[str, tuple[str, ...]]:
    several = [text for text in given if "," in text]
    if len(several) > 1:
        raise InputError(f"--setting {several[0]} and --setting {several[1]} both have several values; sweep one")
    ctx.params["setting"] = [text for text in given if "," not in text]
    found: dict[str, tuple[str, ...]] = {}
    for text, option in [*((text, "--setting") for text in several), *((text, "--vary") for text in ranges)]:
        name, equals, values = text.partition("=")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise InputError(f"{option} {text!r} must be NAME=VALUE,VALUE")
        key = name.strip().replace("-", "_")
        if key in found:
            raise InputError(f"{option} {text} gives {key} a second time; say it once")
        found[key] = sweeps.values_of(values, option)
    return found


def _loads(ctx: options.Context, load: str, text: str) -> list[Any]:
    """The values of a load, the first of which makes the workload that the others are variants of."""
    option, whole = f"--{AXES[load]}", load == sweeps.CONCURRENCY
    for other in AXES:
        if options.is_given(ctx, other):
            raise InputError(f"--{other} has no meaning with {option}")
    numbers = sweeps.parse_numbers(text, option, whole=whole)
    values = [int(number) for number in numbers] if whole else list(numbers)
    if values and not (ctx.params["trace"] is not None and whole):
        ctx.params[load] = values[0]
    return values


@options.with_options(PLACE, ENERGY, LAYOUT, "csv", WORKLOAD, COST, ENGINE_ARGS, DEPLOYMENT, TIME)
def energy_command(ctx: options.Context, *, csv: Path | None, form: Form, **given: Any) -> None:
    power_limits, gpu_clocks = given["power_limits"], given["gpu_clocks"]
    if power_limits is not None and gpu_clocks is not None:
        raise InputError("--power-limits and --gpu-clocks both have values; vary one of them")
    varied = OPTIONS["gpu_clock_mhz" if gpu_clocks else "power_limit_w"]
    if (value := given[varied.name]) is not None:
        raise InputError(f"{varied.spelled} {value:g} is one value of what is varied here; leave it out")
    check_files(None, ("--csv", csv))
    limits = None if power_limits is None else sweeps.parse_numbers(power_limits, "--power-limits")
    clocks = None if gpu_clocks is None else sweeps.parse_numbers(gpu_clocks, "--gpu-clocks")
    total = len(limits or clocks or range(sweeps.VALUES)) + 2 * sweeps.HALVINGS
    along = {"power_limits": limits, "clocks": clocks, "least_odds": given["least_odds"]}
    with time_budget(options.time_limit_of(ctx)):
        print_answer(form, _run(ctx, sweeps.save_energy, given, "energy", total, **along), csv=csv)


@options.with_options(
    PLACE,
    OPTIONS["concurrencies"]._replace(help="Numbers of clients: 1:256:9, or 1,8,64; default: 1, 2, 4 to 512."),
    *("tensor_parallel_size data_parallel_size plot", ENGINE_ARGS, DEPLOYMENT),
    "num_requests input_len output_len declared_output_len prefix_len prefix_groups too_long seed",
    TIME,
)
def speculate_command(
    ctx: options.Context, *, concurrencies: str | None, plot: Path | None, form: Form, **_: Any
) -> None:
    check_files(plot)
    numbers = None
    if concurrencies is not None:
        numbers = [int(each) for each in sweeps.parse_numbers(concurrencies, "--concurrencies", whole=True)]
    asked = options.deployment_of(ctx)
    with runs_bar("loads", len(numbers or sweeps.USUAL_CLIENTS)) as tell, time_budget(options.time_limit_of(ctx)):
        found = sweeps.break_even(asked, _clients(ctx), numbers, tell)
    if plot is not None:
        from infercast.report.page.figures import break_even_plot  # noqa: PLC0415 - only where it is asked for

        write_plot(plot, break_even_plot(found))
    print_result(form, break_even_dict, render_break_even, found, rows="points")


def _clients(ctx: options.Context) -> Callable[[int], Workload]:
    fixed = {"rate": None, "arrival": "poisson", "burstiness": 1.0, "trace": None, "rate_scale": 1.0}

    def workload(clients: int) -> Workload:
        ctx.params |= {**fixed, "concurrency": clients}
        return options.workload_of(ctx)

    return workload
