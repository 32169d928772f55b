"""Conversations made up from a few numbers: prompts that grow by every answer, and pauses between the turns.

The first prompt of a session comes after a shared system prompt. Every later one has the whole history before it, so
an engine with prefix caching finds earlier prompts and answers as long as it keeps them. Some turns of agents go on
after a tool has run: their pauses and lengths are drawn apart from those of people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError
from infercast.serve.workload.arrivals import MOST_REQUESTS, arrival_times
from infercast.serve.workload.lengths import LONGEST, LengthDistribution
from infercast.serve.workload.pauses import Pauses, parse_pauses
from infercast.serve.workload.request import Draw, Request, Segment, Workload
from infercast.serve.workload.synthetic import (
    as_lengths,
    checked_loop,
    describe_arrivals,
    describe_prefixes,
    ended,
    first_count,
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDraw(Draw):
    """What random sessions were drawn from: the arguments of `session_workload`."""

    turns: LengthDistribution
    turn_lengths: LengthDistribution
    think: Pauses
    tool_share: float
    tool_time: Pauses
    tool_lengths: LengthDistribution


def session_workload(
    *,
    arrival: str = "poisson",
    rate: float | None = None,
    session_rate: float | None = None,
    count: int | None = None,
    concurrency: int | None = None,
    turns: LengthDistribution | str | int = 5,
    input_lengths: LengthDistribution | str | int,
    turn_lengths: LengthDistribution | str | int,
    output_lengths: LengthDistribution | str | int,
    think: Pauses | str | float = "exponential:10",
    tool_share: float = 0.0,
    tool_time: Pauses | str | float = "lognormal:2:1",
    tool_lengths: LengthDistribution | str | int | None = None,
    burstiness: float = 1.0,
    prefix_length: int = 0,
    prefix_groups: int = 1,
    declared_length: int | None = None,
    ignore_eos: bool = True,
    seed: int = 0,
    spread_out: bool = False,
) -> Workload:
    """``count`` requests that are turns of random sessions, the same for the same arguments on every machine.

    Sessions begin by ``arrival`` at ``session_rate`` a second, or so often that requests come at ``rate`` a second in
    the long run; or ``concurrency`` of them are there at any time, and one begins when another has ended.

    A session has so many ``turns``. Its first prompt has ``input_lengths`` tokens after a system prompt, each later one
    ``turn_lengths`` after the history. It is sent ``think`` seconds after the answer before it. A ``tool_share`` of the
    later turns are a tool's: they come after ``tool_time`` and bring ``tool_lengths`` tokens (as other turns do, if
    not given). The last session is cut where ``count`` requests are reached. Without a ``count`` a simulation draws as
    many as a steady result takes.
    """
    is_open = count is None and (concurrency is not None or arrival != "burst")
    count = first_count(count, concurrency, arrival)
    of_turns, first = as_lengths(turns, "turns"), as_lengths(input_lengths, "input_lengths")
    later, outputs = as_lengths(turn_lengths, "turn_lengths"), as_lengths(output_lengths, "output_lengths")
    of_tools = later if tool_lengths is None else as_lengths(tool_lengths, "tool_lengths")
    people = think if isinstance(think, Pauses) else parse_pauses(think, "think")
    tools = tool_time if isinstance(tool_time, Pauses) else parse_pauses(tool_time, "tool_time")
    if not 0 <= tool_share <= 1:
        raise InputError(f"tool_share must be a share from 0 to 1, not {tool_share!r}")
    if rate is not None and session_rate is not None:
        raise InputError(f"rate {rate!r} and session_rate {session_rate!r} exclude each other; give one")
    if session_rate is not None:
        rate = session_rate * of_turns.mean
    arrival = checked_loop(arrival, rate, concurrency, burstiness, count, prefix_length, prefix_groups, seed)

    drawn = SessionDraw(
        arrival=arrival, rate=rate, count=count, concurrency=concurrency, input_lengths=first,
        output_lengths=outputs, burstiness=burstiness, prefix_length=prefix_length, prefix_groups=prefix_groups,
        seed=seed, turns=of_turns, turn_lengths=later, think=people, tool_share=tool_share, tool_time=tools,
        tool_lengths=of_tools, spread_out=spread_out or is_open,
    )  # fmt: skip
    requests, num_sessions = _drawn(drawn)
    words = _described(drawn, num_sessions)
    workload = Workload(requests, concurrency, rate, words, drawn, open_ended=is_open, in_turns=True)
    return ended(workload, declared_length, None if ignore_eos else False)


def _drawn(draw: SessionDraw) -> tuple[tuple[Request, ...], int]:
    """The requests in order of the earliest moment at which each can come, and how many sessions they are of."""
    of_starts, of_inputs, of_outputs, of_groups, of_turns, *others = np.random.default_rng(draw.seed).spawn(10)
    of_kinds, of_people, of_tools, of_thinking, of_running = others
    count, num_turns = draw.count, _turns_of(draw.turns, draw.count, of_turns)
    num_sessions = num_turns.size
    session, begins = np.repeat(np.arange(num_sessions), num_turns), np.cumsum(num_turns) - num_turns
    by_tool = of_kinds.random(count) < draw.tool_share
    said = draw.turn_lengths.sample(count, of_people, spread_out=draw.spread_out)
    new_tokens = np.where(by_tool, draw.tool_lengths.sample(count, of_tools), said)
    new_tokens[begins] = draw.input_lengths.sample(num_sessions, of_inputs, spread_out=draw.spread_out)
    outputs = draw.output_lengths.sample(count, of_outputs, spread_out=draw.spread_out)
    pauses = np.where(by_tool, draw.tool_time.sample(count, of_running), draw.think.sample(count, of_thinking))
    pauses[begins] = 0.0
    rate = None if draw.rate is None else draw.rate / draw.turns.mean
    starts = arrival_times(draw.arrival, rate, num_sessions, of_starts, draw.burstiness, spread_out=draw.spread_out)
    groups = of_groups.integers(draw.prefix_groups, size=num_sessions)
    inputs = draw.prefix_length + _within(new_tokens + outputs, begins, num_turns) - outputs
    if (longest := int((inputs + outputs).max())) > LONGEST:
        raise InputError(f"a session grows to {longest:,} tokens; use fewer turns or shorter ones")
    earliest = starts[session] + _within(pauses, begins, num_turns)
    prefixes = _histories(new_tokens, outputs, session, groups, draw)
    order = np.argsort(earliest, kind="stable")
    columns = (each[order].tolist() for each in (earliest, inputs, outputs, session, pauses))
    requests = tuple(
        Request(moment, num_input, num_output, prefixes[index], _answer(index, draw), None, number, pause)
        for index, moment, num_input, num_output, number, pause in zip(order.tolist(), *columns, strict=True)
    )
    return requests, num_sessions


def _turns_of(turns: LengthDistribution, count: int, rng: np.random.Generator) -> Array:
    """Turns of as many sessions as make ``count`` requests; the last one is cut."""
    if not 1 <= count <= MOST_REQUESTS:
        raise InputError(f"count must be 1 to {MOST_REQUESTS} requests, not {count!r}")
    drawn = turns.sample(count, rng)
    ends = np.cumsum(drawn)
    used = int(np.searchsorted(ends, count)) + 1
    found = drawn[:used].copy()
    found[-1] -= ends[used - 1] - count
    return found


def _within(values: Array, begins: Array, num_turns: Array) -> Array:
    """Sums over the turns of a session up to each, itself included."""
    sums = np.cumsum(values)
    return np.asarray(sums - np.repeat(sums[begins] - values[begins], num_turns))


def _histories(
    new_tokens: Array, outputs: Array, session: Array, groups: Array, draw: SessionDraw
) -> list[tuple[Segment, ...]]:
    """The whole prompt of each turn in named segments: the system prompt, and what was said by turns."""
    length = draw.prefix_length
    systems = [(Segment(group, length),) if length else () for group in range(draw.prefix_groups)]
    of_sessions, before = groups.tolist(), -1
    prefix: tuple[Segment, ...] = ()
    found = []
    turns = zip(session.tolist(), new_tokens.tolist(), outputs.tolist(), strict=True)
    for index, (number, new, output) in enumerate(turns):
        if number != before:
            prefix, before = systems[of_sessions[number]], number
        answer = _answer(index, draw)
        prefix = (*prefix, Segment(answer - 1, new))
        found.append(prefix)
        prefix = (*prefix, Segment(answer, output))
    return found


def _answer(index: int, draw: SessionDraw) -> int:
    """The name of an answer's content; what was asked before it has the one before, system prompts have the first."""
    return draw.prefix_groups + 2 * index + 1


def _described(drawn: SessionDraw, num_sessions: int) -> str:
    clients = None if drawn.concurrency is None else f"{drawn.concurrency:,} sessions at a time"
    loop = clients or describe_arrivals(drawn.arrival, drawn.rate, None, drawn.burstiness)
    tools = f"{drawn.tool_share:.0%} of later turns after a tool of {drawn.tool_time}" if drawn.tool_share else ""
    if tools and drawn.tool_lengths != drawn.turn_lengths:
        tools += f" that brings {drawn.tool_lengths}"
    parts = (
        f"{drawn.count:,} requests in {num_sessions:,} sessions of {drawn.turns} turns",
        loop,
        f"input {drawn.input_lengths}{describe_prefixes(drawn.prefix_length, drawn.prefix_groups)}",
        f"then {drawn.turn_lengths} a turn",
        f"output {drawn.output_lengths}",
        f"think {drawn.think}",
        tools,
    )
    return ", ".join(part for part in parts if part)
