"""``infercast plan`` and ``infercast layouts``: the cheapest deployment for an SLO, and all layouts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli import completion, outputs
from infercast.cli.options import deployment as engine_options
from infercast.cli.options import deployment as options
from infercast.cli.options import workload
from infercast.cli.options import workload as served
from infercast.cli.options.cost import Decided, facility_of, of_decision, of_facility, slo_of, tariff_of
from infercast.cli.options.deployment import AcceptanceOption, SpeculativeConfig, note
from infercast.cli.options.groups import Deployed, Served, asked_calibration, takes
from infercast.cli.outputs import Form, print_result, runs_bar, stages_bar, with_counts
from infercast.engines.base import DEFAULT_ENGINE, engines
from infercast.engines.settings import read_setting
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.layouts import CONCURRENCY, NUM_INPUT, NUM_OUTPUT, compare_layouts, count_layouts
from infercast.forecast.plan.executors import Executor, executor_for
from infercast.forecast.plan.question import AXES, OBJECTIVES, Axis, setting_axis
from infercast.forecast.plan.request import ANY, USUAL_GPUS, question_of
from infercast.forecast.plan.search import plan
from infercast.forecast.system import DEFAULT_LINK
from infercast.report.plan import layouts_list, plan_dict, render_layouts, render_plan
from infercast.report.plan_folder import check_folder, write_plan

of_work = partial(typer.Option, rich_help_panel="Who does the work")

Workers = Annotated[
    int | None,
    of_work("--workers", metavar="N", help="Processes of this machine; default: one a processor when it takes long."),
]
Ray = Annotated[
    str | None,
    of_work("--ray", metavar="ADDRESS", help="A Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local."),
]
Resume = Annotated[
    Path | None,
    of_work("--resume", metavar="FILE", help="Keep answers in this file (JSON lines), and use those that it has."),
]


class Working:
    """Who judges candidates."""

    workers: Workers = None
    ray: Ray = None
    resume: Resume = None


def workers_of(
    given: dict[str, Any], progress: Callable[[int, int], None] | None = None
) -> AbstractContextManager[Executor]:
    """Those that the options of a command ask for, for the time of its work."""
    return executor_for(workers=given["workers"], ray=given["ray"], resume=given["resume"], progress=progress)


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
def layouts_command(
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


MOST_KILOWATTS = 1e6


@takes(Served, Decided, Working)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            metavar="GPU,GPU",
            autocompletion=completion.gpus,
            help="What to choose from: names or your own TOML files.",
        ),
    ] = list(USUAL_GPUS),  # noqa: B006 - read only
    max_gpus: Annotated[int, typer.Option("--max-gpus", metavar="N", help="Most GPUs in all.")] = 8,
    budget: Annotated[float | None, of_decision("--budget", metavar="X", help="Most dollars per hour.")] = None,
    power_budget: Annotated[
        float | None,
        of_facility("--power-budget", metavar="KW", help="Most kW of all servers at the wall, while GPUs draw most."),
    ] = None,
    power_limit: Annotated[
        list[str], of_facility("--power-limit", metavar="W,W", help="Watts that boards may be held at; none: no limit.")
    ] = ["none"],  # noqa: B006 - read only
    objective: Annotated[
        str, of_decision("--objective", metavar="NAME", help=f"What to look for: {', '.join(OBJECTIVES)}.")
    ] = "cost",
    least_odds: Annotated[
        float,
        of_decision("--odds", metavar="P", help="How sure the SLO must be to hold, such as 0.9; 0: by the forecast."),
    ] = 0.0,
    quantization: Annotated[
        list[str], typer.Option("--quantization", "-q", metavar="T,T", help="Weights: none, fp8, int4, ... or any.")
    ] = ["none"],  # noqa: B006 - read only
    kv_cache_dtype: Annotated[
        list[str], options.of_engine("--kv-cache-dtype", metavar="T,T", help="auto, bf16, fp8, or any.")
    ] = ["auto"],  # noqa: B006 - read only
    engine: Annotated[
        list[str],
        options.of_engine(
            "--engine",
            metavar="NAME,NAME",
            autocompletion=completion.engines,
            help="Engines with their versions.",
        ),
    ] = [DEFAULT_ENGINE],  # noqa: B006 - read only
    vary: Annotated[
        list[str],
        options.of_engine("--vary", metavar="NAME=V,V", help="A setting of the engine to try with these values."),
    ] = [],  # noqa: B006 - read only
    speculative_config: SpeculativeConfig = None,
    acceptance: AcceptanceOption = None,
    max_model_len: options.MaxModelLen = None,
    disaggregate: Annotated[
        bool, typer.Option("--disaggregate", metavar="", help="Look at prefill pools with decode pools, too.")
    ] = False,
    network: Annotated[
        str, typer.Option("--network", metavar="NAME", help="Between nodes; none: no engine spans two.")
    ] = DEFAULT_LINK,
    link: Annotated[str, typer.Option("--link", metavar="NAME", help="Between two pools.")] = DEFAULT_LINK,
    pcie_topology: options.PcieTopology = None,
    api_server: options.ApiServer = True,
    predictor: options.PredictorName = "learned",
    calibration: options.Calibration = None,
    out: Annotated[
        Path | None,
        outputs.of_file("--out", metavar="DIR", help="Also write what to run next: commands, manifests, tables."),
    ] = None,
    force: Annotated[
        bool, outputs.of_file("--force", metavar="", help="Write into a folder that is not empty.")
    ] = False,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Find the deployment that keeps an SLO at the least cost: GPUs, layout, replicas, formats and settings.

    For example:

      infercast plan llama-3.1-8b --rate 20 --slo "ttft_p99<1s,tpot_p95<40ms"

      infercast plan llama-3.1-8b --rate 20 --slo "ttft_p99<1s,tpot_p95<40ms" --engine vllm,sglang

      infercast plan llama-3.3-70b --rate 20 --slo "ttft_p99<1s,tpot_p95<40ms" --gpu h100-sxm,b200-sxm --max-gpus 16
      --quantization any --odds 0.9

      infercast plan deepseek-v3.1 --rate 20 --slo "ttft_p99<2s,tpot_p95<50ms" --gpu h200-sxm --max-gpus 32
      --disaggregate
    """
    slo = slo_of(given)
    if slo is None:
        raise InputError('a plan needs a promise to keep: --slo "ttft_p99<1s,tpot_p95<40ms", say')
    if out is not None:
        check_folder(out, force=force)
    names = options.comma_list("--gpu", gpu)
    question = question_of(
        model,
        lambda longest: served.workload_of(context, longest=longest),
        slo,
        gpus=names,
        engines=options.comma_list("--engine", engine),
        tariff=tariff_of(given),
        facility=facility_of(given),
        quantizations=_names("--quantization", quantization),
        drafts={"acceptance": acceptance, "speculative_config": speculative_config},
        varies=bool(vary),
        max_gpus=max_gpus,
        budget=budget,
        power_budget=_watts(power_budget),
        power_limits=_power_limits(power_limit),
        kv_cache_dtypes=_caches(model, kv_cache_dtype),
        max_model_len=max_model_len,
        disaggregate=disaggregate,
        objective=objective,
        least_odds=least_odds,
        network=None if network == "none" else network,
        link=link,
        pcie_topology=pcie_topology,
        api_server=api_server,
        predictor=predictor,
        calibration=asked_calibration(context.params),
        axes=(*AXES, *_axes(vary)),
    )
    with stages_bar() as tell:
        say, count = with_counts(tell)
        with workers_of(given, count) as workers:
            found = plan(question, workers, say)
    if out is not None:
        again = outputs.command_line("--out").replace(" --force", "")
        written = write_plan(found, out, again, force=force)
        if not form.is_data:
            note(f"{len(written)} files are in {out}, {out / 'README.md'} first")
    print_result(form, plan_dict, render_plan, found, rows="simulated" if found.winner is not None else "nearest")


def _watts(kilowatts: float | None) -> float | None:
    if kilowatts is not None and not 0 < kilowatts < MOST_KILOWATTS:
        raise InputError(f"--power-budget must be kW above 0, at most {MOST_KILOWATTS:,.0f}, not {kilowatts:g}")
    return None if kilowatts is None else 1000.0 * kilowatts


def _power_limits(given: list[str]) -> tuple[float | None, ...]:
    """Watts with commas between them; ``none`` is the board's own limit."""
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


def _names(option: str, given: list[str]) -> tuple[str, ...]:
    return tuple(options.comma_list(option, given))


def _caches(model: str, given: list[str]) -> tuple[str, ...]:
    """Formats of keys and values."""
    if given == [ANY]:
        return "auto", "fp8"
    names = _names("--kv-cache-dtype", given)
    for name in names:
        load_model(model, kv_cache_dtype=name)
    return names


def _axes(vary: list[str]) -> list[Axis]:
    """One for each setting that is to be varied."""
    known = {name: kind for each in engines().values() for name, kind in each.setting_types.items()}
    axes = []
    for text in vary:
        name, equals, values = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals or not values:
            raise InputError(f"--vary {text!r} must be NAME=VALUE,VALUE, such as max_num_seqs=64,256")
        axes.append(setting_axis(name, tuple(read_setting(known, name, part, "--vary") for part in values.split(","))))
    return axes
