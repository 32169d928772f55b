"""``infercast trace``: any PyTorch module on any GPU."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, print_result
from infercast.errors import InputError, need
from infercast.forecast.option_table import OPTIONS, Option
from infercast.report.terminal import Facts, Grid, Printable, Section
from infercast.units import format_bytes, format_joules, format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from infercast.torch_modules.forecast import ModuleForecast, Part

BOUND = "of GPU time, a lower bound: its tensors are moved once"


@with_options(
    Option("module", str, "package.module:name, file.py:name or hf:config.json.", ..., metavar="MODULE", argument=True),
    Option("input", list, "Like 8x3x224x224 or input_ids:int64:8x128; repeatable.", ..., metavar="[NAME:][TYPE:]SHAPE"),
    "gpu",
    Option("dtype", str, "fp32, tf32, bf16 or fp16: of weights and inputs.", "fp32"),
    Option("execution", str, "eager, graph (CUDA graph) or compiled (torch.compile).", "eager"),
    OPTIONS["host"]._replace(help="Your CPU: a name of `infercast hosts`, or a host.json of `measure --host`."),
)
def command(*, module: str, form: Form, ctx: Any, **given: Any) -> None:
    need("tracing a module", "trace")
    from infercast.torch_modules.capture import load_module, read_inputs  # noqa: PLC0415
    from infercast.torch_modules.forecast import forecast_module  # noqa: PLC0415 - PyTorch takes seconds to load

    made = load_module(module)
    inputs = read_inputs(made, given.pop("input"))
    try:
        found = forecast_module(made, inputs, **given)
    except InputError:
        raise
    except Exception as problem:  # the user's code may raise anything
        raise InputError(f"{module} cannot run on these inputs: {type(problem).__name__}: {problem}") from None
    on_screen = 9  # Rows of each table that fit one screen
    tables, brief = (partial(render_trace, module, most=most) for most in (None, on_screen))
    print_result(form, trace_dict, tables, found, rows="operators", brief=brief)


def trace_dict(found: ModuleForecast) -> dict[str, Any]:
    return asdict(found) | {"bound": found.bound, "unknown_share": found.unknown_share}


def render_trace(name: str, found: ModuleForecast, *, most: int | None) -> list[Printable]:
    times = found.seconds, found.low, found.high, found.alone_seconds, found.gpu_seconds, found.host_seconds
    seconds, low, high, alone, gpu, host = map(format_seconds, times)
    weights, activations = format_bytes(found.weight_bytes), format_bytes(found.activation_bytes)
    facts = [
        ("module", f"{name}, {found.parameters:,} parameters, {found.dtype} on {found.gpu}, {found.execution}"),
        ("time of a call", f"{seconds} (80 % interval {low} to {high}, {found.source}); {alone} by itself"),
        ("GPU, host", f"{gpu} and {host}: bound by the {found.bound}; {found.host}"),
        ("kernels", f"{found.kernels:,}, {format_rate(found.flops / max(found.seconds, 1e-9), 'FLOP/s')}"),
        ("memory", f"{weights} of weights, {activations} of activations"),
        ("energy", format_joules(found.joules)),
        *((f"unknown: {part.name}", f"{format_percent(part.share)} {BOUND}") for part in found.unknown),
        *(("note", note) for note in found.notes),
    ]
    tables = {"Operators": found.operators, "Submodules": found.submodules}
    sections = (Section(title, _grid(parts[:most])) for title, parts in tables.items())
    return [Section("Forecast", Facts(facts)), *sections]


def _grid(parts: list[Part]) -> Grid:
    rows = ((each.name, each.calls, each.kernels, each.gpu_seconds, each.share) for each in parts)
    cells = ((a, f"{b:,}", f"{c:,}", format_seconds(d), format_percent(e)) for a, b, c, d, e in rows)
    return Grid(("name", "calls", "kernels", "GPU time", "share"), cells)
