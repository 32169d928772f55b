"""``infercast variants``: models that do not exist yet, for architecture search."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from infercast.bundled import read_data
from infercast.cli.options import with_options
from infercast.cli.outputs import Form, print_answer
from infercast.errors import InputError, require
from infercast.forecast.option_table import Option
from infercast.forecast.variants import DEFAULTS, FRONTS, estimate_variants, variant_grid
from infercast.report.files import check_writable, csv_lines, write_whole

SIZES = read_data("kernel_options.toml")["variants"]
axis = partial(Option, panel="What changes")


@with_options(
    "gpu",
    *(
        axis(name, str, what, str(DEFAULTS[name]) if name in DEFAULTS else ..., metavar="VALUES")
        for name, what in SIZES.items()
    ),
    axis("samples", int, "So many drawn at random, in place of all combinations."),
    "seed",
    Option("decode", int, "Sequences that each compute one new token ...", 1),
    Option("context", int, "... after so many.", 1024),
    Option("prefill", int, "In place of decoding: tokens of one prompt."),
    Option("front", str, f"What latency is weighed against: {' or '.join(FRONTS)}.", "parameters"),
    Option("table", Path, "Write every variant to a CSV file.", flag="--csv"),
)
def command(*, gpu: str, table: Path | None, form: Form, **given: Any) -> None:
    if table is not None:
        check_writable(table, "--csv", (".csv",))
    for name in ("samples", "decode", "prefill"):
        require(given[name] is None or given[name] >= 1, f"--{name}", "be at least 1", given[name])
    grid: Any = variant_grid({name: _values(name, given[name]) for name in SIZES}, given["samples"], given["seed"])
    step = {"batch": given["decode"], "context": given["context"], "prompt": given["prefill"]}
    found = estimate_variants(gpu, **step, front=given["front"], **grid)
    if table is not None:
        columns = found.columns()
        write_whole(table, csv_lines([*columns], zip(*(each.tolist() for each in columns.values()), strict=True)))
    print_answer(form, found)


def _values(name: str, text: str) -> list[Any]:
    if name == "quantization":
        return [part.strip() for part in text.split(",")]
    values: list[int] = []
    try:
        for part in text.split(","):
            first, *rest = (int(each) for each in part.split(":"))
            last, step = [*rest, first, 1][:1] + [*rest[1:], 1][:1]
            values += range(first, last + 1, step)
    except ValueError:
        values = []
    if not values or min(values) < (name != "experts") or max(values) > 2**31:
        raise InputError(f"--{name.replace('_', '-')} {text} must be whole numbers: 32, 16,24,32 or 16:64:8")
    return values
