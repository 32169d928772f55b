"""``infercast validate``: forecasts held against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infercast.cli.commands.validate_published import validate_published
from infercast.cli.options import shared as options
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.engines.registry import FAMILIES
from infercast.errors import InputError
from infercast.report.files import check_writable, write_whole
from infercast.report.validation.profiles import profiles_list, render_profiles
from infercast.report.validation.reliability_svg import reliability_svg
from infercast.report.validation.runs import render_validation, validation_dict
from infercast.validate.compare import validate
from infercast.validate.kernels import compare_profiles, summarise
from infercast.validate.measured import FIRST_MEASURED, read_measured, shipped_runs
from infercast.validate.reliability import reliability_of


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Measured runs, (gzipped) JSON, or a .csv; default: ours of an H200."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help=f"Whose runs, without a file: {' or '.join(FAMILIES)}.")
    ] = FIRST_MEASURED,
    model_config: Annotated[
        Path | None,
        typer.Option("--model-config", metavar="DIR", help="Folder of <model name>.json; bundled models otherwise."),
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="In place of the GPU that the file names.")] = None,
    predictor: options.PredictorName = "learned",
    host: Annotated[
        Path | None, typer.Option("--host", metavar="FILE", help="Host costs (.toml) in place of the bundled ones.")
    ] = None,
    warmed_up: Annotated[
        bool, typer.Option("--warmed-up", metavar="", help="The engine had served before; it starts cold otherwise.")
    ] = False,
    real_weights: Annotated[
        bool,
        typer.Option("--real-weights", metavar="", help="The engine's weights were trained; dummy ones otherwise."),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", metavar="", help="Also compare profiled steps, by kernel family.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Also draw how often promises held, by their odds (.svg)."),
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Re-run measured runs with their own arrivals, lengths and prefixes, and print the errors.

    Without a file, the runs of vLLM 0.25 on one H200 that come with infercast: 18 engines, 172 runs, some seconds.
    Those of SGLang 0.5.16 (--engine sglang): 9 engines, 124 runs. A file says itself whose runs it has.

    The last tables tell how often promises held that were so sure, and whether configurations come out in order.

    Files say how the engine was set up and how many KV blocks it had.

    A .csv table holds published runs, one per row, with means only.

    Both formats are described in docs/validation.md.

    For example:

      infercast validate

      infercast validate --engine sglang

      infercast validate runs.json.gz --kernels

      infercast validate published.csv --json
    """
    if model_config is not None and not model_config.is_dir():
        raise InputError(f"--model-config {model_config} is not a folder")
    if plot is not None:
        check_writable(plot, "--plot", (".svg",))
    files = files or shipped_runs(engine)
    tables = [path for path in files if path.suffix == ".csv"]
    if tables:
        _refuse_for_tables(files, tables, model_config, gpu, warmed_up or real_weights or kernels)
        validate_published(tables, predictor=predictor, host=host, plot=plot, form=form)
        return
    measured = [read_measured(path) for path in files]
    with runs_bar("re-running", sum(len(each.runs) for each in measured)) as progress:
        validation = validate(
            measured,
            model_config=model_config,
            gpu=gpu,
            predictor=predictor,
            host=host,
            warmed_up=warmed_up,
            real_weights=real_weights,
            progress=progress,
        )
    if plot is not None:
        write_whole(plot, [reliability_svg(reliability_of(validation.runs))])
    document, parts = validation_dict(validation), render_validation(validation)
    if kernels:
        profiles = compare_profiles(
            measured, model_config=model_config, gpu=gpu, predictor=predictor, real_weights=real_weights
        )
        document["profiles"] = profiles_list(profiles)
        document["summary"] |= summarise(profiles)
        parts += render_profiles(profiles)
    print_result(form, lambda: document, lambda: parts, rows="runs")


def _refuse_for_tables(
    files: list[Path], tables: list[Path], model_config: Path | None, gpu: str | None, switched: bool
) -> None:
    """What has no meaning for a table of published runs is refused, never ignored."""
    if len(tables) < len(files):
        raise InputError("tables of published runs (.csv) and files of measured runs are validated one kind at a time")
    if model_config is not None or gpu is not None or switched:
        raise InputError("a table of published runs takes only --predictor, --host, --plot and --json")
