"""``infercast fit``: learn kernel efficiencies from measured tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.cli.options import known_names, with_options
from infercast.cli.outputs import Form, print_result, stages_bar
from infercast.errors import InputError, need
from infercast.forecast.option_table import Option
from infercast.hardware import load_gpu
from infercast.report.terminal import styled

FAMILIES = tuple(read_data("lab/fit.toml")["columns"])


@with_options(
    Option("data", Path, "Folder of parquet files, one per kernel family.", ..., metavar="DATA", argument=True),
    Option("out", Path, "Artefact to write (.npz).", ...),
    Option("gpus", str, "Only these GPUs.", metavar="A,B"),
    Option("families", str, f"Of {', '.join(FAMILIES)}.", metavar="A,B"),
    Option("measurements", Path, "Also tables of `infercast measure`.", metavar="DIR"),
)
def fit(*, data: Path, out: Path, measurements: Path | None, form: Form, **given: Any) -> None:
    need("fitting", "fit")
    from infercast.lab.fit import train  # noqa: PLC0415 - only this command needs it
    from infercast.lab.fit.samples import read_samples, sweep_samples  # noqa: PLC0415 - only this command needs it
    from infercast.lab.fit.tables import FILES  # noqa: PLC0415 - only this command needs it

    _need_folder(data, "DATA")
    _need_folder(out.parent, "--out")
    chosen = known_names("family", given["families"] or "", FAMILIES) or tuple(
        each for each in FAMILIES if (data / FILES[each]).exists()
    )
    with stages_bar() as tell:
        samples = read_samples(data, chosen, _gpus(given["gpus"]))
        if measurements is not None:
            samples |= sweep_samples(measurements, chosen)
        tables = train.table_hashes(data, chosen)
        sweeps = {} if measurements is None else train.sweep_hashes(measurements, chosen)
        provenance = {
            "data": {name: found[:16] for name, found in tables.items()},
            "gpus": sorted({key[1] for key in samples}),
            "engines": sorted({key[2] for key in samples}),
            "licence": "facts and figures; see docs/predict.md",
        }
        fitted = train.fit_artifact(
            samples, out, provenance, tell or (lambda _: None), train.origin_of({**tables, **sweeps})
        )
    rows = sum(entry.rows for entry in fitted if entry.gpu != "*")
    size = out.stat().st_size
    slow = train.count_left_out(samples)
    lines = [f"{out}: {len(fitted)} models of {rows:,} rows, {size / 1e6:.2f} MB"]
    if slow:
        lines.append(f"left out of models for other GPUs: {slow:,} rows of groups that take over twice their physics")
    document = {"written": str(out), "models": len(fitted), "rows": rows, "left_out": slow, "bytes": size}
    print_result(form, lambda: document, lambda: [styled("\n".join(lines))])


def _need_folder(path: Path, what: str) -> None:
    if not path.is_dir():
        raise InputError(f"{what}: {path} is not a folder")


def _gpus(text: str | None) -> list[str] | None:
    return None if text is None else [load_gpu(name).name for name in known_names("GPU", text)]
