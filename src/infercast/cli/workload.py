"""What is served: the options that describe a workload, and the workload they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from infercast.cli.options import WORKLOAD
from infercast.errors import InputError
from infercast.records import dataclass
from infercast.serve.lengths import LengthDistribution, parse_lengths
from infercast.serve.request import Workload
from infercast.serve.too_long import TOO_LONG, check_too_long, refuse_too_long, truncated, without_too_long
from infercast.serve.workload import scaled, synthetic_workload

INPUT_LENGTHS = "lognormal:700:0.9:16:8000"
OUTPUT_LENGTHS = "lognormal:180:0.8:4:1000"

Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", "--request-rate", "-r", metavar="R", rich_help_panel=WORKLOAD,
        help="Requests per second; a trace's arrivals are scaled to it.",
    ),
]  # fmt: skip
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", "--max-concurrency", metavar="N", rich_help_panel=WORKLOAD,
        help="Closed loop: this many clients, each of which waits for its answer before it sends again.",
    ),
]  # fmt: skip
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", rich_help_panel=WORKLOAD,
        help="Replay a trace: Azure CSV, Mooncake JSONL, or plain CSV/JSONL.",
    ),
]  # fmt: skip
InputLengths = Annotated[
    str,
    typer.Option(
        "--input-len", metavar="LENGTH", rich_help_panel=WORKLOAD,
        help="Prompt tokens: 512, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MIN:MAX].",
    ),
]  # fmt: skip
OutputLengths = Annotated[
    str,
    typer.Option("--output-len", metavar="LENGTH", help="Output tokens, in the same forms.", rich_help_panel=WORKLOAD),
]
TooLong = Annotated[
    str,
    typer.Option(
        "--too-long", metavar="HOW", rich_help_panel=WORKLOAD,
        help="Requests above max_model_len: refuse, truncate (the prompt first) or skip.",
    ),
]  # fmt: skip
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same result.", rich_help_panel=WORKLOAD)]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a command that say what is served."""

    num_requests: int | None
    default_count: int
    rate: float | None = None
    concurrency: int | None = None
    input_len: str = INPUT_LENGTHS
    output_len: str = OUTPUT_LENGTHS
    trace: Path | None = None
    too_long: str = TOO_LONG[0]
    seed: int = 0
    arrival: str = "poisson"
    burstiness: float = 1.0
    prefix_len: int = 0
    prefix_groups: int = 1
    rate_scale: float = 1.0


def make_workload(asked: Asked, longest: int) -> Workload:
    """The requests, all of them within ``longest`` tokens; what was clipped, cut or left out is in the description."""
    if asked.num_requests is not None and asked.num_requests < 1:
        raise InputError(f"--num-requests must be at least 1, not {asked.num_requests}")
    check_too_long(asked.too_long)
    workload = _synthetic(asked, longest) if asked.trace is None else _replayed(asked.trace, asked, longest)
    if asked.too_long == "truncate":
        return truncated(workload, longest)
    refuse_too_long(workload, longest)
    return workload


def _replayed(path: Path, asked: Asked, longest: int) -> Workload:
    from infercast.serve.traces import read_trace  # noqa: PLC0415 - most runs replay none

    workload = read_trace(path)
    if asked.too_long == "skip":
        workload = without_too_long(workload, longest)
    return scaled(workload, rate_scale=asked.rate_scale, rate=asked.rate, limit=asked.num_requests)


def _synthetic(asked: Asked, longest: int) -> Workload:
    inputs, outputs, is_clipped = _lengths(asked, longest)
    workload = synthetic_workload(
        arrival=asked.arrival,
        rate=asked.rate,
        count=asked.default_count if asked.num_requests is None else asked.num_requests,
        concurrency=asked.concurrency,
        input_lengths=inputs,
        output_lengths=outputs,
        burstiness=asked.burstiness,
        prefix_length=asked.prefix_len,
        prefix_groups=asked.prefix_groups,
        seed=asked.seed,
    )
    if is_clipped:
        words = f"{workload.description}; default lengths clipped to max_model_len {longest:,}"
        workload = replace(workload, description=words)
    return without_too_long(workload, longest) if asked.too_long == "skip" else workload


def _lengths(asked: Asked, longest: int) -> tuple[LengthDistribution, LengthDistribution, bool]:
    """Lengths of prompts and answers. Those that nobody chose are clipped to what the model allows."""
    inputs = parse_lengths(asked.input_len, "--input-len")
    outputs = parse_lengths(asked.output_len, "--output-len")
    room = longest - asked.prefix_len
    if inputs.maximum + outputs.maximum <= room:
        return inputs, outputs, False
    asked_for = inputs, outputs
    if asked.output_len == OUTPUT_LENGTHS:
        outputs = _clipped(outputs, room // 4 if asked.input_len == INPUT_LENGTHS else room - inputs.maximum)
    if asked.input_len == INPUT_LENGTHS:
        inputs = _clipped(inputs, room - outputs.maximum)
    return inputs, outputs, (inputs, outputs) != asked_for


def _clipped(lengths: LengthDistribution, most: int) -> LengthDistribution:
    """The same up to ``most`` tokens; where there is no room at all they stay, and requests are found too long."""
    if most < 1:
        return lengths
    return replace(lengths, minimum=min(lengths.minimum, most), maximum=min(lengths.maximum, most))
