"""``infercast validate``: forecasts compared with measured runs and profiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from infercast.cli.options import choose_predictor, with_options
from infercast.cli.outputs import Form, print_result, runs_bar
from infercast.engines.base import FAMILIES, engine_of
from infercast.errors import InputError
from infercast.forecast.option_table import Option
from infercast.hardware import gpu_from_driver_name
from infercast.lab.validate.compare import validate
from infercast.lab.validate.kernels import ProfileComparison, compare_profiles, summarise
from infercast.lab.validate.measured import MeasuredFile, read_measured, shipped_runs
from infercast.lab.validate.reliability import reliability_of
from infercast.predict.roofline import Predictor
from infercast.report import accuracy
from infercast.report.files import check_writable, write_whole
from infercast.report.terminal import Grid, Section, pick
from infercast.units import format_percent


def render_profiles(profiles: Sequence[ProfileComparison]) -> list[RenderableType]:
    """One table a profile, then medians over all."""
    parts = [_render(profile) for profile in profiles]
    summary = summarise(profiles)
    rows = [
        ("kernel families with 1 % of a profile's time or more", summary["kernel_ape_median"]),
        ("GPU busy time of a step", summary["busy_ape_median"]),
    ]
    cells = [(name, "-" if error is None else format_percent(error)) for name, error in rows]
    table = Grid(("", "median error"), cells)
    note = "no profile in these files"
    if (covered := summary["kernel_time_covered"]) is not None:
        note = f"{format_percent(covered)} of the profiled time is estimated"
    return [*parts, Section("Kernels of profiled steps", Group(Text(f"{note}\n"), table))]


def _render(profile: ProfileComparison) -> RenderableType:
    shown = [
        *((name if name in profile.scored else f"{name} (below 1 %)", each) for name, each in profile.families.items()),
        ("all kernels", profile.busy),
    ]
    rows = [
        (name, f"{each.measured / 1e3:,.2f}", f"{each.predicted / 1e3:,.2f}", accuracy.signed_percent(each.error))
        for name, each in shown
        if each.measured > 0 or each is profile.busy
    ]
    return Section(f"{profile.file}: {profile.tag}", Grid(("family", "measured ms", "predicted ms", "error"), rows))


def profiles_list(profiles: Sequence[ProfileComparison]) -> list[dict[str, Any]]:
    """The same as plain data; ``ape`` is a fraction."""
    pair = partial(pick, names="", measured_us="measured", predicted_us="predicted", ape="ape")
    return [
        {
            **pick(profile, "file tag"),
            "families": {name: pair(values) for name, values in profile.families.items()},
            "busy": pair(profile.busy),
        }
        for profile in profiles
    ]


def _predictor(files: Sequence[MeasuredFile], name: str, anchors: Path | None, gpu: str | None) -> str | Predictor:
    if anchors is None:
        return name
    ran_on = {(gpu or gpu_from_driver_name(each.gpu).name, engine_of(each.setup.settings).family) for each in files}
    if len(ran_on) > 1:
        found = ", ".join(f"{engine} on {gpu}" for gpu, engine in sorted(ran_on))
        raise InputError(f"--anchors correct one engine on one GPU; these files are of {found}: validate one at a time")
    ((where, engine),) = ran_on
    return choose_predictor(name, anchors, where, engine=engine)


@with_options(
    Option("files", list[Path], "Measured runs, (gzipped) JSON; default: ours of an H200.", metavar="[FILE]...",
           argument=True),
    Option("engine", str, f"Whose runs, without a file: {' or '.join(FAMILIES)}.", "vllm"),
    Option("model_config", Path, "Folder of <model name>.json; bundled models otherwise.", metavar="DIR"),
    Option("gpu", str, "In place of the GPU that the file names."),
    "predictor anchors host",
    Option("warmed_up", bool, "The engine had served before; it starts cold otherwise.", False),
    Option("real_weights", bool, "The engine's weights were trained; dummy ones otherwise.", False),
    Option("kernels", bool, "Also compare profiled steps, by kernel family.", False),
    Option("plot", Path, "Also draw how often promises held, by their odds (.svg)."),
)  # fmt: skip
def command(
    *, files: list[Path] | None, engine: str, host: str | None, plot: Path | None, form: Form, **given: Any
) -> None:
    model_config = given["model_config"]
    if model_config is not None and not model_config.is_dir():
        raise InputError(f"--model-config {model_config} is not a folder")
    if plot is not None:
        check_writable(plot, "--plot", (".svg",))
    files = files or shipped_runs(engine)
    measured = [read_measured(path) for path in files]
    common = {name: given[name] for name in ("model_config", "gpu", "real_weights")}
    common["predictor"] = _predictor(measured, given["predictor"], given["anchors"], given["gpu"])
    with runs_bar("re-running", sum(len(each.runs) for each in measured)) as progress:
        validation = validate(measured, **common, host=host, warmed_up=given["warmed_up"], progress=progress)
    if plot is not None:
        write_whole(plot, [accuracy.reliability_svg(reliability_of(validation.runs))])
    document, parts = accuracy.validation_dict(validation), accuracy.render_validation(validation)
    if given["kernels"]:
        profiles = compare_profiles(measured, **common)
        document["profiles"] = profiles_list(profiles)
        document["summary"] |= summarise(profiles)
        parts += render_profiles(profiles)
    totals = accuracy.render_totals(validation)
    print_result(form, lambda: document, lambda: parts, rows="runs", brief=lambda: [*totals, *parts])
