"""Options that say what conversations are like, which classes requests are of and which adapters they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from infercast.errors import InputError
from infercast.serve.workload.asked import THINK, TOOL_TIME, TURN_LEN
from infercast.serve.workload.request import Adapters, Workload

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
        from infercast.serve.workload.classes import parse_class, with_classes  # noqa: PLC0415 - as above

        workload = with_classes(workload, [parse_class(text) for text in given["class_"]], seed=given["seed"])
    elif any(request.slo_class for request in workload.requests):
        from infercast.serve.workload.classes import with_classes  # noqa: PLC0415 - as above

        workload = with_classes(workload, [], seed=given["seed"])
    if given.get("adapters") is not None:
        from infercast.serve.workload.adapters import with_adapters  # noqa: PLC0415 - as above

        mix = Adapters(given["adapters"], given["adapter_skew"], given["adapter_share"])
        return with_adapters(workload, mix, seed=given["seed"])
    if given.get("adapter_skew", 1.0) != 1.0 or given.get("adapter_share", 1.0) != 1.0:
        raise InputError("--adapter-skew and --adapter-share need --adapters, the number of adapters")
    return workload
