"""Options that say what users send, and the workload they make, for commands that serve one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infercast.cli.options import WORKLOAD
from infercast.errors import InputError
from infercast.serve.lengths import parse_lengths
from infercast.serve.request import Workload
from infercast.serve.workload import scaled, synthetic_workload

INPUT_LEN, OUTPUT_LEN = "lognormal:700:0.9:16:8000", "lognormal:180:0.8:4:1000"
DEFAULT_COUNT = 1000
# What a trace brings along.
SYNTHETIC = (
    "rate", "arrival", "burstiness", "concurrency", "input_len", "output_len", "prefix_len", "prefix_groups", "seed",
)  # fmt: skip

Rate = Annotated[float | None, typer.Option("--rate", "-r", help="Requests per second.", rich_help_panel=WORKLOAD)]
Arrival = Annotated[
    str, typer.Option("--arrival", help="poisson, gamma, constant or burst (all at once).", rich_help_panel=WORKLOAD)
]
Burstiness = Annotated[
    float,
    typer.Option("--burstiness", help="Gamma arrivals: 1 is Poisson, less is burstier.", rich_help_panel=WORKLOAD),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", help="Closed loop: clients that wait for their answers.", rich_help_panel=WORKLOAD),
]
NumRequests = Annotated[
    int | None,
    typer.Option("--num-requests", "-n", help="Requests in all, or of the trace.", rich_help_panel=WORKLOAD),
]
InputLen = Annotated[
    str,
    typer.Option(
        "--input-len",
        help="Prompt tokens: 512, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MIN:MAX].",
        rich_help_panel=WORKLOAD,
    ),
]
OutputLen = Annotated[
    str, typer.Option("--output-len", help="Output tokens, in the same forms.", rich_help_panel=WORKLOAD)
]
PrefixLen = Annotated[
    int, typer.Option("--prefix-len", help="Tokens that prompts share at their start.", rich_help_panel=WORKLOAD)
]
PrefixGroups = Annotated[
    int, typer.Option("--prefix-groups", help="Number of different shared starts.", rich_help_panel=WORKLOAD)
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Replay a trace: Azure CSV, Mooncake JSONL, or plain CSV/JSONL.", rich_help_panel=WORKLOAD
    ),
]
RateScale = Annotated[
    float, typer.Option("--rate-scale", help="Replay a trace this many times as fast.", rich_help_panel=WORKLOAD)
]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same result.", rich_help_panel=WORKLOAD)]


def workload_of(context: typer.Context, default_count: int = DEFAULT_COUNT) -> Workload:
    """The workload that the options of a command ask for; the command must have all of those above."""
    given = context.params
    num_requests, trace = given["num_requests"], given["trace"]
    if num_requests is not None and num_requests < 1:
        raise InputError(f"--num-requests must be at least 1, not {num_requests}")
    refuse_idle_options(context, SYNTHETIC if trace is not None else ("rate_scale",), trace is not None)
    if trace is not None:
        from infercast.serve.traces import read_trace  # noqa: PLC0415 - most runs replay none

        return scaled(read_trace(Path(trace)), rate_scale=given["rate_scale"], limit=num_requests)
    if given["rate"] is None and given["concurrency"] is None and given["arrival"] != "burst":
        raise InputError("say how requests arrive: --rate R, --concurrency N, --arrival burst or --trace FILE")
    return synthetic_workload(
        arrival=given["arrival"],
        rate=given["rate"],
        count=default_count if num_requests is None else num_requests,
        concurrency=given["concurrency"],
        input_lengths=parse_lengths(given["input_len"], "--input-len"),
        output_lengths=parse_lengths(given["output_len"], "--output-len"),
        burstiness=given["burstiness"],
        prefix_length=given["prefix_len"],
        prefix_groups=given["prefix_groups"],
        seed=given["seed"],
    )


def refuse_idle_options(context: typer.Context, names: tuple[str, ...], replays: bool) -> None:
    """An option that would change nothing is refused, never ignored."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            reason = "a trace brings its own arrivals and lengths; only --rate-scale and --num-requests change it"
            raise InputError(
                f"{option} has no meaning with --trace: {reason}" if replays else f"{option} needs --trace"
            )
