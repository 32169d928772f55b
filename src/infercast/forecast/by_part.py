"""What parts of a workload saw: turns of sessions, whole sessions, and classes with an SLO of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.latency import Percentiles, percentiles
from infercast.serve import Workload
from infercast.serve.fleet.served import Served

if TYPE_CHECKING:
    from infercast.forecast.result import Forecast

Array = npt.NDArray[Any]

SHOWN_TURNS = 10
"""Later ones are summed up together."""


@dataclass(frozen=True, slots=True)
class TurnRun:
    """The n-th turns of all sessions."""

    first: int
    last: int | None
    """None: all later ones."""
    requests: int
    input_tokens: float
    """On average, the history included."""
    hit_share: float
    """Of their prompt tokens that were in a cache."""
    ttft: Percentiles
    end_to_end: Percentiles

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.first}" if self.last == self.first else f"{self.first} and later"


@dataclass(frozen=True, slots=True)
class SessionsRun:
    """All sessions of a workload."""

    count: int
    turns_each: float
    time: Percentiles
    """From the first request sent to the last token."""
    waiting_share: float
    """Of that time in which somebody waits for the engine; the rest are pauses."""
    hit_share: float
    """Of all prompt tokens."""
    turns: tuple[TurnRun, ...]


@dataclass(frozen=True, slots=True)
class ClassRun:
    """The requests of one class."""

    name: str
    priority: int
    """The smallest of its requests."""
    requests: int
    limits: tuple[tuple[str, float], ...]
    attainment: float | None
    """Share of its requests that keep every limit; None where it has none."""
    ttft: Percentiles
    tpot: Percentiles | None
    end_to_end: Percentiles


def sessions_of(forecast: Forecast) -> SessionsRun | None:
    """Turns and sessions, where there are any."""
    workload, served = forecast.workload, forecast.clients
    if not workload.in_turns and all(request.session is None for request in workload.requests):
        return None
    sessions = np.array([-1 if each.session is None else each.session for each in workload.requests])
    inside = np.flatnonzero(sessions >= 0)
    if not inside.size:
        return None
    inside = inside[np.lexsort((served.sent_at[inside], sessions[inside]))]
    _, begins, counts = np.unique(sessions[inside], return_index=True, return_counts=True)
    turn = np.arange(inside.size) - np.repeat(begins, counts) + 1
    inputs = np.array([request.num_input for request in workload.requests])
    cached = np.sum([record.num_cached for record in forecast.pools[0].records], axis=0)
    sent, ended = served.sent_at[inside], served.last_token[inside]
    times = np.maximum.reduceat(ended, begins) - np.minimum.reduceat(sent, begins)
    spent = np.add.reduceat(ended - sent, begins)
    return SessionsRun(
        count=counts.size,
        turns_each=float(counts.mean()),
        time=percentiles(times),
        waiting_share=float(min(1.0, spent.sum() / max(float(times.sum()), 1e-12))),
        hit_share=float(cached[inside].sum() / inputs[inside].sum()),
        turns=tuple(_turns(inside, turn, inputs, cached, served)),
    )


def _turns(inside: Array, turn: Array, inputs: Array, cached: Array, served: Served) -> list[TurnRun]:
    ttft, whole = served.ttft, served.end_to_end
    last, found = int(turn.max()), []
    for number in range(1, min(last, SHOWN_TURNS) + 1):
        is_rest = number == SHOWN_TURNS and last > SHOWN_TURNS
        chosen = inside[turn >= number if is_rest else turn == number]
        found.append(
            TurnRun(
                first=number,
                last=None if is_rest else number,
                requests=chosen.size,
                input_tokens=float(inputs[chosen].mean()),
                hit_share=float(cached[chosen].sum() / inputs[chosen].sum()),
                ttft=percentiles(ttft[chosen]),
                end_to_end=percentiles(whole[chosen]),
            )
        )
    return found


def classes_of(workload: Workload, served: Served) -> tuple[ClassRun, ...]:
    """What each class saw, in the order in which they were given."""
    if not workload.classes:
        return ()
    names = np.array([request.slo_class for request in workload.requests])
    priorities = np.array([request.priority for request in workload.requests])
    tpot = np.full(names.size, np.nan)
    tpot[served.num_output > 1] = served.tpot
    latencies = {"ttft": served.ttft, "tpot": tpot, "e2e": served.end_to_end}
    found = []
    for each in workload.classes:
        chosen = names == each.name
        if not chosen.any():
            continue
        kept = np.ones(int(chosen.sum()), dtype=bool)
        for quantity, seconds in each.limits:
            kept &= ~(latencies[quantity][chosen] >= seconds)  # an answer of one token has no TPOT and keeps any
        several = tpot[chosen & (served.num_output > 1)]
        found.append(
            ClassRun(
                name=each.name,
                priority=int(priorities[chosen].min()),
                requests=kept.size,
                limits=each.limits,
                attainment=float(kept.mean()) if each.limits else None,
                ttft=percentiles(latencies["ttft"][chosen]),
                tpot=percentiles(several) if several.size else None,
                end_to_end=percentiles(latencies["e2e"][chosen]),
            )
        )
    return tuple(found)
