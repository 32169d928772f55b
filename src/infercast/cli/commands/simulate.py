"""``infercast simulate`` and ``infercast disaggregate``: a workload on one deployment or on two pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from infercast import Deployment, Workload
from infercast.cli.options import Context, deployment_of, refuse_idle_router, time_limit_of, with_options, workload_of
from infercast.cli.outputs import Form, Outputs, outputs_of, print_result, simulation_bar
from infercast.errors import InputError, SaturatedError
from infercast.forecast.cost import Tariff, facility_of, slo_of, tariff_of
from infercast.forecast.deploy import deploy_changed, parse_changes
from infercast.forecast.energy import Facility
from infercast.forecast.fleet import parse_fleet, with_outages
from infercast.forecast.option_table import COST, DEPLOYMENT, ENGINE_ARGS, LAYOUT, OUTPUT, PLACE, TIME, WORKLOAD, Option
from infercast.forecast.progress import share_of_time, time_budget
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import fleet_system, simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.system import DEFAULT_LINK, PROXY_ROUTER, System, system_of, two_pools
from infercast.report.diagnosis import serving_words
from infercast.report.forecast import brief_forecast, forecast_dict, render_forecast
from infercast.serve.fleet.pool import MOST_ENGINES

RUN = 0.5  # Share of the time that the run itself may take; intervals and changes take the rest
Build = Callable[[Sequence[Deployment], str | None], System]  # A system of deployments, perhaps behind another router


class Question(NamedTuple):
    workload: Workload
    files: Outputs
    what_if: str | None
    breakdown: bool
    steady: bool
    allow_overload: bool
    form: Form
    slo: Slo | None = None
    tariff: Tariff = Tariff()
    facility: Facility = Facility()

    @staticmethod
    def of(given: dict[str, Any], workload: Workload) -> Question:
        files = outputs_of(given)
        if given["what_if"] is not None and any((files.trace, files.requests, files.result)):
            named = "--trace-out, --requests-out or --save-result"
            raise InputError(f"--what-if and two engines show two runs side by side; ask for {named} of one")
        names = ("what_if", "breakdown", "steady", "allow_overload", "form")
        asked = {name: given[name] for name in names}
        return Question(
            workload, files, **asked, slo=slo_of(given), tariff=tariff_of(given), facility=facility_of(given)
        )

    @property
    def asked(self) -> dict[str, Any]:
        return {"steady": self.steady, "slo": self.slo}

    def refuse_overload(self, forecast: Forecast, side: str = "") -> None:
        """A saturated run has no steady latencies to print; ``side``: which it is of two."""
        saturation = forecast.saturation
        if saturation is not None and not self.allow_overload:
            unknown = "".join(f"say {word}, " for word in saturation.assumed.split() if word.startswith("--"))
            ways = f"{unknown}{serving_words(forecast)}lower --rate, add GPUs, or pass --allow-overload"
            raise SaturatedError(f"{side}{saturation.sentence}; {ways}")

    def decide(self, forecast: Forecast) -> Forecast:
        forecast = replace(forecast, tariff=self.tariff, facility=self.facility)
        return forecast if self.slo is None else forecast.promised(self.slo)


def answer(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    if question.what_if is not None:
        _compare(question, asked, build)
        return
    system = build([each() for each in asked], None)
    if question.breakdown or question.files.need_steps:
        _explain(question, system)
        return
    with simulation_bar(len(question.workload.requests)) as progress, share_of_time(RUN):
        forecast = simulate_system(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(forecast)
    forecast = question.decide(forecast)
    question.files.write_requests(forecast)
    print_result(question.form, forecast_dict, render_forecast, forecast, forecast.intervals, brief=brief_forecast)


def _compare(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    from infercast.forecast.explain.step_log import watch_run  # noqa: PLC0415 - most runs need none of it
    from infercast.report.comparison import AS_ASKED, render_runs, runs_dict  # noqa: PLC0415

    assert question.what_if is not None
    changes = parse_changes(question.what_if)
    runs = []
    systems = (
        build([each() for each in asked], None),
        build([deploy_changed(each, changes) for each in asked], changes.router),
    )
    for share, system in zip((0.4, 0.6), systems, strict=True):
        with simulation_bar(len(question.workload.requests)) as progress, share_of_time(share):
            runs.append(watch_run(system, question.workload, progress=progress, **question.asked))
        question.refuse_overload(runs[-1].forecast, ("as asked it is ", f"with {changes.text} it is ")[len(runs) - 1])
        runs[-1] = replace(runs[-1], forecast=question.decide(runs[-1].forecast))
    pair, names = (runs[0], runs[1]), AS_ASKED
    if changes.is_engine_alone:
        names = (runs[0].forecast.deployment.engine.name, runs[1].forecast.deployment.engine.name)
    question.files.write_comparison(pair, names)
    document, tables = (partial(make, names=names, breakdown=question.breakdown) for make in (runs_dict, render_runs))
    print_result(question.form, document, tables, pair, changes.text, rows=("before", "after"))


def _explain(question: Question, system: System) -> None:
    from infercast.forecast.explain.breakdown import break_down  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.explain.step_log import watch_run  # noqa: PLC0415
    from infercast.report.kernels import breakdown_dict, render_breakdown, render_parts  # noqa: PLC0415

    with simulation_bar(len(question.workload.requests)) as progress, share_of_time(RUN):
        run = watch_run(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(run.forecast)
    run = replace(run, forecast=question.decide(run.forecast))
    intervals = run.forecast.intervals
    question.files.write(run)
    parts = break_down(run) if question.breakdown else None

    def document() -> dict[str, Any]:
        found = forecast_dict(run.forecast, intervals)
        return found if parts is None else {**found, "breakdown": breakdown_dict(parts)}

    def tables() -> list[Any]:
        more = [] if parts is None else render_breakdown(parts)
        return [*render_forecast(run.forecast, intervals), *more]

    def brief() -> list[Any]:
        first = brief_forecast(run.forecast, intervals)
        return first if parts is None else [*first[:2], *render_parts(parts)]

    print_result(question.form, document, tables, brief=brief)


@with_options(
    PLACE[0], PLACE[1]._replace(default=None),
    Option("fleet", str, "In place of a GPU, replicas of several kinds: 2xh100-sxm:tp=2 + 4xl40s:quantization=fp8.",
           metavar="GROUPS", panel="Fleet"),
    Option("api_price", str, "Compare with an API: its dollars per million tokens, IN/OUT, such as 0.15/0.60.",
           metavar="IN/OUT", panel="SLO and cost"),
    LAYOUT, "fail", WORKLOAD, ENGINE_ARGS, DEPLOYMENT, COST, OUTPUT, TIME,
)  # fmt: skip
def command(ctx: Context, **given: Any) -> None:
    compare_engines(ctx, given)
    if (given["gpu"] is None) == (given["fleet"] is None):
        raise InputError("say what serves: --gpu GPU, or --fleet GROUPS such as '2xh100-sxm:tp=2 + 4xl40s'")
    question = Question.of(given, workload_of(ctx))
    if given["fleet"] is not None:
        _serve_fleet(ctx, question)
        return
    asked = deployment_of(ctx)
    if given["router"] is not None and given["data_parallel_size"] == 1 and question.what_if is None:
        asked()  # what is wrong with the deployment comes first
        refuse_idle_router(ctx)

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        (deployment,) = deployments
        system = system_of(deployment, (other_router or given["router"]) if deployment.layout.data > 1 else None)
        return with_outages(system, given["fail"], given["seed"])

    with time_budget(time_limit_of(ctx)):
        answer(question, [asked], build)


def _serve_fleet(ctx: Context, question: Question) -> None:
    given = ctx.params
    names, calls, counts = zip(*parse_fleet(given["fleet"], partial(deployment_of, ctx)), strict=True)
    outages = partial(with_outages, text=given["fail"], seed=given["seed"])

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        made = [partial(lambda each: each, deployment) for deployment in deployments]
        asked = question.workload, question.slo, question.tariff, question.facility, outages
        return outages(fleet_system([*zip(names, made, counts, strict=True)], other_router or given["router"], *asked))

    with time_budget(time_limit_of(ctx)):
        answer(question, calls, build)


def compare_engines(ctx: Context, given: dict[str, Any]) -> None:
    """Two engines with a comma between them: the second is a change of the first."""
    first, *others = [name.strip() for name in given["engine"].split(",")]
    if len(others) > 1:
        raise InputError(f"--engine takes two engines to compare, not {1 + len(others)}: {given['engine']}")
    if others:
        change = f"engine={others[0]}"
        given["what_if"] = change if given["what_if"] is None else f"{change},{given['what_if']}"
    given["engine"] = ctx.params["engine"] = first


ROLES = ("prefill", "decode")
pools = partial(Option, panel="Pools")


@with_options(
    "model",
    *(pools(f"{role}_gpu", str, f"GPUs of the {role} pool.", ..., metavar="GPU", catalogue="gpus") for role in ROLES),
    *(
        option
        for role in ROLES
        for option in (
            pools(f"{role}_engines", int, f"Engines of the {role} pool, each for itself.", 1),
            pools(f"{role}_tp", int, "Tensor parallel size of each.", 1),
            pools(f"{role}_pp", int, "Pipeline parallel size of each.", 1),
            pools(f"{role}_dp", int, "Data parallel size of each; replicas may share experts.", 1),
        )
    ),
    pools("link", str, "Between the pools: nvlink or a network.", DEFAULT_LINK),
    *("router", WORKLOAD, ENGINE_ARGS, DEPLOYMENT, COST, OUTPUT, TIME),
)
def disaggregate_command(ctx: Context, **given: Any) -> None:
    sizes = ("engines", "tp", "pp", "dp")
    for role in ROLES:
        for size in sizes:
            value = given[f"{role}_{size}"]
            if not 1 <= value <= MOST_ENGINES:
                bound = "at least 1" if value < 1 else f"at most {MOST_ENGINES:,}"
                raise InputError(f"--{role}-{size} must be {bound}, not {value}")
    question = Question.of(given, workload_of(ctx))
    asked = [
        deployment_of(
            ctx,
            given[f"{role}_gpu"],
            # An exchange between replicas has no meaning for a pool of one.
            all2all_backend=given["all2all_backend"] if given[f"{role}_dp"] > 1 else None,
            tensor_parallel_size=given[f"{role}_tp"],
            pipeline_parallel_size=given[f"{role}_pp"],
            data_parallel_size=given[f"{role}_dp"],
        )
        for role in ROLES
    ]

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        instances = given["prefill_engines"], given["decode_engines"]
        router = other_router or given["router"] or PROXY_ROUTER
        return two_pools(*deployments, instances=instances, link=given["link"], router=router)

    with time_budget(time_limit_of(ctx)):
        answer(question, asked, build)
