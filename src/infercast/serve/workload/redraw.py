"""Workloads made from others: the same requests at another rate, or others that chance could have made."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from infercast.errors import InputError
from infercast.serve.workload.distributions import LATEST, arrival_times
from infercast.serve.workload.request import Draw, Request, Workload, truncated, without_too_long
from infercast.serve.workload.synthetic import CLIPPED, synthetic_workload


def redrawn(workload: Workload, *, seed: int, count: int) -> Workload | None:
    """The first ``count`` requests that another seed would have drawn; None where chance made none of them."""
    return _again(workload, {"seed": seed, "count": count})


def extended(workload: Workload, count: int, longest: int) -> Workload:
    """The first ``count`` requests of the draw that an open-ended workload has the first ones of.

    Those of more than ``longest`` tokens, which an engine does not take, are cut as the first ones would have been.
    """
    drawn = workload.drawn
    assert drawn is not None
    other = _labelled(workload, drawn_with(drawn, count=count * workload.every), drawn.seed)
    if workload.every > 1:
        other = dealt_out(other, workload.every)
    how, longest = workload.cut or ("truncate", longest)
    other = without_too_long(other, longest) if how == "skip" else truncated(other, longest)
    _, clipped, limit = workload.description.partition(CLIPPED)
    return replace(other, description=f"{other.description}{clipped}{limit}", open_ended=True, cut=workload.cut)


def dealt_out(workload: Workload, times: int) -> Workload:
    """Every so-many-th request, as a load balancer deals them out."""
    rate = None if workload.rate is None else workload.rate / times
    return replace(workload, requests=workload.requests[::times], rate=rate, every=times)


def redrawn_with(workload: Workload, **others: Any) -> Workload | None:
    """The same draw with other arguments of what drew it; None where chance made none of it, or it was cut."""
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
    """Another draw of a workload in the same classes, that asks for adapters as it does."""
    if workload.classes:
        from infercast.serve.workload.classes import reclassed  # noqa: PLC0415 - most workloads have none

        other = reclassed(workload, other, seed=seed)
    if workload.adapters is not None:
        from infercast.serve.workload.classes import with_adapters  # noqa: PLC0415 - most workloads have none

        other = with_adapters(other, workload.adapters, seed=seed)
    return other


def drawn_with(drawn: Draw, **others: Any) -> Workload:
    """What these arguments and some others draw."""
    arguments: dict[str, Any] = {**{field.name: getattr(drawn, field.name) for field in fields(drawn)}, **others}
    if type(drawn) is Draw:
        return synthetic_workload(**arguments)
    from infercast.serve.workload.synthetic import session_workload  # noqa: PLC0415 - most runs have no sessions

    return session_workload(**arguments)


def scaled(
    workload: Workload, *, rate_scale: float = 1.0, rate: float | None = None, limit: int | None = None
) -> Workload:
    """The same requests, the first ``limit`` of them, arriving ``rate_scale`` times as fast (2 halves every gap).

    With ``rate`` they arrive at that many requests a second on average, whatever it was before.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1 request, not {limit!r}")
    if rate is not None:
        rate_scale = _scale_to(rate, rate_scale, workload, limit)
    if not (rate_scale > 0 and math.isfinite(rate_scale)):
        raise InputError(f"rate_scale must be a positive, finite number (2 is twice as fast), not {rate_scale!r}")
    if rate_scale != 1.0 and workload.concurrency is not None:
        raise InputError(f"rate_scale {rate_scale!r} was given, but a closed loop has no rate; change its concurrency")
    requests, description, steady = workload.requests[:limit], workload.description, workload.rate
    if len(requests) < len(workload.requests):
        description += f"; the first {len(requests):,} of them"
    if rate_scale != 1.0:
        to_rate = "" if rate is None else f", to {rate:g} requests/s"
        description += f"; {rate_scale:.4g} times the rate{to_rate}"
        steady = None if steady is None else steady * rate_scale
        requests = _sooner(requests, rate_scale)
    if not requests[-1].arrival < LATEST:
        last = f"the last is {requests[-1].arrival:g} s"
        raise InputError(f"rate_scale {rate_scale!r} gives arrival times too large for a clock: {last}")
    return replace(workload, requests=requests, rate=steady, description=description.removeprefix("; "))


def begun_anew(
    workload: Workload, *, session_rate: float | None = None, concurrency: int | None = None, seed: int = 0
) -> Workload:
    """The same sessions, turn by turn, that begin at a rate (Poisson) or so many at a time."""
    if not workload.in_turns:
        raise InputError(
            "a session rate or a concurrency needs a trace of conversations, or one whose sessions are followed"
        )
    if (session_rate is None) == (concurrency is None):
        raise InputError("give either a session rate or a concurrency")
    starts: dict[int, float] = {}
    for number, request in enumerate(workload.requests):
        starts.setdefault(-1 - number if request.session is None else request.session, request.arrival)
    rng = np.random.default_rng(seed)
    kind = "burst" if session_rate is None else "poisson"
    moments = dict(zip(starts, arrival_times(kind, session_rate, len(starts), rng).tolist(), strict=True))
    found = []
    for number, request in enumerate(workload.requests):
        key = -1 - number if request.session is None else request.session
        found.append(replace(request, arrival=moments[key] + (0.0 if concurrency else request.arrival - starts[key])))
    found.sort(key=attrgetter("arrival"))
    how = f"{session_rate:g} sessions/s" if concurrency is None else f"{concurrency:,} sessions at a time"
    rate = None if session_rate is None else session_rate * len(found) / len(starts)
    words = f"{workload.description}; {how}".removeprefix("; ")
    return replace(workload, requests=tuple(found), concurrency=concurrency, rate=rate, description=words)


def _scale_to(rate: float, rate_scale: float, workload: Workload, limit: int | None) -> float:
    """How many times as fast requests must arrive to come at ``rate``."""
    if rate_scale != 1.0:
        raise InputError(f"rate {rate!r} and rate_scale {rate_scale!r} both say how fast requests arrive; give one")
    if not (rate > 0 and math.isfinite(rate)):
        raise InputError(f"rate must be a positive, finite number of requests per second, not {rate!r}")
    requests = workload.requests[:limit]
    span = requests[-1].arrival - requests[0].arrival
    if span <= 0:
        raise InputError(f"rate {rate!r} cannot be reached: all requests arrive at once, so they have no rate to scale")
    return rate * span / (len(requests) - 1)


def _sooner(requests: tuple[Request, ...], rate_scale: float) -> tuple[Request, ...]:
    """All at another rate; who pauses between the turns of a session pauses as long as before."""
    starts: dict[int | None, float] = {}
    found = []
    for request in requests:
        start = request.arrival if request.session is None else starts.setdefault(request.session, request.arrival)
        if request.think:
            found.append(replace(request, arrival=request.arrival - start + start / rate_scale))
        else:
            found.append(replace(request, arrival=request.arrival / rate_scale))
    return tuple(found)
