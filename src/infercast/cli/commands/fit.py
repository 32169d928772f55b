"""``infercast fit`` and ``infercast evaluate``: learn kernel efficiencies, and report their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.cli.options import known_names, with_options
from infercast.cli.outputs import Form, print_result, stages_bar
from infercast.errors import InputError, UnknownNameError, need, require
from infercast.forecast.option_table import own_options
from infercast.hardware import load_gpu
from infercast.predict.fitted import load_artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import default_artifact
from infercast.report.terminal import Grid, RenderableType, Section, styled
from infercast.units import format_percent


def render_evaluation(result: dict[str, Any]) -> list[RenderableType]:
    """One table a family: every GPU, then its dtypes."""
    parts: list[RenderableType] = []
    for family, scores in result["families"].items():
        rows = []
        for gpu, statistics in scores["gpus"].items():
            rows.append((gpu, *_cells(statistics)))
            rows += [(f"  {dtype}", *_cells(inner)) for dtype, inner in statistics["by_dtype"].items()]
        parts.append(Section(family, Grid(("GPU", "rows", "mean", "median", "p90", "in interval"), rows)))
    return [
        *parts,
        Section("All", Grid(("", "rows", "mean", "median", "p90", "in interval"), [("", *_cells(result["overall"]))])),
    ]


def _cells(statistics: dict[str, Any]) -> tuple[str, ...]:
    errors = (format_percent(statistics[name]) for name in ("mape", "median_ape", "p90_ape", "coverage80"))
    return (f"{statistics['rows']:,}", *errors)


FAMILIES: tuple[str, ...] = read_data("lab/fit.toml")["families"]
TIERS = ("measured", "few-shot", "sibling", "unseen")


@with_options(own_options("fit", families=", ".join(FAMILIES)))
def fit(*, data: Path, out: Path, measurements: Path | None, form: Form, **given: Any) -> None:
    need("fitting and scoring", "fit")
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
    written = train.archives_of(out, fitted)
    size = sum(path.stat().st_size for path in written)
    names = ", ".join(map(str, written))
    slow = train.count_left_out(samples)
    lines = [f"{names}: {len(fitted)} models of {rows:,} rows, {size / 1e6:.2f} MB"]
    if slow:
        lines.append(f"left out of models for other GPUs: {slow:,} rows of groups that take over twice their physics")
    document = {"written": names, "models": len(fitted), "rows": rows, "left_out": slow, "bytes": size}
    print_result(form, lambda: document, lambda: [styled("\n".join(lines))])


@with_options(own_options("evaluate", families=", ".join(FAMILIES)))
def evaluate(*, data: Path, artifact: Path | None, tier: str | None, anchors: int, form: Form, **given: Any) -> None:
    need("fitting and scoring", "fit")
    from infercast.lab.fit.evaluate import score  # noqa: PLC0415 - only this command needs it

    if tier is not None and tier not in TIERS:
        raise UnknownNameError("tier", tier, TIERS)
    require(anchors >= 1, "--anchors", "be at least 1", anchors)
    _need_folder(data, "DATA")
    with stages_bar() as tell:
        if tell is not None:
            tell("scoring")
        result = score(
            data,
            load_artifact(artifact) if artifact is not None else default_artifact(),
            kernel_profile(),
            families=known_names("family", given["families"] or "", FAMILIES) or FAMILIES,
            gpus=_gpus(given["gpus"]),
            tier=tier,
            in_sample=given["in_sample"],
            anchors=anchors,
        )
    print_result(form, dict, render_evaluation, result, rows="families")


def _need_folder(path: Path, what: str) -> None:
    if not path.is_dir():
        raise InputError(f"{what}: {path} is not a folder")


def _gpus(text: str | None) -> list[str] | None:
    return None if text is None else [load_gpu(name).name for name in known_names("GPU", text)]
