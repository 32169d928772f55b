"""``infercast simulate`` and ``infercast disaggregate``: a workload on one deployment or on two pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from infercast import Deployment, Workload
from infercast.cli import completion, outputs
from infercast.cli.options import deployment as options
from infercast.cli.options import workload as served
from infercast.cli.options.cost import Decided, facility_of, slo_of, tariff_of
from infercast.cli.options.deployment import compare_engines
from infercast.cli.options.groups import Deployed, Served, Shown, asked_deployment, takes
from infercast.cli.outputs import Form, print_result, simulation_bar
from infercast.errors import InputError, SaturatedError
from infercast.forecast.cost import Tariff
from infercast.forecast.energy import Facility
from infercast.forecast.intervals import Intervals, forecast_intervals
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate_system
from infercast.forecast.slo import Slo
from infercast.forecast.system import DEFAULT_LINK, PROXY_ROUTER, System, system_of, two_pools
from infercast.report.forecast import forecast_dict, render_forecast
from infercast.serve.fleet.pool import MOST_ENGINES

Build = Callable[[Sequence[Deployment], str | None], System]
"""A system of deployments, behind another router if one is named."""


class Question(NamedTuple):
    """What is to be served, and what is to be said of it."""

    workload: Workload
    files: outputs.Outputs
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
        """The options of a command by their names."""
        files = outputs.outputs_of(
            given["report"],
            given["trace_out"],
            given["trace_window"],
            given["requests_out"],
            given["save_result"],
            detailed=given["save_detailed"],
        )
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
        """What a simulation has to know of it."""
        return {"steady": self.steady, "slo": self.slo}

    def refuse_overload(self, forecast: Forecast) -> None:
        """A saturated run has no steady latencies to print."""
        saturation = forecast.saturation
        if saturation is not None and not self.allow_overload:
            raise SaturatedError(f"{saturation.sentence}; lower --rate, add GPUs, or pass --allow-overload")

    def decide(self, forecast: Forecast, intervals: Intervals | None = None) -> Forecast:
        """The forecast held against what is promised, with the prices that were asked for."""
        forecast = replace(forecast, tariff=self.tariff, facility=self.facility)
        return forecast if self.slo is None else forecast.promised(self.slo, intervals)


def answer(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    """Simulate what was asked for and print it."""
    if question.what_if is not None:
        _compare(question, asked, build)
        return
    system = build([each() for each in asked], None)
    if question.breakdown or question.files.need_steps:
        _explain(question, system)
        return
    with simulation_bar(len(question.workload.requests)) as progress:
        forecast = simulate_system(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(forecast)
    intervals = forecast_intervals(forecast)
    forecast = question.decide(forecast, intervals)
    question.files.write_requests(forecast)
    print_result(question.form, forecast_dict, render_forecast, forecast, intervals)


def _compare(question: Question, asked: Sequence[partial[Deployment]], build: Build) -> None:
    """The run as asked for beside the run with the changes."""
    from infercast.forecast.deploy import (  # noqa: PLC0415
        deploy_changed,
        parse_changes,
    )
    from infercast.forecast.explain.step_log import watch_run  # noqa: PLC0415 - most runs need none of it
    from infercast.report.comparison import AS_ASKED, render_runs, runs_dict  # noqa: PLC0415

    assert question.what_if is not None
    changes = parse_changes(question.what_if)
    runs = []
    for system in (
        build([each() for each in asked], None),
        build([deploy_changed(each, changes) for each in asked], changes.router),
    ):
        with simulation_bar(len(question.workload.requests)) as progress:
            runs.append(watch_run(system, question.workload, progress=progress, **question.asked))
        question.refuse_overload(runs[-1].forecast)
        runs[-1] = replace(runs[-1], forecast=question.decide(runs[-1].forecast))
    pair, names = (runs[0], runs[1]), AS_ASKED
    if changes.is_engine_alone:
        names = (runs[0].forecast.deployment.engine.name, runs[1].forecast.deployment.engine.name)
    question.files.write_comparison(pair, names)
    document, tables = (partial(make, names=names, breakdown=question.breakdown) for make in (runs_dict, render_runs))
    print_result(question.form, document, tables, pair, changes.text, rows=("before", "after"))


def _explain(question: Question, system: System) -> None:
    """The run, where its time went, and the files that show it."""
    from infercast.forecast.explain.breakdown import break_down  # noqa: PLC0415 - most runs need none of it
    from infercast.forecast.explain.step_log import watch_run  # noqa: PLC0415
    from infercast.report.kernels import breakdown_dict, render_breakdown  # noqa: PLC0415

    with simulation_bar(len(question.workload.requests)) as progress:
        run = watch_run(system, question.workload, progress=progress, **question.asked)
    question.refuse_overload(run.forecast)
    intervals = forecast_intervals(run.forecast)
    run = replace(run, forecast=question.decide(run.forecast, intervals))
    question.files.write(run, intervals)
    parts = break_down(run) if question.breakdown else None

    def document() -> dict[str, Any]:
        found = forecast_dict(run.forecast, intervals)
        return found if parts is None else {**found, "breakdown": breakdown_dict(parts)}

    def tables() -> list[Any]:
        more = [] if parts is None else render_breakdown(question.workload, parts)
        return [*render_forecast(run.forecast, intervals), *more]

    print_result(question.form, document, tables)


@takes(Served, Deployed, Decided, Shown)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    router: options.RouterName = None,
    **given: Any,
) -> None:
    """Simulate a served workload: TTFT, TPOT, throughput, load, and where GPU time goes.

    For example:

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12

      infercast simulate ./config.json --gpu l40s --concurrency 32 --input-len 2048 --output-len 256

      infercast simulate llama-3.3-70b --gpu h100-sxm --quantization fp8 -tp 4 -dp 2 --router prefix_aware --rate 8

      infercast simulate qwen3-32b --gpu h100-sxm --quantization fp8 --trace azure.csv --rate-scale 0.5

      infercast simulate llama-3.1-8b --gpu l40s --rate 4 --slo "ttft_p99<1s,tpot_p95<40ms" --provider aws

      infercast simulate llama-3.1-8b --gpu h200-sxm --rate 12 --engine vllm,sglang --report engines.html
    """
    compare_engines(context, given)
    question = Question.of(given, served.workload_of(context))
    asked = asked_deployment(
        context,
        gpu,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
    )
    if router is not None and data_parallel_size == 1 and question.what_if is None:
        asked()  # what is wrong with the deployment comes first
        raise InputError("--router has no meaning for one replica; add --data-parallel-size N")

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        (deployment,) = deployments
        return system_of(deployment, (other_router or router) if deployment.layout.data > 1 else None)

    answer(question, [asked], build)


of_pools = partial(typer.Option, rich_help_panel="Pools")
of_gpu = partial(of_pools, metavar="GPU", autocompletion=completion.gpus)


def _size(option: str, what: str) -> Any:
    """An option that is the size of something in a pool."""
    return of_pools(option, metavar="N", help=what)


@takes(Served, Deployed, Decided, Shown)
def disaggregate_command(
    context: typer.Context,
    model: options.Model,
    prefill_gpu: Annotated[str, of_gpu("--prefill-gpu", help="GPUs of the prefill pool.")],
    decode_gpu: Annotated[str, of_gpu("--decode-gpu", help="GPUs of the decode pool.")],
    prefill_engines: Annotated[int, _size("--prefill-engines", "Engines of the prefill pool, each for itself.")] = 1,
    prefill_tp: Annotated[int, _size("--prefill-tp", "Tensor parallel size of each.")] = 1,
    prefill_pp: Annotated[int, _size("--prefill-pp", "Pipeline parallel size of each.")] = 1,
    prefill_dp: Annotated[int, _size("--prefill-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    decode_engines: Annotated[int, _size("--decode-engines", "Engines of the decode pool, each for itself.")] = 1,
    decode_tp: Annotated[int, _size("--decode-tp", "Tensor parallel size of each.")] = 1,
    decode_pp: Annotated[int, _size("--decode-pp", "Pipeline parallel size of each.")] = 1,
    decode_dp: Annotated[int, _size("--decode-dp", "Data parallel size of each; replicas may share experts.")] = 1,
    link: Annotated[
        str, of_pools("--link", metavar="NAME", help="Between the pools: nvlink or a network.")
    ] = DEFAULT_LINK,
    router: options.RouterName = None,
    **given: Any,
) -> None:
    """Simulate disaggregated serving: TTFT by its parts, TPOT, throughput, and what each pool and the link did.

    For example:

      infercast disaggregate llama-3.1-8b --prefill-gpu h100-sxm --decode-gpu h200-sxm --rate 12

      infercast disaggregate llama-3.3-70b --quantization fp8 --prefill-gpu h200-sxm --prefill-tp 2 --prefill-engines 2
      --decode-gpu h200-sxm --decode-tp 4 --link nvlink --concurrency 64

      infercast disaggregate qwen3-235b-a22b-fp8 --prefill-gpu h200-sxm --prefill-tp 4 --decode-gpu h200-sxm
      --decode-dp 8 --enable-expert-parallel --rate 10
    """
    pools = {
        "prefill": (prefill_gpu, prefill_engines, prefill_tp, prefill_pp, prefill_dp),
        "decode": (decode_gpu, decode_engines, decode_tp, decode_pp, decode_dp),
    }
    for name, (_, *sizes) in pools.items():
        for option, value in zip(("engines", "tp", "pp", "dp"), sizes, strict=True):
            if not 1 <= value <= MOST_ENGINES:
                bound = "at least 1" if value < 1 else f"at most {MOST_ENGINES:,}"
                raise InputError(f"--{name}-{option} must be {bound}, not {value}")
    question = Question.of(given, served.workload_of(context))
    asked = [
        asked_deployment(
            context,
            gpu,
            # An exchange between replicas has no meaning for a pool of one.
            all2all_backend=given["all2all_backend"] if data > 1 else None,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            data_parallel_size=data,
        )
        for gpu, _, tensor, pipeline, data in pools.values()
    ]

    def build(deployments: Sequence[Deployment], other_router: str | None) -> System:
        instances = prefill_engines, decode_engines
        return two_pools(*deployments, instances=instances, link=link, router=other_router or router or PROXY_ROUTER)

    answer(question, asked, build)
