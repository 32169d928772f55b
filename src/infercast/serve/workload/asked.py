"""Random requests by the options of a command or the fields of a page; lengths that nobody chose are clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infercast.errors import InputError
from infercast.serve.workload.lengths import INPUT_LEN, OUTPUT_LEN, LengthDistribution, parse_lengths
from infercast.serve.workload.request import Workload
from infercast.serve.workload.synthetic import CLIPPED, synthetic_workload
from infercast.serve.workload.too_long import without_too_long

TURN_LEN, THINK, TOOL_TIME = "lognormal:120:0.8:4:4000", "exponential:10", "lognormal:2:1"
"""Of later turns of a session, of the time between two, and of tools."""


def random_requests(given: Mapping[str, Any], longest: int, default_count: int | None = None) -> Workload:
    """Requests by options of these names, none longer than a model allows as far as nobody chose how long they are.

    Without ``num_requests`` there are ``default_count``, or the first ones of as many as a steady result takes.
    """
    arrival = given["arrival"]
    rates = given["rate"], given["concurrency"], given.get("session_rate")
    if not any(each is not None for each in rates) and arrival != "burst":
        raise InputError("say how requests arrive: --rate R, --concurrency N, --arrival burst or --trace FILE")
    if given.get("session_rate") is not None and given.get("turns") is None:
        raise InputError("--session-rate needs --turns, how many turns a session has, or --trace with conversations")
    prefix_length = given["prefix_len"]
    inputs, outputs, is_clipped = lengths_within(given["input_len"], given["output_len"], longest - prefix_length)
    common: dict[str, Any] = {
        "arrival": arrival,
        "rate": given["rate"],
        "count": default_count if given["num_requests"] is None else given["num_requests"],
        "concurrency": given["concurrency"],
        "input_lengths": inputs,
        "output_lengths": outputs,
        "burstiness": given["burstiness"],
        "prefix_length": prefix_length,
        "prefix_groups": given["prefix_groups"],
        "seed": given["seed"],
    }
    in_turns = given.get("turns") is not None
    workload = _sessions(given, common) if in_turns else synthetic_workload(**common)
    if is_clipped:
        words = f"{workload.description}{CLIPPED}{longest:,}"
        workload = replace(workload, description=words)
    return without_too_long(workload, longest) if given.get("too_long") == "skip" else workload


def _sessions(given: Mapping[str, Any], common: dict[str, Any]) -> Workload:
    """Random sessions by these options and by ``common`` ones, which other random requests have, too."""
    from infercast.serve.workload.conversations import session_workload  # noqa: PLC0415 - most runs have none

    return session_workload(
        **common,
        session_rate=given["session_rate"],
        turns=given["turns"],
        turn_lengths=given.get("turn_len") or TURN_LEN,
        think=given.get("think") or THINK,
        tool_share=given.get("tool_share", 0.0),
        tool_time=given.get("tool_time") or TOOL_TIME,
        tool_lengths=given.get("tool_len"),
    )


def lengths_within(input_len: str, output_len: str, room: int) -> tuple[LengthDistribution, LengthDistribution, bool]:
    """Lengths of prompts and answers, and whether the default ones were clipped to what the model allows."""
    inputs, outputs = parse_lengths(input_len, "--input-len"), parse_lengths(output_len, "--output-len")
    if inputs.maximum + outputs.maximum <= room:
        return inputs, outputs, False
    asked_for = inputs, outputs
    if output_len == OUTPUT_LEN:
        outputs = _clipped(outputs, room // 4 if input_len == INPUT_LEN else room - inputs.maximum)
    if input_len == INPUT_LEN:
        inputs = _clipped(inputs, room - outputs.maximum)
    return inputs, outputs, (inputs, outputs) != asked_for


def _clipped(lengths: LengthDistribution, most: int) -> LengthDistribution:
    """The same up to ``most`` tokens; where there is no room at all they stay, and requests are found too long."""
    if most < 1:
        return lengths
    return lengths._replace(minimum=min(lengths.minimum, most), maximum=min(lengths.maximum, most))
