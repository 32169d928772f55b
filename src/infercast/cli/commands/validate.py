"""``infercast validate``: forecasts compared with measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infercast.cli.options import choose_predictor, with_options
from infercast.cli.outputs import Form, print_result, runs_bar
from infercast.engines.base import FAMILIES, engine_of
from infercast.errors import InputError
from infercast.forecast.option_table import Option
from infercast.hardware import gpu_from_driver_name
from infercast.lab.validate.compare import PARTS, validate
from infercast.lab.validate.measured import MeasuredFile, read_measured, shipped_runs
from infercast.predict.roofline import Predictor
from infercast.report import accuracy
from infercast.report.terminal import Paragraph


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
    Option("without", str, f"Turn a part of the forecast off: {', '.join(PARTS)}.", metavar="PART"),
)  # fmt: skip
def command(*, files: list[Path] | None, engine: str, host: str | None, form: Form, **given: Any) -> None:
    model_config = given["model_config"]
    if model_config is not None and not model_config.is_dir():
        raise InputError(f"--model-config {model_config} is not a folder")
    files = files or shipped_runs(engine)
    measured = [read_measured(path) for path in files]
    common = {name: given[name] for name in ("model_config", "gpu", "real_weights", "without")}
    common["predictor"] = _predictor(measured, given["predictor"], given["anchors"], given["gpu"])
    with runs_bar("re-running", sum(len(each.runs) for each in measured)) as progress:
        validation = validate(measured, **common, host=host, warmed_up=given["warmed_up"], progress=progress)
    document, parts = accuracy.validation_dict(validation), accuracy.render_validation(validation)
    totals = accuracy.render_totals(validation)
    if (part := given["without"]) is not None:
        document["without"] = part
        totals.insert(0, Paragraph(f"Without {part}: {PARTS[part]}."))
    print_result(form, lambda: document, lambda: parts, rows="runs", brief=lambda: [*totals, *parts])
