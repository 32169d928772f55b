"""``infercast estimate``: how long single kernels take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli.options import shared as options
from infercast.cli.options.printed import Form, print_result
from infercast.errors import InputError
from infercast.forecast.estimate import (
    ALONE,
    CONDITIONS,
    ENDS,
    ENGINE,
    LASTING,
    estimate_kernel,
    estimate_table,
    power_of,
)
from infercast.forecast.shapes import SHAPES
from infercast.hardware import load_gpu, with_network
from infercast.predict.default import make_predictor
from infercast.report.kernels import power_dict, power_facts
from infercast.report.layout import facts, grid, section
from infercast.units import format_seconds

WORDS = {
    ALONE: "latency, alone",
    ENGINE: "inside an engine",
    LASTING: "sustained, at the power limit",
}
SIZES = {name for shape in SHAPES.values() for name in (*shape.sizes, *shape.optional)}


def _size(meaning: str, *names: str) -> Any:
    return typer.Option(*names, rich_help_panel="Sizes", metavar="N", show_default=False, help=meaning)


def _word(meaning: str) -> Any:
    return typer.Option(rich_help_panel="Formats", metavar="T", show_default=False, help=meaning)


def command(
    context: typer.Context,
    family: Annotated[str, typer.Argument(metavar="FAMILY", help=f"One of {', '.join(SHAPES)}.")],
    gpu: options.GpuName,
    m: Annotated[int | None, _size("Products: rows, the tokens.")] = None,
    n: Annotated[int | None, _size("Columns, the outputs.")] = None,
    k: Annotated[int | None, _size("What is summed over, the inputs.")] = None,
    batch: Annotated[int | None, _size("Attention: sequences.")] = None,
    q_len: Annotated[int | None, _size("Prompt tokens of each.")] = None,
    prefix: Annotated[int | None, _size("Tokens cached before each prompt; none by default.")] = None,
    kv_len: Annotated[int | None, _size("Tokens before, of each decoding sequence.")] = None,
    heads: Annotated[int | None, _size("Query heads, also of rope.")] = None,
    kv_heads: Annotated[int | None, _size("Key-value heads.")] = None,
    head_dim: Annotated[int | None, _size("Values per head.")] = None,
    window: Annotated[int | None, _size("Sliding window; 0, the default: none.")] = None,
    key_heads: Annotated[int | None, _size("Recurrent layers: heads of keys, or groups.")] = None,
    key_dim: Annotated[int | None, _size("Values per key, or of a state space's state.")] = None,
    value_dim: Annotated[int | None, _size("Values per head.")] = None,
    chunk: Annotated[int | None, _size("Tokens that a scan takes at a time.")] = None,
    channels: Annotated[int | None, _size("Convolutions: channels.")] = None,
    taps: Annotated[int | None, _size("Tokens that one is made of; 4 by default.")] = None,
    tokens: Annotated[int | None, _size("Experts: tokens of the step.")] = None,
    hidden: Annotated[int | None, _size("The model's width.")] = None,
    inter: Annotated[int | None, _size("An expert's width.")] = None,
    experts: Annotated[int | None, _size("Number of experts.")] = None,
    topk: Annotated[int | None, _size("Experts per token; keys or blocks chosen for one.")] = None,
    compress: Annotated[int | None, _size("Sparse attention: tokens of one entry; 1 by default.")] = None,
    rows: Annotated[int | None, _size("Memory-bound kernels: rows, the tokens.")] = None,
    width: Annotated[int | None, _size("Values per row.")] = None,
    bytes_: Annotated[int | None, _size("Collectives: bytes on each GPU.", "--bytes")] = None,
    gpus: Annotated[int | None, _size("GPUs that take part.")] = None,
    dtype: Annotated[str | None, _word("Of activations: bf16 by default.")] = None,
    weight_dtype: Annotated[str | None, _word("Of weights: that of activations by default.")] = None,
    kv_dtype: Annotated[str | None, _word("Of keys and values: bf16 by default.")] = None,
    state_dtype: Annotated[str | None, _word("Of recurrent states: fp32 by default.")] = None,
    table: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="A CSV of shapes; prints CSV."),
    ] = None,
    network: options.NetworkName = None,
    predictor: options.PredictorName = "learned",
    anchors: options.Anchors = None,
    measurements: options.Measurements = None,
    form: Form = Form.TABLE,
) -> None:
    """Estimate the latency and the power of one kernel, or of a CSV of shapes: 80 % interval, source and bound.

    Latency is of one launch alone; then of the same kernel inside an engine, and without a pause at the power limit.

    For example:

      infercast estimate gemm --m 4096 --n 14336 --k 4096 --dtype bf16 --gpu h200-sxm

      infercast estimate decode --batch 32 --kv-len 1400 --heads 32 --kv-heads 8 --head-dim 128 --gpu h200-sxm

      infercast estimate decode --csv shapes.csv --gpu b200-sxm
    """
    given = {name.rstrip("_"): value for name, value in context.params.items()}
    values = {name: value for name, value in given.items() if name in SIZES and value is not None}
    chosen = options.choose_predictor(predictor, anchors, gpu, measurements)
    device = with_network(load_gpu(gpu), network)
    used = make_predictor(chosen) if isinstance(chosen, str) else chosen
    if table is not None:
        if values:
            raise InputError(f"--csv brings its own sizes; leave out {', '.join(f'--{name}' for name in values)}")
        _print_table(list(estimate_table(used, device, family, table)), form)
        return
    found = {each: estimate_kernel(used, device, family, values, each) for each in CONDITIONS}
    estimate = found[ALONE]
    numbers = {each: {end: float(getattr(found[each], end)) for end in ENDS} for each in CONDITIONS}
    sizes = ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in values.items()
    )
    rows_ = [(WORDS[each], _shown(numbers[each])) for each in CONDITIONS]
    rows_.append(("source", estimate.source))
    power = power_of(device, family, values, estimate)
    rows_ += [("bound by", str(estimate.bound)), *power_facts(power)]
    print_result(
        form,
        lambda: {
            **numbers[ALONE],
            "condition": ALONE,
            **{each: numbers[each] for each in CONDITIONS if each != ALONE},
            "source": estimate.source,
            "bound": str(estimate.bound),
            "power": power_dict(power),
        },
        lambda: [section(f"{family} on {device.title}: {sizes}", facts(rows_))],
    )


def _shown(numbers: dict[str, float]) -> str:
    seconds, low, high = (format_seconds(numbers[end]) for end in ENDS)
    return f"{seconds} (80 % interval {low} to {high})"


def _print_table(rows: list[dict[str, Any]], form: Form) -> None:
    """The table with its estimates: as CSV, in which it came, unless another form is asked for."""

    def tables() -> list[Any]:
        return [grid(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])]

    print_result(Form.CSV if form is Form.TABLE else form, lambda: rows, tables)
