"""Options of a workload: arrivals, lengths, traces, sessions, request classes and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast.cli.options.deployment import is_given, longest_asked, of_workload
from infercast.errors import InputError
from infercast.forecast.deploy import load_model
from infercast.forecast.options import THINK, TOOL_TIME, TURN_LEN, random_requests
from infercast.serve.workload.redraw import begun_anew, scaled
from infercast.serve.workload.request import (
    Adapters,
    Workload,
    check_too_long,
    refuse_too_long,
    truncated,
    without_too_long,
)
from infercast.serve.workload.synthetic import ended

OF_SESSIONS = ("turn_len", "think", "tool_share", "tool_time", "tool_len")
"""Options that need --turns."""

of_session = partial(typer.Option, rich_help_panel="Sessions, classes and adapters", show_default=False)

Turns = Annotated[
    str | None,
    of_session(
        "--turns",
        metavar="LENGTH",
        help="Requests are turns of sessions: this many each, 5 or uniform:2:10. Prompts hold the whole history. "
        "With --concurrency, this many sessions run at a time.",
    ),
]
SessionRate = Annotated[
    float | None,
    of_session("--session-rate", metavar="R", help="Sessions that begin per second, in place of --rate."),
]
TurnLen = Annotated[
    str,
    of_session("--turn-len", metavar="LENGTH", help=f"New tokens of each later turn; default {TURN_LEN}."),
]
Think = Annotated[
    str,
    of_session(
        "--think",
        metavar="SECONDS",
        help=f"From an answer to the next turn: 8, uniform:MIN:MAX, exponential:MEAN, lognormal:MEAN:SIGMA; "
        f"default {THINK}.",
    ),
]
ToolShare = Annotated[
    float,
    of_session("--tool-share", metavar="X", help="Agents: share of later turns that are a tool's result, 0 to 1."),
]
ToolTime = Annotated[
    str, of_session("--tool-time", metavar="SECONDS", help=f"How long a tool runs; default {TOOL_TIME}.")
]
ToolLen = Annotated[
    str | None, of_session("--tool-len", metavar="LENGTH", help="Tokens of a tool's result; default: --turn-len.")
]
FollowSessions = Annotated[
    bool,
    of_session(
        "--follow-sessions",
        metavar="",
        help="With --trace: no turn is sent before the answer to the one before it.",
    ),
]
Classes = Annotated[
    list[str],
    of_session(
        "--class",
        metavar="CLASS",
        help="A kind of traffic by name, share, priority and SLO in seconds: chat:0.7:priority=0:ttft=0.5,tpot=0.05; "
        "again for each. Priorities count with --scheduling-policy priority.",
    ),
]
NumAdapters = Annotated[
    int | None, of_session("--adapters", metavar="N", help="LoRA adapters that requests ask for; needs --enable-lora.")
]
AdapterSkew = Annotated[
    float,
    of_session("--adapter-skew", metavar="X", help="Zipf: the k-th adapter as often as 1 / k^X; default 1, 0: alike."),
]
AdapterShare = Annotated[
    float, of_session("--adapter-share", metavar="X", help="Share of requests that ask for one; default all.")
]


def labelled(workload: Workload, given: Mapping[str, Any]) -> Workload:
    """The same requests in the classes and with the adapters that the options ask for."""
    if given.get("class_"):
        from infercast.serve.workload.classes import (  # noqa: PLC0415 - as above
            parse_class,
            with_classes,
        )

        workload = with_classes(workload, [parse_class(text) for text in given["class_"]], seed=given["seed"])
    elif any(request.slo_class for request in workload.requests):
        from infercast.serve.workload.classes import with_classes  # noqa: PLC0415 - as above

        workload = with_classes(workload, [], seed=given["seed"])
    if given.get("adapters") is not None:
        from infercast.serve.workload.classes import with_adapters  # noqa: PLC0415 - as above

        mix = Adapters(given["adapters"], given["adapter_skew"], given["adapter_share"])
        return with_adapters(workload, mix, seed=given["seed"])
    if given.get("adapter_skew", 1.0) != 1.0 or given.get("adapter_share", 1.0) != 1.0:
        raise InputError("--adapter-skew and --adapter-share need --adapters, the number of adapters")
    return workload


# What a trace brings along.
SYNTHETIC = (
    "arrival", "burstiness", "input_len", "output_len", "prefix_len", "prefix_groups", "turns",
)  # fmt: skip

BRINGS = "it brings its own arrivals and lengths; only --rate, --rate-scale and --num-requests change it"

of_number = partial(of_workload, metavar="N")
of_length = partial(of_workload, metavar="LENGTH")

Rate = Annotated[
    float | None,
    of_workload("--rate", "-r", metavar="R", help="Requests per second; a trace's arrivals are scaled to it."),
]
Arrival = Annotated[
    str, of_workload("--arrival", metavar="NAME", help="poisson, gamma, constant or burst (all at once).")
]
Burstiness = Annotated[
    float, of_workload("--burstiness", metavar="X", help="Gamma arrivals: 1 is Poisson, less is burstier.")
]
Concurrency = Annotated[
    int | None,
    of_number("--concurrency", help="Closed loop: clients that each wait for their answer before they send again."),
]
NumRequests = Annotated[
    int | None,
    of_number(
        "--num-requests", "-n", help="Requests in all; default: as many as a steady result takes, or the whole trace."
    ),
]
InputLen = Annotated[
    str, of_length("--input-len", help="Prompt tokens: 512, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MIN:MAX].")
]
OutputLen = Annotated[str, of_length("--output-len", help="Output tokens, in the same forms.")]
DeclaredOutputLen = Annotated[
    int | None,
    of_number(
        "--declared-output-len",
        help="Longest answer that clients ask for (max_tokens); shorter ones end by EOS. Default: the answer.",
    ),
]
IgnoreEos = Annotated[
    bool | None,
    of_workload(
        "--ignore-eos/--no-ignore-eos",
        help="Answers end at max_tokens, as in benchmarks, or by EOS; default: a trace's by EOS, random ones do not.",
    ),
]
PrefixLen = Annotated[int, of_number("--prefix-len", help="Tokens that prompts share at their start.")]
PrefixGroups = Annotated[int, of_number("--prefix-groups", help="Number of different shared starts.")]
Trace = Annotated[
    Path | None,
    of_workload(
        "--trace",
        metavar="FILE",
        help="Replay a trace: Azure CSV, Mooncake JSONL, JSONL of conversations, or plain CSV/JSONL.",
    ),
]
RateScale = Annotated[float, of_workload("--rate-scale", metavar="X", help="Replay a trace this many times as fast.")]
TooLong = Annotated[
    str,
    of_workload(
        "--too-long", metavar="HOW", help="Requests above max_model_len: refuse, truncate (the prompt first) or skip."
    ),
]
Seed = Annotated[int, of_number("--seed", help="Same seed, same result.")]


def workload_of(context: typer.Context, default_count: int | None = None, *, longest: int | None = None) -> Workload:
    """The workload that the options of a command ask for, by the names above, of at most so many tokens.

    All requests are within the model's length; what was clipped, cut or left out for it is in the description.
    """
    given = context.params
    num_requests, trace, too_long = given["num_requests"], given["trace"], given["too_long"]
    if num_requests is not None and num_requests < 1:
        raise InputError(f"--num-requests must be at least 1, not {num_requests}")
    check_too_long(too_long)
    refuse_idle_options(context, _idle(given), trace is not None)
    if given.get("turns") is None and (idle := [name for name in OF_SESSIONS if is_given(context, name)]):
        raise InputError(f"--{idle[0].replace('_', '-')} needs --turns, how many turns a session has")
    asked = longest_asked(context)
    if asked is not None and asked < 1:
        raise InputError(f"max_model_len must be at least 1, not {asked}")
    longest = longest or asked or load_model(given["model"]).max_positions
    replays = trace is not None
    workload = replayed(Path(trace), given, longest) if replays else random_requests(given, longest, default_count)
    if too_long == "truncate":
        workload = truncated(workload, longest)
    else:
        refuse_too_long(workload, longest)
    workload = labelled(workload, given)
    return ended(workload, given.get("declared_output_len"), given.get("ignore_eos"))


def _idle(given: dict[str, Any]) -> tuple[str, ...]:
    """Options that change nothing, as far as that can be told before a trace is read."""
    if given["trace"] is None:
        return "rate_scale", "follow_sessions"
    by_chance = any(given.get(name) for name in ("class_", "adapters", "session_rate"))
    return SYNTHETIC if by_chance else (*SYNTHETIC, "seed")


def replayed(path: Path, given: dict[str, Any], longest: int) -> Workload:
    """The requests of a trace as the options of a command ask for them."""
    from infercast.serve.workload.traces import read_trace  # noqa: PLC0415 - most runs replay none

    workload = read_trace(path, follow=given.get("follow_sessions", False))
    if given["too_long"] == "skip":
        workload = without_too_long(workload, longest)
    if given.get("concurrency") is not None or given.get("session_rate") is not None:
        workload = scaled(workload, limit=given["num_requests"])
        rate = given.get("session_rate")
        option = "--concurrency" if rate is None else "--session-rate"
        if not workload.in_turns:
            raise InputError(f"{option} has no meaning with --trace: {BRINGS}, or --follow-sessions")
        if given["rate"] is not None or given["rate_scale"] != 1.0:
            raise InputError(f"{option} says how sessions begin; leave out --rate and --rate-scale")
        return begun_anew(workload, session_rate=rate, concurrency=given.get("concurrency"), seed=given["seed"])
    return scaled(workload, rate_scale=given["rate_scale"], rate=given["rate"], limit=given["num_requests"])


def refuse_idle_options(context: typer.Context, names: tuple[str, ...], replays: bool) -> None:
    """An option that would change nothing is refused, never ignored."""
    for name in names:
        if is_given(context, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} has no meaning with --trace: {BRINGS}" if replays else f"{option} needs --trace"
            )
