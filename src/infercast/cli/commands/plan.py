"""``infercast plan`` and ``infercast layouts``: the cheapest deployment for an SLO, and all layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.cli import options, outputs
from infercast.engines.base import engines
from infercast.engines.settings import read_setting
from infercast.errors import InputError
from infercast.forecast import option_table
from infercast.forecast.autoscaling import Autoscaler, Goal, Traffic, traffic_of
from infercast.forecast.cost import facility_of, slo_of, tariff_of
from infercast.forecast.day import capacity, day_within
from infercast.forecast.deploy import deploy, load_model, taken_by
from infercast.forecast.fleet import start_up
from infercast.forecast.layouts import CONCURRENCY, NUM_INPUT, NUM_OUTPUT, compare, count_layouts
from infercast.forecast.plan.executors import executor_for
from infercast.forecast.plan.question import AXES, PlanAxis, Question, setting_axis
from infercast.forecast.plan.request import ANY, question_of, same_named
from infercast.forecast.plan.search import plan
from infercast.forecast.progress import share_of_time, time_budget
from infercast.forecast.slo import Slo
from infercast.report.files import write_whole
from infercast.report.plan import brief_plan, layouts_list, plan_dict, render_layouts, render_plan
from infercast.report.plan_folder import check_folder, command_lines, write_plan
from infercast.report.sweep import autoscaler_rows
from infercast.serve.workload.request import check_too_long, refuse_too_long, truncated
from infercast.units import GIGA

LAYOUTS = 0.8  # Share of the time that they take; what limits the best of them takes the rest


@options.with_options(
    "model",
    option_table.OPTIONS["gpu"]._replace(
        type=list, help="Bundled names or your own TOML files, with commas between them or one an option."
    ),
    option_table.Option(
        "gpus", list, "Numbers of GPUs to fill, with commas between them.", ("1,2,4,8",), metavar="N,N"
    ),
    option_table.OPTIONS["concurrency"]._replace(
        help=f"Closed loop: clients of all GPUs together; default {CONCURRENCY}."
    ),
    option_table.OPTIONS["input_len"]._replace(default=str(NUM_INPUT)),
    option_table.OPTIONS["output_len"]._replace(default=str(NUM_OUTPUT)),
    *("router", option_table.WORKLOAD, option_table.COST),
    "quantization kv_cache_dtype network engine max_num_batched_tokens max_num_seqs max_model_len speculative_config",
    "acceptance setting pcie_topology api_server predictor host calibration",
    option_table.TIME,
)
def layouts_command(ctx: options.Context, *, model: str, form: outputs.Form, **given: Any) -> None:
    said = any(given[name] is not None for name in ("concurrency", "rate", "trace"))
    if not said and given["arrival"] == "poisson":
        ctx.params["concurrency"] = CONCURRENCY
    load = options.workload_of(ctx)
    slo, tariff = slo_of(given), tariff_of(given)
    names, counts = options.comma_list("--gpu", given["gpu"]), _counts(given["gpus"])
    others = {"num_gpus": counts, "workload": load, "settings": options.settings_of(ctx), "slo": slo, "price": tariff}
    others |= {"facility": facility_of(given), "calibration": options.calibration_of(given)}
    asked = {**taken_by(deploy, given), **taken_by(compare, given), **others, "time_limit": None}
    with time_budget(options.time_limit_of(ctx)):
        with (
            outputs.runs_bar("layouts", count_layouts(model, names, counts, given["network"])) as tell,
            share_of_time(LAYOUTS),
        ):
            costs = compare(model, names, **asked, tell=tell)
        outputs.print_result(form, layouts_list, render_layouts, costs)


def _counts(given: list[str]) -> list[int]:
    parts = options.comma_list("--gpus", given)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--gpus must be numbers of at least 1 with commas between them, not {','.join(given)!r}")
    return [int(part) for part in parts]


MOST_KILOWATTS = 1e6


@options.with_options(
    "model",
    option_table.PLAN,
    "speculative_config acceptance max_model_len pcie_topology api_server predictor calibration out force",
    option_table.WORKLOAD,
    option_table.COST,
    option_table.TIME,
    option_table.WORK,
)
def command(ctx: options.Context, *, out: Path | None, force: bool, form: outputs.Form, **given: Any) -> None:
    slo = slo_of(given)
    if slo is None:
        raise InputError('a plan needs an SLO, such as --slo "ttft_p99<1s,tpot_p95<40ms"')
    if out is not None:
        check_folder(out, force=force)
    with outputs.stages_bar(patience=0.0) as tell:
        say, count = outputs.with_counts(tell)
        question = _question(ctx, slo, given)
        work = {name: given[name] for name in ("workers", "ray", "resume")}
        with executor_for(**work, progress=count) as workers:
            is_long = any(work.values()) and not options.is_given(
                ctx, "time_limit"
            )  # more machines, or a search that goes on
            found = plan(question, workers, say, None if is_long else options.time_limit_of(ctx))
    if out is not None:
        written = write_plan(found, out, outputs.command_line("--out").replace(" --force", ""), force=force)
        if not form.is_data:
            outputs.note(f"{len(written)} files are in {out}, {out / 'README.md'} first")
    rows = "simulated" if found.winner is not None else "nearest"
    outputs.print_result(
        form, plan_dict, render_plan, found, rows=rows, brief=lambda found: brief_plan(found, command_lines)
    )


def _question(ctx: options.Context, slo: Slo, given: dict[str, Any]) -> Question:
    model, network = given["model"], given["network"]
    gpus, engines, formats = (
        options.comma_list(f"--{name}", given[name]) for name in ("gpu", "engine", "quantization")
    )
    return question_of(
        model, lambda longest: options.workload_of(ctx, longest=longest), slo, gpus=gpus, engines=engines,
        tariff=tariff_of(given), facility=facility_of(given), quantizations=tuple(formats),
        drafts={name: given[name] for name in ("acceptance", "speculative_config")}, varies=bool(given["vary"]),
        power_budget=_watts(given["power_budget"]), power_limits=_power_limits(given["power_limit"]),
        kv_cache_dtypes=_caches(model, given["kv_cache_dtype"]), network=None if network == "none" else network,
        calibration=options.calibration_of(given), axes=(*AXES, *_axes(given["vary"])),
        **same_named(given),
    )  # fmt: skip


def _watts(kilowatts: float | None) -> float | None:
    if kilowatts is not None and not 0 < kilowatts < MOST_KILOWATTS:
        raise InputError(f"--power-budget must be kW above 0, at most {MOST_KILOWATTS:,.0f}, not {kilowatts:g}")
    return None if kilowatts is None else 1000.0 * kilowatts


def _power_limits(given: list[str]) -> tuple[float | None, ...]:
    found: list[float | None] = []
    for word in options.comma_list("--power-limit", given):
        try:
            watts = None if word == "none" else float(word)
        except ValueError:
            watts = -1.0
        if watts is not None and not 0 < watts < 1e5:
            raise InputError(f"--power-limit must be watts with commas between them, or none, not {word!r}")
        found.append(watts)
    return tuple(dict.fromkeys(found))


def _caches(model: str, given: list[str]) -> tuple[str, ...]:
    if given == [ANY]:
        return "auto", "fp8"
    names = tuple(options.comma_list("--kv-cache-dtype", given))
    for name in names:
        load_model(model, kv_cache_dtype=name)
    return names


def _axes(vary: list[str]) -> list[PlanAxis]:
    known = {name: kind for each in engines().values() for name, kind in each.setting_types.items()}
    axes = []
    for text in vary:
        name, equals, values = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals or not values:
            raise InputError(f"--vary {text!r} must be NAME=VALUE,VALUE, such as max_num_seqs=64,256")
        axes.append(setting_axis(name, tuple(read_setting(known, name, part, "--vary") for part in values.split(","))))
    return axes


def day_of(ctx: options.Context) -> Traffic:
    given = ctx.params
    check_too_long(given["too_long"])
    longest = options.longest_asked(ctx) or load_model(given["model"]).max_positions
    trace, rate = given["trace"], given["rate"]
    if trace is None and rate is None:
        raise InputError("say what comes over the day: --trace FILE, or --rate R with --day-profile")
    if trace is not None:
        made_up = ("input_len", "output_len", "seed", "day_profile")
        options.refuse_idle_options(ctx, made_up, replays=True)
        day = options.replayed(Path(trace), given, longest)
        if given["too_long"] == "truncate":
            day = truncated(day, longest)
        refuse_too_long(day, longest)
        return traffic_of(day, given["window"])
    for name in ("rate_scale", "num_requests"):
        if options.is_given(ctx, name):
            raise InputError(f"--{name.replace('_', '-')} needs --trace")
    return day_within(given, longest, given["window"])


def goal_of(given: dict[str, Any]) -> Goal:
    if given["goal_minutes"] is not None and given["goal_requests"] is not None:
        raise InputError("--goal-minutes and --goal-requests are two goals; give one")
    if given["goal_requests"] is not None:
        return Goal(given["goal_requests"], "requests")
    return Goal() if given["goal_minutes"] is None else Goal(given["goal_minutes"])


RULES = {
    **{"measure": "autoscale_on", "least": "min_replicas", "most": "max_replicas"},
    **{name: name for name in ("target", "interval", "up_delay", "down_delay")},
}  # Options of the autoscaler, by its fields


@options.with_options(
    option_table.PLACE,
    f"{option_table.PARALLEL} check plot csv export_autoscaler",
    "trace rate rate_scale day_profile input_len output_len num_requests too_long seed window",
    option_table.COST,
    option_table.FLEET,
    option_table.ENGINE_ARGS,
    option_table.DEPLOYMENT,
    option_table.TIME,
)
def capacity_command(
    ctx: options.Context, *, plot: Path | None, csv: Path | None, form: outputs.Form, **given: Any
) -> None:
    slo = slo_of(given)
    if slo is None:
        raise InputError('capacity needs an SLO, such as --slo "ttft_p99<1s,tpot_p95<40ms"')
    export = given["export_autoscaler"]
    outputs.check_files(plot, ("--csv", csv), ("--export-autoscaler", export))
    goal, rules = goal_of(given), Autoscaler(**{name: given[option] for name, option in RULES.items()})
    paid: dict[str, Any] = {"price": tariff_of(given), "facility": facility_of(given)}
    deployment = options.deployment_of(ctx)()
    traffic = day_of(ctx)
    start = start_up(deployment, bandwidth=given["load_bandwidth"] * GIGA, other=given["start_seconds"])
    with outputs.runs_bar("day", 5) as tell:
        asked = paid | {"goal": goal, "autoscaler": rules, "start": start, "check": given["check"], "tell": tell}
        asked |= {"time_limit": options.time_limit_of(ctx), "fail": given["fail"], "seed": given["seed"]}
        plan = capacity(deployment, traffic, slo, **asked)
    if export is not None:
        write_whole(export, autoscaler_rows(plan))
    outputs.print_answer(form, plan, plot=plot, csv=csv)
