"""Requests that are longer than a model allows: refused, truncated or skipped, and always counted."""

from __future__ import annotations

from dataclasses import replace

from infercast.errors import InputError, UnknownNameError
from infercast.serve.workload.request import Request, Segment, Workload

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
