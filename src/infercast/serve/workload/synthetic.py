"""Random workloads: requests drawn from distributions, and redraws with another seed, rate or count."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from infercast.errors import InputError, require
from infercast.lazy_classes import dataclass, fields, replace
from infercast.serve.workload.distributions import (
    INPUT_LEN,
    LATEST,
    LONGEST,
    MOST_REQUESTS,
    OUTPUT_LEN,
    LengthDistribution,
    Pauses,
    arrival_times,
    check_arrivals,
    parse_lengths,
    parse_pauses,
    rate_of,
)
from infercast.serve.workload.request import (
    Draw,
    Request,
    Reuse,
    Segment,
    Workload,
    beginning,
    calls_before,
    truncated,
    without_too_long,
)
from infercast.units import format_many

CLIPPED = "; default lengths clipped to max_model_len "  # in the description of a workload, followed by a number
FIRST_COUNT, FIRST_ROUNDS, FIRST_OF_CLIENTS, MOST_FIRST = 1500, 8, 400, 20_000
"""First attempt of a run that decides its own length: requests; of a closed loop per client, and at most."""
Array = NDArray[Any]
Drawn = TypeVar("Drawn", bound=Draw)


def synthetic_workload(
    *, arrival: str = "poisson", rate: float | None = None, count: int | None = None, concurrency: int | None = None,
    input_lengths: LengthDistribution | str | int = INPUT_LEN,
    output_lengths: LengthDistribution | str | int = OUTPUT_LEN, burstiness: float = 1.0, prefix_length: int = 0,
    prefix_groups: int = 1, declared_length: int | None = None, ignore_eos: bool = True, seed: int = 0,
    spread_out: bool = False, recorded: tuple[float, ...] = (), reuse: Reuse | None = None,
) -> Workload:  # fmt: skip
    """``count`` random requests, the same for the same arguments on every machine.

    Without a ``count``, a simulation draws as many as a steady result takes, ``spread_out``: together they arrive at
    exactly the rate, with exactly the distribution of lengths, while any few of them are as random as ever.

    Open loop: ``arrival`` and ``rate`` (requests per second) set arrivals, see `arrival_times`. Closed loop: give
    ``concurrency`` instead of a rate, and that many clients each send the next request when their last one has ended.

    Lengths are written as for `parse_lengths`. With ``prefix_length``, each prompt starts with one of ``prefix_groups``
    shared prefixes of that many tokens, chosen uniformly; the sampled input length comes after it. Every request
    declares ``declared_length`` output tokens, or as many as it produces if that is more. Answers end at the declared
    length, as in a benchmark with ``ignore_eos``; shorter ones, and all without it, end by EOS.

    With ``recorded`` arrivals, minutes of these come in random order, at a ``rate`` of theirs if none is given. With
    ``reuse``, prompts continue earlier ones, as far back as it says.

    Arrivals, inputs, outputs and prefixes each have a random stream of their own: changing one leaves the others
    unchanged, so two workloads differ only in what was changed.
    """
    is_open = count is None and (concurrency is not None or arrival != "burst")
    count = first_count(count, concurrency, arrival)
    spread_out = spread_out or is_open
    inputs_from = as_lengths(input_lengths, "input_lengths")
    outputs_from = as_lengths(output_lengths, "output_lengths")
    rate = rate_of(recorded) if recorded and rate is None else rate
    drawn = Draw(
        arrival=arrival, rate=rate, count=count, concurrency=concurrency, input_lengths=inputs_from,
        output_lengths=outputs_from, burstiness=burstiness, prefix_length=prefix_length, prefix_groups=prefix_groups,
        seed=seed, spread_out=spread_out, recorded=recorded, reuse=reuse,
    )  # fmt: skip
    drawn = checked(drawn)

    arrivals, inputs, outputs = drawn_numbers(drawn, count, seed)
    prefixes = _draw_prefixes(prefix_length, prefix_groups, count, np.random.default_rng(seed).spawn(4)[3])
    if reuse is not None:
        inputs = _continuing(drawn, inputs, outputs, prefixes)
    workload = Workload(
        # Python numbers, not numpy scalars: the clock uses them one at a time.
        requests=tuple(map(Request, arrivals.tolist(), inputs.tolist(), outputs.tolist(), prefixes)),
        concurrency=concurrency,
        rate=rate,
        description=", ".join(
            (
                format_many(count, "request"),
                describe_arrivals(drawn.arrival, rate, concurrency, burstiness, recorded),
                f"input {inputs_from}{describe_prefixes(prefix_length, prefix_groups)}",
                *([] if reuse is None else [str(reuse)]),
                f"output {outputs_from}",
            )
        ),
        drawn=drawn,
        open_ended=is_open,
    )
    return ended(workload, declared_length or outputs_from.cap, None if ignore_eos else False)


def drawn_numbers(drawn: Draw, count: int, seed: int) -> tuple[Array, Array, Array]:
    """Arrivals, prompt tokens and output tokens of so many requests of a draw with another seed."""
    of_arrivals, of_inputs, of_outputs, _ = np.random.default_rng(seed).spawn(4)
    how, each = drawn.spread_out, (drawn.arrival, drawn.rate, count, of_arrivals, drawn.burstiness)
    inputs = drawn.input_lengths.sample(count, of_inputs, spread_out=how) + drawn.prefix_length
    outputs = drawn.output_lengths.sample(count, of_outputs, spread_out=how)
    return arrival_times(*each, spread_out=how, recorded=drawn.recorded), inputs, outputs


def apart(seed: int, before: int, number: int = 0) -> int:
    """A seed far from those of other parts of a run that goes on after ``before`` requests, and of other choices."""
    return seed + 15_485_863 * before + 32_452_843 * number


def first_count(count: int | None, concurrency: int | None, arrival: str) -> int:
    """The requested count, or the default for a first attempt."""
    if count is not None:
        return count
    if concurrency is None or not isinstance(concurrency, Integral):
        burst_count = 1000  # default number of requests in a burst
        return burst_count if arrival == "burst" else FIRST_COUNT
    return min(max(FIRST_OF_CLIENTS, FIRST_ROUNDS * int(concurrency)), MOST_FIRST)


def checked(draw: Drawn) -> Drawn:
    """The same if all of it can be; arrivals are a burst in a closed loop."""
    _check_kinds(draw, Real, "a number", ("rate", "burstiness"))
    _check_kinds(draw, Integral, "a whole number", ("count", "concurrency", "prefix_length", "prefix_groups", "seed"))
    if draw.recorded and (draw.concurrency is not None or draw.arrival != "poisson"):
        raise InputError("recorded arrivals are an arrival of their own; leave out arrival, burstiness and concurrency")
    arrival, rate, concurrency, burstiness = draw.arrival, draw.rate, draw.concurrency, draw.burstiness
    prefix_length, prefix_groups, seed = draw.prefix_length, draw.prefix_groups, draw.seed
    if concurrency is not None:
        require(concurrency >= 1, "concurrency", "be at least 1 client", concurrency)
        if rate is not None:
            raise InputError(
                f"rate {rate!r} and concurrency {concurrency!r} exclude each other; "
                "give a rate for an open loop or a concurrency for a closed one"
            )
        # The default cannot be distinguished from a written "poisson", which is therefore accepted.
        if arrival not in ("poisson", "burst") or burstiness != 1.0:
            raise InputError(
                f"arrival {arrival!r} with burstiness {burstiness!r} has no meaning in a closed loop, "
                "where clients send when they are free; leave out either these or concurrency"
            )
        arrival = "burst"
    check_arrivals(arrival, rate, draw.count, burstiness)
    require(0 <= prefix_length <= LONGEST, "prefix_length", f"be a number of tokens from 0 to {LONGEST}", prefix_length)
    require(1 <= prefix_groups <= LONGEST, "prefix_groups", f"be a number from 1 to {LONGEST}", prefix_groups)
    if prefix_groups > 1 and prefix_length == 0:
        raise InputError(f"prefix_groups {prefix_groups!r} needs prefix_length, the number of tokens each group shares")
    require(seed >= 0, "seed", "be a whole number of at least 0", seed)
    return replace(draw, arrival=arrival)


def _check_kinds(draw: Draw, kind: type, words: str, names: tuple[str, ...]) -> None:
    """Check types of Python arguments, which were not parsed: a text is not a number."""
    for name in names:
        value = getattr(draw, name)
        require(value is None or isinstance(value, kind), name, f"be {words}", repr(value))


def ended(workload: Workload, declared: int | None, ignore_eos: bool | None) -> Workload:
    """Set the declared output length, and whether answers end by EOS; None leaves either unchanged."""
    if declared is not None:
        if ignore_eos:
            raise InputError(
                f"with ignore_eos an answer has as many tokens as it declares, not {declared}; leave one of the two out"
            )
        workload = declaring(workload, declared)
    if ignore_eos is None:
        return workload
    if ignore_eos and workload.drawn is not None and workload.drawn.output_lengths.cap:
        raise InputError("with ignore_eos all answers have as many tokens as their cap; leave one of the two out")
    stops, drawn = not ignore_eos, workload.drawn
    return replace(
        workload,
        requests=tuple(each if each.stops == stops else replace(each, stops=stops) for each in workload.requests),
        drawn=None if drawn is None else replace(drawn, ignore_eos=ignore_eos),
    )


def capped(workload: Workload, most: int, words: str) -> Workload:
    """The same requests with answers of ``most`` tokens at most, and why in ``words``."""
    drawn = workload.drawn
    if all(each.num_declared <= most for each in workload.requests):
        return workload
    if most > 1 and isinstance(drawn, SessionDraw):
        raise InputError(f"answers cut to {most} tokens are not modelled in sessions, whose prompts repeat them")
    return replace(
        workload,
        requests=tuple(
            each if each.num_declared <= most else replace(each, num_output=min(each.num_output, most), declared=most)
            for each in workload.requests
        ),
        description=f"{workload.description}, {words}",
        drawn=None if drawn is None else replace(drawn, output_lengths=drawn.output_lengths.capped(most)),
    )


def declaring(workload: Workload, tokens: int) -> Workload:
    """The same requests, each declaring this many output tokens, or as many as it produces."""
    require(tokens >= 1, "the declared answer", "have at least 1 token", tokens)
    return replace(
        workload,
        requests=tuple(replace(each, declared=max(tokens, each.num_output)) for each in workload.requests),
        description=f"{workload.description}, {tokens:,} declared",
        drawn=None if workload.drawn is None else replace(workload.drawn, declared_length=tokens),
    )


def workload_from_requests(
    requests: Iterable[Request], *, concurrency: int | None = None, description: str = ""
) -> Workload:
    """A workload of given requests: checked, and sorted by arrival (equal arrivals keep their order)."""
    ordered = tuple(requests)
    if not ordered:
        raise InputError("requests is empty; a workload needs at least one")
    require(concurrency is None or concurrency >= 1, "concurrency", "be at least 1 client", concurrency)
    for position, request in enumerate(ordered):
        _check_request(position, request)
    ordered = tuple(sorted(ordered, key=attrgetter("arrival")))
    return Workload(ordered, concurrency, description=description or format_many(len(ordered), "request"))


def as_lengths(lengths: LengthDistribution | str | int, field: str) -> LengthDistribution:
    return lengths if isinstance(lengths, LengthDistribution) else parse_lengths(str(lengths), field)


def _draw_prefixes(length: int, num_groups: int, count: int, rng: np.random.Generator) -> list[tuple[Segment, ...]]:
    if length == 0:
        return [()] * count
    # One tuple per group, shared by its requests: a million requests hold no more segments than there are groups.
    groups = rng.integers(num_groups, size=count).tolist()
    prefixes = {group: (Segment(content=group, num_tokens=length),) for group in set(groups)}
    return [prefixes[group] for group in groups]


def _continuing(draw: Draw, inputs: Array, outputs: Array, prefixes: list[tuple[Segment, ...]]) -> Array:
    """Let some prompts continue earlier ones: their lengths, of all; ``prefixes`` become whole prompts.

    A prompt continues the one that fits best of those not continued yet: by the tokens sent since, and by its
    length. What lies farther back than all that was sent so far waits.
    """
    reuse, count, reuse_stream, looks_at = draw.reuse, draw.count, 49_979_687, 4096
    assert reuse is not None
    require(0 < reuse.share <= 1, "reuse", "be a share above 0, up to 1", repr(reuse.share))
    rng = np.random.default_rng((draw.seed, reuse_stream))
    again = round(reuse.share * count)
    common, distances, new = (
        each.sample(again, rng, spread_out=draw.spread_out) for each in (reuse.lengths, reuse.distances, reuse.new)
    )
    beyond = sorted(zip(distances.tolist(), (common + draw.prefix_length).tolist(), new.tolist(), strict=True))[::-1]
    ready: list[tuple[int, int, int]] = []
    chances, sizes, ends, is_continued = rng.random((count, 2)), inputs.copy(), np.zeros(count), np.zeros(count)
    sent, names = 0, draw.prefix_groups
    for number, output in enumerate(outputs.tolist()):
        while beyond and beyond[-1][0] <= sent:
            ready.append(beyond.pop())
        size, most = min(int(inputs[number]), reuse.longest - output), reuse.longest - output
        if ready and number and chances[number, 0] * (count - number) < len(ready):
            at = int(chances[number, 1] * len(ready))
            ready[at], ready[-1] = ready[-1], ready[at]
            distance, wanted, more = ready.pop()
            earlier = slice(max(0, number - looks_at), number)
            misfit = np.abs(np.log((sent - ends[earlier] + 1) / distance)) + np.abs(np.log(sizes[earlier] / wanted))
            misfit += 100.0 * is_continued[earlier] + 50.0 * (sizes[earlier] < wanted)
            best = earlier.start + int(misfit.argmin())
            is_continued[best] = 1.0
            prefixes[number] = beginning(prefixes[best], min(wanted, most - 1))
            size = min(most, sum(segment.num_tokens for segment in prefixes[number]) + more)
        named = sum(segment.num_tokens for segment in prefixes[number])
        if size > named:
            prefixes[number] = (*prefixes[number], Segment(names + number, size - named))
        sizes[number] = size
        sent += size + output
        ends[number] = sent
    return sizes


def _check_request(position: int, request: Request) -> None:
    where = f"request {position}"
    if not 0 <= request.arrival < LATEST:
        raise InputError(f"{where}: arrival must be a number of seconds from 0 to {LATEST:g}, not {request.arrival!r}")
    if request.num_input < 1:
        raise InputError(f"{where}: num_input must be at least 1 token, not {request.num_input!r}")
    if request.num_output < 1:
        raise InputError(f"{where}: num_output must be at least 1 token, not {request.num_output!r}")
    if any(segment.num_tokens < 1 for segment in request.prefix):
        raise InputError(f"{where}: every segment of prefix must have at least 1 token")
    covered = sum(segment.num_tokens for segment in request.prefix)
    if covered > request.num_input:
        raise InputError(f"{where}: prefix has {covered} tokens, more than num_input {request.num_input}")


def describe_arrivals(
    arrival: str, rate: float | None, concurrency: int | None, burstiness: float, recorded: Sequence[float] = ()
) -> str:
    if concurrency is not None:
        return f"closed loop of {format_many(concurrency, 'client')}"
    if rate is None:
        return "all at once"
    speed = f"{rate:,.1f}/s" if rate >= 1 else f"{rate:.3g}/s"
    if recorded:
        return f"{speed} in minutes as recorded"
    if arrival == "gamma":
        return f"gamma {speed} burstiness {burstiness:g}"
    return f"{'Poisson' if arrival == 'poisson' else arrival} {speed}"


def describe_prefixes(length: int, num_groups: int) -> str:
    if length == 0:
        return ""
    shared = "a shared prefix" if num_groups == 1 else f"one of {num_groups:,} shared prefixes"
    return f" after {shared} of {length:,}"


# Synthetic conversations: prompts that grow by every answer, and pauses between turns. A session's first prompt comes
# after a shared system prompt. Every later one includes the whole history, so an engine with prefix caching finds
# earlier prompts and answers as long as it keeps them. Some turns of agents continue after a tool has run: their pauses
# and lengths have their own distributions.


class SubAgents(NamedTuple):
    """Agents that some later turns wait for, made by `parse_sub_agents`."""

    share: float  # Of later turns
    number: int  # At once, once the answer before is there
    calls: int  # Of each, one after the other
    fork: bool = False  # Whether their prompts begin with the history so far, or anew

    def __str__(self) -> str:
        how = "that know the history" if self.fork else "that begin anew"
        return f"{self.share:.0%} after {self.number} sub-agents of {format_many(self.calls, 'call')} {how}"


def parse_sub_agents(text: str | SubAgents | None) -> SubAgents | None:
    """From ``0.2:3:4``: two in ten of later turns wait for three sub-agents of four calls; ``:fork`` of the history."""
    if text is None or isinstance(text, SubAgents):
        return text
    match = re.fullmatch(r"(\d*\.?\d+):(\d{1,3}):(\d{1,4})(:fork)?", str(text).strip())
    agents = None if match is None else SubAgents(float(match[1]), int(match[2]), int(match[3]), bool(match[4]))
    if agents is None or not (0 < agents.share <= 1 and agents.number and agents.calls):
        raise InputError(
            f"sub_agents {text!r} must be SHARE:NUMBER:CALLS, such as 0.2:3:4, with :fork behind it or not"
        )
    return agents


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDraw(Draw):
    """What random sessions were drawn from: the arguments of `session_workload`."""

    turns: LengthDistribution
    turn_lengths: LengthDistribution
    think: Pauses
    tool_share: float
    tool_time: Pauses
    tool_lengths: LengthDistribution
    sub_agents: SubAgents | None = None

    @property
    def calls_each(self) -> float:
        """Requests that a session makes on average."""
        agents, turns = self.sub_agents, self.turns.mean
        return turns if agents is None else turns + (turns - 1) * agents.share * agents.number * agents.calls


def session_workload(
    *, arrival: str = "poisson", rate: float | None = None, session_rate: float | None = None, count: int | None = None,
    concurrency: int | None = None, turns: LengthDistribution | str | int = 5,
    input_lengths: LengthDistribution | str | int, turn_lengths: LengthDistribution | str | int,
    output_lengths: LengthDistribution | str | int, think: Pauses | str | float = "exponential:10",
    tool_share: float = 0.0, tool_time: Pauses | str | float = "lognormal:2:1",
    tool_lengths: LengthDistribution | str | int | None = None, sub_agents: SubAgents | str | None = None,
    burstiness: float = 1.0, prefix_length: int = 0, prefix_groups: int = 1, declared_length: int | None = None,
    ignore_eos: bool = True, seed: int = 0, spread_out: bool = False, recorded: tuple[float, ...] = (),
    reuse: None = None,
) -> Workload:  # fmt: skip
    """``count`` requests that are turns of random sessions, the same for the same arguments on every machine.

    Sessions begin by ``arrival`` at ``session_rate`` per second, or at a rate that yields ``rate`` requests per second
    in the long run; or ``concurrency`` of them are active at any time, and one begins when another has ended.

    A session has ``turns`` turns. Its first prompt has ``input_lengths`` tokens after a system prompt, each later one
    ``turn_lengths`` after the history, sent ``think`` seconds after the previous answer. A ``tool_share`` of the later
    turns are a tool's: they come after ``tool_time`` with ``tool_lengths`` tokens (by default as other turns). Others
    come with as many once all their ``sub_agents`` are done, whose first prompts are drawn as a session's, and later
    ones as a tool's. The last session is cut at ``count`` requests. Without a ``count``, a simulation draws as many as
    a steady result takes.
    """
    is_open = count is None and (concurrency is not None or arrival != "burst")
    count = first_count(count, concurrency, arrival)
    of_turns, first = as_lengths(turns, "turns"), as_lengths(input_lengths, "input_lengths")
    later, outputs = as_lengths(turn_lengths, "turn_lengths"), as_lengths(output_lengths, "output_lengths")
    of_tools = later if tool_lengths is None else as_lengths(tool_lengths, "tool_lengths")
    people = think if isinstance(think, Pauses) else parse_pauses(think, "think")
    tools = tool_time if isinstance(tool_time, Pauses) else parse_pauses(tool_time, "tool_time")
    require(0 <= tool_share <= 1, "tool_share", "be a share from 0 to 1", repr(tool_share))
    if rate is not None and session_rate is not None:
        raise InputError(f"rate {rate!r} and session_rate {session_rate!r} exclude each other; give one")
    drawn = SessionDraw(
        arrival=arrival, rate=rate, count=count, concurrency=concurrency, input_lengths=first,
        output_lengths=outputs, burstiness=burstiness, prefix_length=prefix_length, prefix_groups=prefix_groups,
        seed=seed, turns=of_turns, turn_lengths=later, think=people, tool_share=tool_share, tool_time=tools,
        tool_lengths=of_tools, sub_agents=parse_sub_agents(sub_agents),
        spread_out=spread_out or is_open, recorded=recorded, reuse=reuse,
    )  # fmt: skip
    session_rate = rate_of(recorded) if recorded and rate is None and session_rate is None else session_rate
    if session_rate is not None:
        drawn = replace(drawn, rate=(rate := session_rate * drawn.calls_each))
    drawn = checked(drawn)
    requests, num_sessions = _drawn(drawn)
    words = _described(drawn, num_sessions)
    workload = Workload(requests, concurrency, rate, words, drawn, open_ended=is_open, in_turns=True)
    return ended(workload, declared_length or outputs.cap, None if ignore_eos else False)


def _drawn(draw: SessionDraw) -> tuple[tuple[Request, ...], int]:
    """The requests by earliest possible send time, and the number of sessions."""
    of_starts, of_inputs, of_outputs, of_groups, of_turns, *others = np.random.default_rng(draw.seed).spawn(10)
    of_kinds, of_people, of_tools, of_thinking, of_running = others
    # Turns of the sessions that make up ``count`` requests; the last one is cut
    require(1 <= (count := draw.count) <= MOST_REQUESTS, "count", f"be 1 to {MOST_REQUESTS} requests", repr(count))
    drawn = draw.turns.sample(count, of_turns)
    ends = np.cumsum(drawn)
    count, by_agents = _turns_and_agents(draw, ends)
    used = int(np.searchsorted(ends, count)) + 1
    num_turns = drawn[:used].copy()
    num_turns[-1] -= ends[used - 1] - count
    num_sessions = num_turns.size
    session, begins = np.repeat(np.arange(num_sessions), num_turns), np.cumsum(num_turns) - num_turns
    by_tool = (of_kinds.random(count) < draw.tool_share) | by_agents
    said = draw.turn_lengths.sample(count, of_people, spread_out=draw.spread_out)
    new_tokens = np.where(by_tool, draw.tool_lengths.sample(count, of_tools), said)
    new_tokens[begins] = draw.input_lengths.sample(num_sessions, of_inputs, spread_out=draw.spread_out)
    outputs = draw.output_lengths.sample(count, of_outputs, spread_out=draw.spread_out)
    pauses = np.where(by_tool, draw.tool_time.sample(count, of_running), draw.think.sample(count, of_thinking))
    pauses[begins] = pauses[by_agents] = 0.0
    rate = None if draw.rate is None else draw.rate / draw.calls_each
    starts = arrival_times(
        draw.arrival, rate, num_sessions, of_starts, draw.burstiness, spread_out=draw.spread_out, recorded=draw.recorded
    )
    groups = of_groups.integers(draw.prefix_groups, size=num_sessions)
    inputs = draw.prefix_length + _within(new_tokens + outputs, begins, num_turns) - outputs
    earliest = starts[session] + _within(pauses, begins, num_turns)
    prefixes = _histories(new_tokens, outputs, session, groups, draw)
    order = np.argsort(earliest, kind="stable")
    columns = (each[order].tolist() for each in (earliest, inputs, outputs, session, pauses))
    requests = tuple(
        Request(moment, num_input, num_output, prefixes[index], _answer(index, draw), None, number, pause)
        for index, moment, num_input, num_output, number, pause in zip(order.tolist(), *columns, strict=True)
    )
    if by_agents.any():
        requests = tuple(_with_agents(requests, by_agents[order].tolist(), draw, num_sessions))
    if (longest := max(each.num_input + each.num_output for each in requests)) > LONGEST:
        raise InputError(f"a session grows to {longest:,} tokens; use fewer turns or shorter ones")
    return requests, num_sessions


def _turns_and_agents(draw: SessionDraw, ends: Array) -> tuple[int, Array]:
    """How many turns make up the draw's requests with the calls of sub-agents, and which turns wait for those."""
    agents, agents_stream = (
        draw.sub_agents,
        86_028_121,
    )  # combined with the seed: they have a random stream of their own
    if agents is None:
        return draw.count, np.zeros(draw.count, dtype=bool)
    by_agents = np.random.default_rng((draw.seed, agents_stream)).random(draw.count) < agents.share
    by_agents[0] = by_agents[ends[ends < draw.count]] = False
    calls = np.cumsum(1 + agents.number * agents.calls * by_agents)
    whole = int(np.searchsorted(calls, draw.count, "right"))
    by_agents[whole:] = False
    count = draw.count + whole - int(calls[whole - 1])
    return count, by_agents[:count]


def _with_agents(turns: Sequence[Request], by_agents: Iterable[bool], draw: SessionDraw, session: int) -> list[Request]:
    """The same with the calls of sub-agents before turns that wait for them; their sessions have the next numbers."""
    agents, calls_stream, size = draw.sub_agents, 86_028_157, draw.count - len(turns)
    assert agents is not None
    rng = np.random.default_rng((draw.seed, calls_stream))
    new, pauses, outputs = (each.sample(size, rng) for each in (draw.tool_lengths, draw.tool_time, draw.output_lengths))
    groups = rng.integers(draw.prefix_groups, size=size // agents.calls).tolist()
    if not agents.fork:
        new[:: agents.calls] = draw.input_lengths.sample(len(groups), rng)
    pauses[:: agents.calls] = 0.0
    drawn, name = zip(new.tolist(), pauses.tolist(), outputs.tolist(), strict=True), _answer(len(turns), draw)
    last: dict[int | None, Request] = {}
    found: list[Request] = []
    for turn, waits in zip(turns, by_agents, strict=True):
        answers = []
        for _ in range(agents.number if waits else 0):
            before = last[turn.session]
            answer, group = before.answer or 0, groups.pop()
            prefix: tuple[Segment, ...] = (Segment(group, draw.prefix_length),) if draw.prefix_length else ()
            after: tuple[int, ...] = (answer,)
            prefix = (*before.prefix, Segment(answer, before.num_output)) if agents.fork else prefix
            num_tokens = sum(segment.num_tokens for segment in prefix)
            for more, pause, output in islice(drawn, agents.calls):
                prefix, num_tokens, name = (*prefix, Segment(name, more)), num_tokens + more, name + 2
                call = Request(before.arrival, num_tokens, output, prefix, name - 1, None, session, pause, after=after)
                found.append(call)
                prefix, num_tokens, after = (*prefix, Segment(name - 1, output)), num_tokens + output, ()
            answers.append(name - 1)
            session += 1
        last[turn.session] = turn
        found.append(replace(turn, after=tuple(answers)) if waits else turn)
    return sorted(found, key=attrgetter("arrival"))


def _within(values: Array, begins: Array, num_turns: Array) -> Array:
    """Cumulative sums over the turns of each session, inclusive."""
    sums = np.cumsum(values)
    return np.asarray(sums - np.repeat(sums[begins] - values[begins], num_turns))


def _histories(
    new_tokens: Array, outputs: Array, session: Array, groups: Array, draw: SessionDraw
) -> list[tuple[Segment, ...]]:
    """The whole prompt of each turn in named segments: the system prompt, then messages and answers in turn."""
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
    """The content name of an answer; its prompt's new part has the one before, system prompts have the first names."""
    return draw.prefix_groups + 2 * index + 1


def _described(drawn: SessionDraw, num_sessions: int) -> str:
    clients = None if drawn.concurrency is None else f"{format_many(drawn.concurrency, 'session')} at a time"
    loop = clients or describe_arrivals(drawn.arrival, drawn.rate, None, drawn.burstiness, drawn.recorded)
    tools = f"{drawn.tool_share:.0%} of later turns after a tool of {drawn.tool_time}" if drawn.tool_share else ""
    if tools and drawn.tool_lengths != drawn.turn_lengths:
        tools += f" that brings {drawn.tool_lengths}"
    parts = (
        f"{format_many(drawn.count, 'request')} in {format_many(num_sessions, 'session')} of {drawn.turns} turns", loop,
        f"input {drawn.input_lengths}{describe_prefixes(drawn.prefix_length, drawn.prefix_groups)}",
        f"then {drawn.turn_lengths} a turn", f"output {drawn.output_lengths}", f"think {drawn.think}", tools,
        "" if drawn.sub_agents is None else str(drawn.sub_agents),
    )  # fmt: skip
    return ", ".join(part for part in parts if part)


def redrawn(workload: Workload, *, seed: int, count: int) -> Workload | None:
    """The first ``count`` requests drawn with another seed; None for a workload that was not drawn."""
    return _again(workload, {"seed": seed, "count": count})


def extended(workload: Workload, count: int, longest: int) -> Workload:
    """Extend an open-ended workload to ``count`` requests of its draw, cut to ``longest`` tokens like the first."""
    drawn = workload.drawn
    assert drawn is not None
    other = _labelled(workload, drawn_with(drawn, count=count * workload.every), drawn.seed)
    if workload.every > 1:
        other = dealt_out(other, workload.every)
    how, longest = workload.cut or ("truncate", longest)
    other = without_too_long(other, longest) if how == "skip" else truncated(other, longest)
    _, clipped, limit = workload.description.partition(CLIPPED)
    return replace(other, description=f"{other.description}{clipped}{limit}", open_ended=True, cut=workload.cut)


def continued(workload: Workload, count: int, longest: int, number: int = 0) -> Workload | None:
    """The same requests and further ones of a draw of their own, ``count`` in all; None where that does not suffice.
    ``number``: which of many such draws.
    """
    drawn, before = workload.drawn, len(workload.requests)
    if type(drawn) is not Draw or drawn.count != before or workload.num_truncated:
        return None
    if drawn.recorded or drawn.reuse is not None:
        return None
    if workload.classes or workload.adapters is not None:
        return None
    seed = apart(drawn.seed, before, number)
    further = _labelled(workload, drawn_with(drawn, count=count - before, seed=seed), seed).requests
    limit = longest if workload.cut is None else workload.cut[1]
    if max(request.num_input + request.num_output for request in further) > limit:
        return None
    begin = 0.0 if workload.rate is None else before / workload.rate
    rest = attrgetter(*[field.name for field in fields(Request)][1:])
    later = [Request(begin + request.arrival, *rest(request)) for request in further]
    words = workload.description.replace(format_many(before, "request"), format_many(count, "request"), 1)
    drawn = replace(drawn, count=count)
    return replace(workload, requests=(*workload.requests, *later), description=words, drawn=drawn)


def dealt_out(workload: Workload, times: int) -> Workload:
    """Every n-th request, as a load balancer deals them out."""
    rate = None if workload.rate is None else workload.rate / times
    return replace(workload, requests=workload.requests[::times], rate=rate, every=times)


def redrawn_with(workload: Workload, **others: Any) -> Workload | None:
    """The same draw with other arguments; None for a workload that was not drawn, or was cut."""
    if workload.num_truncated or workload.num_skipped:
        return None
    return _again(workload, others)


def _again(workload: Workload, others: dict[str, Any]) -> Workload | None:
    drawn = workload.drawn
    if drawn is None or drawn.count != len(workload.requests) or drawn.rate != workload.rate:
        return None
    if workload.open_ended and "count" not in others:
        others = {**others, "count": None}
    return _labelled(workload, drawn_with(drawn, **others), others.get("seed", drawn.seed))


def _labelled(workload: Workload, other: Workload, seed: int) -> Workload:
    """Apply a workload's classes, adapters, images and patience to another draw of it."""
    if workload.classes or workload.adapters is not None or workload.images:
        from infercast.serve.workload import classes  # noqa: PLC0415 - most workloads have none

        other = classes.reclassed(workload, other, seed=seed) if workload.classes else other
        other = other if workload.adapters is None else classes.with_adapters(other, workload.adapters, seed=seed)
        other = classes.with_images(other, workload.images, seed=seed) if workload.images else other
    if workload.patience is not None:
        from infercast.serve.workload.patience import with_patience  # noqa: PLC0415 - most workloads have none

        other = with_patience(other, workload.patience, seed=seed)
    return other


def drawn_with(drawn: Draw, **others: Any) -> Workload:
    arguments: dict[str, Any] = {**{field.name: getattr(drawn, field.name) for field in fields(drawn)}, **others}
    return (synthetic_workload if type(drawn) is Draw else session_workload)(**arguments)


def scaled(
    workload: Workload, *, rate_scale: float = 1.0, rate: float | None = None, limit: int | None = None
) -> Workload:
    """The first ``limit`` requests, ``rate_scale`` times as fast, or at a mean ``rate`` whatever it was before."""
    require(limit is None or limit >= 1, "limit", "be at least 1 request", limit)
    if rate is not None:
        rate_scale = _scale_to(rate, rate_scale, workload, limit)
    is_usable = rate_scale > 0 and math.isfinite(rate_scale)
    require(is_usable, "rate_scale", "be a positive, finite number (2 is twice as fast)", repr(rate_scale))
    if rate_scale != 1.0 and workload.concurrency is not None:
        raise InputError(f"rate_scale {rate_scale!r} was given, but a closed loop has no rate; change its concurrency")
    requests, description, steady = workload.requests[:limit], workload.description, workload.rate
    if len(requests) < len(workload.requests):
        description += f"; the first {len(requests):,} of them"
    if rate_scale != 1.0:
        to_rate = "" if rate is None else f", to {rate:g} requests/s"
        description += f"; {rate_scale:.4g} times the rate{to_rate}"
        steady = None if steady is None else steady * rate_scale
        # Scale the rate; pauses between the turns of a session keep their length
        starts: dict[int, float] = {}
        found = []
        for request, tree in zip(requests, _trees(requests), strict=True):
            start = starts.setdefault(tree, request.arrival)
            sooner = request.arrival - start + start / rate_scale if request.think else request.arrival / rate_scale
            found.append(replace(request, arrival=sooner))
        requests = tuple(found)
    if not requests[-1].arrival < LATEST:
        last = f"the last is {requests[-1].arrival:g} s"
        raise InputError(f"rate_scale {rate_scale!r} gives arrival times too large for a clock: {last}")
    return replace(workload, requests=requests, rate=steady, description=description.removeprefix("; "))


def begun_anew(
    workload: Workload, *, session_rate: float | None = None, concurrency: int | None = None, seed: int = 0
) -> Workload:
    """The same sessions, turn by turn, beginning at a rate (Poisson) or with a fixed number at a time."""
    if not workload.in_turns:
        raise InputError(
            "a session rate or a concurrency needs a trace of conversations, or one whose sessions are followed"
        )
    if (session_rate is None) == (concurrency is None):
        raise InputError("give either a session rate or a concurrency")
    starts: dict[int, float] = {}
    trees = _trees(workload.requests)
    for tree, request in zip(trees, workload.requests, strict=True):
        starts.setdefault(tree, request.arrival)
    rng = np.random.default_rng(seed)
    kind = "burst" if session_rate is None else "poisson"
    moments = dict(zip(starts, arrival_times(kind, session_rate, len(starts), rng).tolist(), strict=True))
    found = []
    for tree, request in zip(trees, workload.requests, strict=True):
        found.append(replace(request, arrival=moments[tree] + (0.0 if concurrency else request.arrival - starts[tree])))
    found.sort(key=attrgetter("arrival"))
    how = f"{session_rate:g} sessions/s" if concurrency is None else f"{format_many(concurrency, 'session')} at a time"
    rate = None if session_rate is None else session_rate * len(found) / len(starts)
    words = f"{workload.description}; {how}".removeprefix("; ")
    return replace(workload, requests=tuple(found), concurrency=concurrency, rate=rate, description=words)


def _trees(requests: Sequence[Request]) -> list[int]:
    """Of each request the first of its session, or of what the session waits for."""
    found: list[int] = []
    for number, before in enumerate(calls_before(requests)):
        found.append(found[before[0]] if before else number)
    return found


def _scale_to(rate: float, rate_scale: float, workload: Workload, limit: int | None) -> float:
    if rate_scale != 1.0:
        raise InputError(f"rate {rate!r} and rate_scale {rate_scale!r} both say how fast requests arrive; give one")
    if not (rate > 0 and math.isfinite(rate)):
        raise InputError(f"rate must be a positive, finite number of requests per second, not {rate!r}")
    requests = workload.requests[:limit]
    span = requests[-1].arrival - requests[0].arrival
    if span <= 0:
        raise InputError(f"rate {rate!r} cannot be reached: all requests arrive at once, so they have no rate to scale")
    return rate * span / (len(requests) - 1)
