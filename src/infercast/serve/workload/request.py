"""Requests, workloads, and requests longer than a model allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from infercast.errors import InputError, UnknownNameError
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.serve.workload.distributions import LengthDistribution
from infercast.shown import ResultMixin
from infercast.units import format_many

NEVER = 1 << 60  # more tokens than any answer has
TOO_LONG = ("refuse", "truncate", "skip")


class Segment(NamedTuple):
    """A segment of a prompt with named content: equal names at equal positions are equal tokens."""

    content: int  # The name of its content, any number
    num_tokens: int  # Tokens in the segment


class Image(NamedTuple):
    """An image in a prompt."""

    num_tokens: int  # Of the prompt ...
    num_embeds: int  # ... and those of them that the encoder computes
    grid: tuple[int, int, int]  # Pictures that it is cut into, and rows and columns of patches of each
    pixels: int
    start: int = 0  # Its first token in the prompt
    content: int = 0  # Equal numbers are equal images

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a client sends it. The simulation knows its lengths; scheduling decisions do not use them."""

    arrival: float  # Seconds after the start. In a closed loop, the earliest time the client may send it.
    num_input: int  # Prompt tokens
    num_output: int  # Output tokens
    prefix: tuple[Segment, ...] = ()  # The leading part of the prompt that other requests may share
    answer: int | None = None
    """The name of the output's content, with which a later request's prefix may continue after this whole prompt."""
    declared: int | None = None
    """The output limit in tokens (``max_tokens``), for which some engines reserve room; None: the actual length."""
    session: int | None = None  # The conversation it is a turn of; None: a single request
    think: float = 0.0  # With sessions turn by turn: seconds after the previous answer, never before ``arrival``
    priority: int = 0  # For priority scheduling: the smallest number goes first
    slo_class: str = ""  # Its traffic class, which has an SLO of its own
    due: float = 0.0  # Seconds after arrival in which its first token should come, by its class
    adapter: int | None = None  # The LoRA adapter it uses; None: the base model
    stops: bool = False  # True if its answer ends with EOS or a stop token, which the engine learns with the last token
    images: tuple[Image, ...] = ()  # In order
    patience: float = 0.0  # Seconds after which its client leaves without the rest of the answer; 0: never
    retries: int = 0  # How often it then sends the request again
    after: tuple[int, ...] = ()
    """The content names of answers it waits for, with sessions turn by turn; none: that before it in its session."""

    @property
    def num_declared(self) -> int:
        """Output tokens the engine must plan for."""
        return self.num_output if self.declared is None else self.declared

    @property
    def most_output(self) -> int:
        """Output tokens after which an engine knows that it ends."""
        if self.declared is not None:
            return self.declared
        return NEVER if self.stops else self.num_output


class Reuse(NamedTuple):
    """Prompts that begin as an earlier one."""

    share: float  # Of all
    lengths: LengthDistribution  # Tokens that they have in common, behind a shared prefix
    distances: LengthDistribution  # Tokens of other requests in between
    new: LengthDistribution  # Tokens behind
    longest: int  # Of a prompt and its answer

    def __str__(self) -> str:
        return f"{self.share:.0%} of them {self.lengths} of an earlier one, {self.distances} before, and {self.new} new"


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
    recorded: tuple[float, ...] = ()  # Arrivals, of which minutes are drawn
    reuse: Reuse | None = None


@dataclass(frozen=True, slots=True)
class SloClass:
    """A traffic class: its priority and SLO."""

    name: str
    priority: int | None = None  # None: as given by its requests
    limits: tuple[tuple[str, float], ...] = ()  # Limits in seconds for each request, by ``ttft``, ``tpot`` and ``e2e``
    share: float | None = None  # Share of all requests, if classes were drawn at random


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters requested by a workload."""

    count: int
    skew: float = 1.0  # Zipf exponent of popularity: the k-th adapter has weight 1 / k to this power; 0: all equal
    share: float = 1.0  # Share of requests with an adapter; the others use the base model


@dataclass(frozen=True, slots=True)
class Patience:
    """When clients leave."""

    after: float  # Seconds that all wait at most
    retries: int = 0  # How often they send again
    share: float = 0.0  # Of requests whose clients leave for good ...
    leaves_after: float = 0.0  # ... after so many seconds.


@dataclass(frozen=True, slots=True, repr=False)
class Workload(ResultMixin):
    """Requests in order of arrival, and how many clients send them."""

    requests: tuple[Request, ...]
    concurrency: int | None = None
    """Closed loop: at most this many requests are in the system; the next is sent when one ends. None: open loop."""
    rate: float | None = None  # Offered requests per second, if one number; None for traces, bursts and closed loops
    description: str = ""
    drawn: Draw | None = None  # Set for random requests, so that others can be drawn; see `redrawn`
    num_truncated: int = 0  # Requests cut to the model's maximum length ...
    num_skipped: int = 0  # ... and requests left out for exceeding it.
    classes: tuple[SloClass, ...] = ()  # Classes named by requests
    adapters: Adapters | None = None  # Set if adapters were drawn at random
    images: tuple[tuple[float, Image], ...] = ()  # Drawn into prompts: how many a request has on average
    patience: Patience | None = None  # Set if clients that leave were drawn
    open_ended: bool = False  # True if the simulation decides how many requests it takes; `extended` draws more
    cut: tuple[str, int] | None = None
    """How random requests above a number of tokens are handled: ``truncate`` or ``skip``, and the limit."""
    every: int = 1  # These are every n-th request of the draw
    in_turns: bool = False  # True if a session's request waits for the previous answer; concurrency counts sessions

    def _words(self) -> str:
        return self.description or format_many(len(self.requests), "request")

    def has(self, name: str) -> bool:
        """Whether any request has a value of this field."""
        return any(map(attrgetter(name), self.requests))

    def per_request(self) -> dict[str, list[float]]:
        """Lists over requests in order of arrival: seconds of arrival and tokens."""
        return {
            "arrival_s": [each.arrival for each in self.requests],
            "input_tokens": [each.num_input for each in self.requests],
            "output_tokens": [each.num_output for each in self.requests],
        }


def calls_before(requests: Iterable[Request]) -> Iterator[list[int]]:
    """By request, the earlier ones whose answers it waits for turn by turn: those it names, or that of its session."""
    named: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, request in enumerate(requests):
        before = [named[name] for name in request.after if name in named]
        if not before and request.session in last:
            before = [last[request.session]]
        if request.session is not None:
            last[request.session] = index
        if request.answer is not None:
            named[request.answer] = index
        yield before


# Requests longer than a model allows: rejected, truncated or skipped, and always counted.


def check_too_long(how: str) -> None:
    if how not in TOO_LONG:
        raise UnknownNameError("choice of what to do with requests that are too long", how, TOO_LONG)


def refuse_too_long(workload: Workload, longest: int) -> None:
    """Raise if a request exceeds ``longest`` tokens, with the number of such requests."""
    for index, request in enumerate(workload.requests):
        if request.num_input + request.num_output > longest:
            count = sum(_tokens(each) > longest for each in workload.requests)
            raise InputError(
                f"request {index} needs {request.num_input} input + {request.num_output} output tokens, above "
                f"max_model_len {longest} ({count:,} of {len(workload.requests):,} requests are too long); raise "
                "max_model_len, shorten requests, or say --too-long truncate or --too-long skip"
            )


def truncated(workload: Workload, longest: int) -> Workload:
    """The same requests cut to ``longest`` tokens: prompts first, keeping their beginnings, then answers."""
    requests = tuple(each if _tokens(each) <= longest else _truncated(each, longest) for each in workload.requests)
    return _within(workload, requests, "truncate", longest)


def without_too_long(workload: Workload, longest: int) -> Workload:
    return _within(workload, tuple(each for each in workload.requests if _tokens(each) <= longest), "skip", longest)


def _within(workload: Workload, requests: tuple[Request, ...], how: str, longest: int) -> Workload:
    """A workload with these of its requests, the others cut or left out, and a word on how many they are."""
    count = sum(_tokens(each) > longest for each in workload.requests)
    if workload.open_ended:
        workload = replace(workload, cut=(how, longest))
    if not count:
        return workload
    if not requests:
        raise InputError(f"all {count:,} requests are longer than max_model_len {longest}; none is left to simulate")
    if how == "skip":
        words = f"{workload.description}; {count:,} longer than max_model_len {longest:,} left out"
        return replace(workload, requests=requests, description=words, num_skipped=count)
    words = f"{workload.description}; {count:,} of {len(requests):,} cut to max_model_len {longest:,}"
    return replace(workload, requests=requests, description=words, num_truncated=count)


def _tokens(request: Request) -> int:
    return request.num_input + request.num_output


def _truncated(request: Request, longest: int) -> Request:
    num_output = max(1, min(request.num_output, longest - 1))
    num_input = max(1, longest - num_output)
    prefix = beginning(request.prefix, num_input)
    images = tuple(image for image in request.images if image.end <= num_input)
    return replace(request, num_input=num_input, num_output=num_output, prefix=prefix, images=images)


def beginning(prefix: tuple[Segment, ...], room: int) -> tuple[Segment, ...]:
    """The first tokens, as many as there is ``room`` for."""
    found: list[Segment] = []
    for segment in prefix:
        if room <= 0:
            break
        found.append(segment if segment.num_tokens <= room else Segment(segment.content, room))
        room -= segment.num_tokens
    return tuple(found)
