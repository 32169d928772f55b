"""Requests, the workload that they form, and requests longer than a model allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from infercast.errors import InputError, UnknownNameError
from infercast.serve.workload.distributions import LengthDistribution
from infercast.shown import Answer

NEVER = 1 << 60
"""Tokens that no answer has."""


class Segment(NamedTuple):
    """A piece of prompt whose content is named: equal ids at equal positions are equal tokens."""

    content: int
    """The name of its content, any number."""
    num_tokens: int
    """Tokens of the piece."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a client sends it. Lengths are known to the simulation, not to its scheduler's decisions."""

    arrival: float
    """Seconds after the start. In a closed loop, the earliest moment the client may send it."""
    num_input: int
    """Tokens of the prompt."""
    num_output: int
    """Tokens of the answer."""
    prefix: tuple[Segment, ...] = ()
    """The leading part of the prompt that other requests may share; the rest is this request's own."""
    answer: int | None = None
    """The name of the output's content, which the prefix of a later request may go on with after this whole prompt."""
    declared: int | None = None
    """The longest answer that the client asks for (``max_tokens``), which some engines keep room for; None: as long as
    it will be."""
    session: int | None = None
    """The conversation that it is a turn of; None: it stands alone."""
    think: float = 0.0
    """Where sessions go turn by turn: seconds from the answer before to this request, which never comes before its
    ``arrival`` either."""
    priority: int = 0
    """What an engine that schedules by priority looks at: the smallest goes first."""
    slo_class: str = ""
    """The kind of traffic that it belongs to, which has an SLO of its own."""
    adapter: int | None = None
    """The LoRA adapter that it asks for; None: the model itself."""
    stops: bool = False
    """Whether its answer ends by itself, with EOS or a stop token, and not at ``max_tokens``: an engine learns of that
    with the last token."""

    @property
    def num_declared(self) -> int:
        """Output tokens that the engine must reckon with."""
        return self.num_output if self.declared is None else self.declared

    @property
    def most_output(self) -> int:
        """Output tokens after which an engine knows that it ends."""
        if self.declared is not None:
            return self.declared
        return NEVER if self.stops else self.num_output


@dataclass(frozen=True, slots=True)
class Draw:
    """What random requests were drawn from: the arguments of `synthetic_workload`."""

    arrival: str
    rate: float | None
    count: int
    concurrency: int | None
    input_lengths: LengthDistribution
    output_lengths: LengthDistribution
    burstiness: float
    prefix_length: int
    prefix_groups: int
    seed: int
    declared_length: int | None = None
    ignore_eos: bool = True
    spread_out: bool = False


@dataclass(frozen=True, slots=True)
class SloClass:
    """A kind of traffic: how important it is, and what each of its requests is promised."""

    name: str
    priority: int | None = None
    """None: as its requests say."""
    limits: tuple[tuple[str, float], ...] = ()
    """Seconds that each request is to stay below, by ``ttft``, ``tpot`` and ``e2e``."""
    share: float | None = None
    """Of all requests, where chance chose whose each is."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters that requests ask for."""

    count: int
    skew: float = 1.0
    """How much more popular some are: the k-th as much as 1 / k to this power (Zipf); 0: all alike."""
    share: float = 1.0
    """Of the requests that ask for one; the others ask for the model itself."""


@dataclass(frozen=True, slots=True, repr=False)
class Workload(Answer):
    """Requests in order of arrival, and how many clients send them."""

    requests: tuple[Request, ...]
    concurrency: int | None = None
    """Closed loop: at most this many requests are in the system; the next is sent when one ends. None: open loop."""
    rate: float | None = None
    """Offered requests per second where one number describes it; None for traces, bursts and closed loops."""
    description: str = ""
    drawn: Draw | None = None
    """Set where chance made the requests, so that it could have made others; see `redrawn`."""
    num_truncated: int = 0
    """Requests that were cut to the longest a model allows ..."""
    num_skipped: int = 0
    """... and requests that were left out for it."""
    classes: tuple[SloClass, ...] = ()
    """Of the requests that name one."""
    adapters: Adapters | None = None
    """Where chance chose the adapter of each request."""
    open_ended: bool = False
    """Whether whoever serves it decides how many requests a steady result takes; these are the first of them, and
    `extended` draws more."""
    cut: tuple[str, int] | None = None
    """What is done with random requests of more than so many tokens: ``truncate`` or ``skip``."""
    every: int = 1
    """These are every so-many-th request of what was drawn."""
    in_turns: bool = False
    """Whether a request of a session is sent only after the answer before it (`Clients`). With a concurrency
    it is sessions that are counted then: one begins when another one has ended."""

    def _words(self) -> str:
        return self.description or f"{len(self.requests):,} requests"

    def per_request(self) -> dict[str, list[float]]:
        """Lists over requests in order of arrival: seconds of arrival and tokens."""
        return {
            "arrival_s": [each.arrival for each in self.requests],
            "input_tokens": [each.num_input for each in self.requests],
            "output_tokens": [each.num_output for each in self.requests],
        }


# Requests that are longer than a model allows: refused, truncated or skipped, and always counted.


TOO_LONG = ("refuse", "truncate", "skip")


def check_too_long(how: str) -> None:
    """Raise unless it is one of the three."""
    if how not in TOO_LONG:
        raise UnknownNameError("choice of what to do with requests that are too long", how, TOO_LONG)


def refuse_too_long(workload: Workload, longest: int) -> None:
    """Raise if a request does not fit in ``longest`` tokens, and say how many do not."""
    for index, request in enumerate(workload.requests):
        if _tokens(request) > longest:
            count = sum(_tokens(each) > longest for each in workload.requests)
            raise InputError(
                f"request {index} needs {request.num_input} input + {request.num_output} output tokens, above "
                f"max_model_len {longest} ({count:,} of {len(workload.requests):,} requests are too long); raise "
                "max_model_len, shorten requests, or say --too-long truncate or --too-long skip"
            )


def truncated(workload: Workload, longest: int) -> Workload:
    """The same requests, each cut to ``longest`` tokens: its prompt first, so that the whole answer still fits.

    The beginning of a prompt is kept, so that what requests share stays shared. An answer that leaves no room for a
    prompt is cut as well.
    """
    requests = tuple(
        request if _tokens(request) <= longest else _truncated(request, longest) for request in workload.requests
    )
    count = sum(_tokens(request) > longest for request in workload.requests)
    if workload.open_ended:
        workload = replace(workload, cut=("truncate", longest))
    if not count:
        return workload
    words = f"{workload.description}; {count:,} of {len(requests):,} cut to max_model_len {longest:,}"
    return replace(workload, requests=requests, description=words, num_truncated=count)


def without_too_long(workload: Workload, longest: int) -> Workload:
    """The requests that fit in ``longest`` tokens."""
    requests = tuple(request for request in workload.requests if _tokens(request) <= longest)
    count = len(workload.requests) - len(requests)
    if workload.open_ended:
        workload = replace(workload, cut=("skip", longest))
    if not count:
        return workload
    if not requests:
        raise InputError(f"all {count:,} requests are longer than max_model_len {longest}; none is left to simulate")
    words = f"{workload.description}; {count:,} longer than max_model_len {longest:,} left out"
    return replace(workload, requests=requests, description=words, num_skipped=count)


def _tokens(request: Request) -> int:
    return request.num_input + request.num_output


def _truncated(request: Request, longest: int) -> Request:
    num_output = max(1, min(request.num_output, longest - 1))
    num_input = max(1, longest - num_output)
    prefix: list[Segment] = []
    room = num_input
    for segment in request.prefix:
        if room <= 0:
            break
        prefix.append(segment if segment.num_tokens <= room else Segment(segment.content, room))
        room -= segment.num_tokens
    return replace(request, num_input=num_input, num_output=num_output, prefix=tuple(prefix))
