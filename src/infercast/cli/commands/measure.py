"""The lab: ``infercast measure`` of kernels and hosts, ``fit`` of tables, and ``validate`` against measured runs."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.cli.options import choose_predictor, known_names, with_options
from infercast.cli.outputs import Form, bar_of, note, print_result, runs_bar, stages_bar
from infercast.engines.base import FAMILIES, engine_named, engine_of
from infercast.errors import InputError, UnknownNameError, need, require
from infercast.forecast.deploy import deploy
from infercast.forecast.option_table import Option
from infercast.hardware import gpu_from_driver_name, load_gpu
from infercast.hardware.host import MEASURED, HostProbe, read_probe
from infercast.lab.measure.device import ENGINES, probe_host
from infercast.lab.measure.rows import DEFAULT as ANCHORS
from infercast.lab.measure.rows import NAMES
from infercast.lab.measure.sweep import Progress, Sweep, run_sweep
from infercast.lab.validate.compare import PARTS, validate
from infercast.lab.validate.measured import MeasuredFile, read_measured, shipped_runs
from infercast.predict.roofline import Predictor
from infercast.report import accuracy
from infercast.report.files import write_in_folder
from infercast.report.terminal import Facts, Grid, Paragraph, Section, pick, styled
from infercast.serve import Request, Workload, simulate
from infercast.units import json_text

MINUTES, MINUTES_OF_ANCHORS = 10.0, 1.0


@with_options(
    Option("out", Path, "Where to write; tables go to DIR/<gpu>/, --host to a file (host.json).", metavar="DIR"),
    Option("minutes", float, "Time limit, default 10, anchors 1; the most useful shapes come first.", metavar="N"),
    Option("families", str, f"Only these of {', '.join(NAMES)}.", metavar="A,B"),
    Option("engine", str, "vllm or torch: whose kernels; default: vLLM's if installed."),
    Option("host", bool, "Time this machine's CPU instead, in ten seconds, for --host of other commands.", False),
    Option("anchors", int, f"N shapes ({ANCHORS} at most) of each kernel: for --anchors of other commands."),
)
def command(
    *, out: Path | None, minutes: float | None, engine: str | None, anchors: int | None, form: Form, **given: Any
) -> None:
    chosen = _families(given["families"])
    if given["host"]:
        if chosen or engine or anchors or minutes is not None:
            raise InputError("--host times no kernels; leave out --families, --anchors, --minutes and --engine")
        _host(out, form)
        return
    if minutes is None:
        minutes = MINUTES if anchors is None else MINUTES_OF_ANCHORS
    require(0 < minutes < math.inf, "--minutes", "be above 0", minutes)
    require(anchors is None or 0 < anchors <= ANCHORS, "--anchors", f"be between 1 and {ANCHORS}", anchors)
    if engine is not None and engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if out is None:
        raise InputError("say where tables go: --out DIR (only `infercast measure --host` needs none)")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is not a folder")
    try:
        with _bar(60 * minutes) as progress:
            result = run_sweep(
                out, minutes=minutes, families=chosen, engine=engine, progress=progress, anchors=anchors or 0
            )
    except KeyboardInterrupt:
        note("stopped; the same command takes the sweep up again")
        sys.exit(130)
    print_result(form, _sweep_dict, _sweep_tables, result, out, anchors)


def _families(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = known_names("kernel family", text, NAMES)
    if not names:
        raise InputError(f"--families names none of {', '.join(NAMES)}")
    return names


@contextmanager
def _bar(budget: float) -> Iterator[Progress]:
    task = {"description": "getting ready", "total": 1.0}
    with bar_of(task, "measuring", "BarColumn", "{task.description}") as update:

        def on_progress(finished: int, total: int, used: float) -> None:
            left = seconds_left(finished, total, used, budget)
            text = f"{finished:,} of {total:,} shapes, {left // 60:.0f}:{left % 60:02.0f} left"
            update(completed=used / max(used + left, 1e-9), description=text)

        yield on_progress


def seconds_left(finished: int, total: int, used: float, budget: float) -> float:
    """Until all is done at the speed so far or, if that comes first, until the time is up."""
    until_stop = max(0.0, budget - used)
    return min(until_stop, used / finished * (total - finished)) if finished else until_stop


def _next(out: Path, anchors: int | None) -> str:
    if anchors:
        return f"infercast simulate MODEL --gpu GPU --anchors {shlex.quote(str(out))}"
    return f"infercast fit DATA --measurements {shlex.quote(str(out))} --out kernels.npz"


def _sweep_dict(result: Sweep, out: Path, anchors: int | None) -> dict[str, Any]:
    return {
        **pick(result, "gpu engine left", measured="rows", rows="tables", skipped="tally.skipped"),
        "folder": str(result.folder), "minutes": round(result.seconds / 60, 2), "next": _next(out, anchors),
    }  # fmt: skip


def _sweep_tables(result: Sweep, out: Path, anchors: int | None) -> list[Any]:
    spent = f"{result.seconds / 60:.1f} minutes, {result.rows:,} rows new"
    if result.left:
        spent += f", {result.left:,} shapes left: the same command goes on with them"
    kernels = "vLLM's where it has them" if result.engine == "vllm" else "PyTorch's own"
    parts = [
        Facts([("GPU", result.gpu), ("written to", str(result.folder)), ("kernels", kernels), ("time", spent)]),
        Grid(("table", "rows"), [(name, f"{rows:,}") for name, rows in result.tables.items()]),
    ]
    if result.tally.skipped:
        rows = [(f"{count:,}", reason) for reason, count in result.tally.skipped.items()]
        parts.append(Section("Skipped", Grid(("shapes", "why"), rows, text_columns=0, notes_at=(1,))))
    return [*parts, Section("Next", Facts([("learn from it", _next(out, anchors))]))]


GPU, EXAMPLES = "h200-sxm", ("qwen3-0.6b", "llama-3.1-8b")  # A model whose steps the host decides, and a usual one
GROUPS = {"python": "planning, requests and tokens", "launch": "launches", "wake": "wake-ups"}


def _host(out: Path | None, form: Form) -> None:
    path = Path("host.json") if out is None else out if out.suffix == ".json" else out / "host.json"
    write_in_folder(path, json_text(document := probe_host(), indent=1) + "\n")
    probe = read_probe(path)
    following = f"infercast simulate MODEL --gpu GPU --rate 8 --host {shlex.quote(str(path))}"
    usual = engine_named().default_host()
    factors = probe.factors(usual.python_at, usual.launch_at)
    found = {"file": str(path), **pick(probe, "python launch"), "factors": factors, "next": following}
    found["probe"] = document
    print_result(form, lambda: found, lambda: _host_tables(document, probe, found), rows="factors")


def _host_tables(document: dict[str, Any], probe: HostProbe, found: dict[str, Any]) -> list[Any]:
    loop, machine = document["python"]["dict_loop_20k_us"], document["machine"]
    spread = f"{loop['p50']:,.0f} us a loop, 80 % in {loop['p10']:,.0f} to {loop['p90']:,.0f}"
    steady = 1.3  # The ninetieth percentile of a steady host is at most so many times the tenth
    unsteady = "its speed changed meanwhile: other work on this machine, or a CPU that is shared; measure again"
    facts = [
        ("machine", f"{machine['cpu'].get('Model name', 'a CPU')}, {machine.get('gpu', 'no GPU')}"),
        ("Python", f"{probe.python:.2f} times as long as on the reference host ({spread})"),
        ("launches", "no GPU that PyTorch sees" if probe.launch is None else f"{probe.launch:.2f} times as long"),
        ("host times", ", ".join(f"{GROUPS[group]} x {factor:.2f}" for group, factor in found["factors"].items())),
        *([("", unsteady)] if loop["p90"] > steady * loop["p10"] else []),
    ]
    rows = []
    for model in EXAMPLES:
        usual, yours = (_idle(model, host) for host in (MEASURED, probe))
        times = [1e3 * each for pair in zip(usual, yours, strict=True) for each in pair]
        rows.append((f"{model} on {GPU}", *(f"{each:.2f} ms" for each in times)))
    columns = ("a lone prompt of 512 tokens", "TTFT", "on this host", "TPOT", "on this host")
    after = Facts([("written to", found["file"]), ("use it", found["next"])])
    return [Facts(facts), Section("What that does to a forecast", Grid(columns, rows)), Section("Next", after)]


def _idle(model: str, host: HostProbe | str) -> tuple[float, float]:
    record = simulate(deploy(model, GPU, api_server=False, host=host).replica(), Workload((Request(0.0, 512, 32),)))
    return float(record.ttft[0]), float(record.tpot[0])


FITTED = tuple(read_data("lab/fit.toml")["columns"])


@with_options(
    Option("data", Path, "Folder of parquet files, one per kernel family.", ..., metavar="DATA", argument=True),
    Option("out", Path, "Artefact to write (.npz).", ...),
    Option("gpus", str, "Only these GPUs.", metavar="A,B"),
    Option("families", str, f"Of {', '.join(FITTED)}.", metavar="A,B"),
    Option("measurements", Path, "Also tables of `infercast measure`.", metavar="DIR"),
)
def fit_command(*, data: Path, out: Path, measurements: Path | None, form: Form, **given: Any) -> None:
    need("fitting", "fit")
    from infercast.lab.fit import train  # noqa: PLC0415 - only this command needs it
    from infercast.lab.fit.samples import read_samples, sweep_samples  # noqa: PLC0415 - only this command needs it
    from infercast.lab.fit.tables import FILES  # noqa: PLC0415 - only this command needs it

    _need_folder(data, "DATA")
    _need_folder(out.parent, "--out")
    chosen = known_names("family", given["families"] or "", FITTED) or tuple(
        each for each in FITTED if (data / FILES[each]).exists()
    )
    with stages_bar() as tell:
        samples = read_samples(data, chosen, _gpus(given["gpus"]))
        if measurements is not None:
            samples |= sweep_samples(measurements, chosen)
        tables = train.table_hashes(data, chosen)
        sweeps = {} if measurements is None else train.sweep_hashes(measurements, chosen)
        provenance = {
            "data": {name: found[:16] for name, found in tables.items()}, "gpus": sorted({key[1] for key in samples}),
            "engines": sorted({key[2] for key in samples}), "licence": "facts and figures; see docs/predict.md",
        }  # fmt: skip
        fitted = train.fit_artifact(samples, out, provenance, tell, train.origin_of({**tables, **sweeps}))
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


def _corrected(files: Sequence[MeasuredFile], name: str, anchors: Path | None, gpu: str | None) -> str | Predictor:
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
def validate_command(*, files: list[Path] | None, engine: str, host: str | None, form: Form, **given: Any) -> None:
    model_config = given["model_config"]
    if model_config is not None and not model_config.is_dir():
        raise InputError(f"--model-config {model_config} is not a folder")
    files = files or shipped_runs(engine)
    measured = [read_measured(path) for path in files]
    common = {name: given[name] for name in ("model_config", "gpu", "real_weights", "without")}
    common["predictor"] = _corrected(measured, given["predictor"], given["anchors"], given["gpu"])
    with runs_bar("re-running", sum(len(each.runs) for each in measured)) as progress:
        validation = validate(measured, **common, host=host, warmed_up=given["warmed_up"], progress=progress)
    document, parts = accuracy.validation_dict(validation), accuracy.render_validation(validation)
    totals = accuracy.render_totals(validation)
    if (part := given["without"]) is not None:
        document["without"] = part
        totals.insert(0, Paragraph(f"Without {part}: {PARTS[part]}."))
    print_result(form, lambda: document, lambda: parts, rows="runs", brief=lambda: [*totals, *parts])
