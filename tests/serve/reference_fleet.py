"""Several reference engines behind a router: the one furthest behind takes the next turn, request by request."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path
from runpy import run_path
from typing import Any

from infercast.serve.fleet.lockstep import in_lockstep
from infercast.serve.fleet.pool import Pool
from infercast.serve.fleet.router import Engines, Loads, make_policy
from infercast.serve.record import Record
from infercast.serve.workload.clients import Arrival, ArrivalQueue
from infercast.serve.workload.request import Request, Workload

Engine: Any = run_path(str(Path(__file__).with_name("reference_engine.py")))["Engine"]


@dataclass(eq=False)
class Place:
    """An engine and what was sent to it."""

    record: Record
    inbox: ArrivalQueue = field(default_factory=ArrivalQueue)
    outstanding: dict[int, Request] = field(default_factory=dict)
    events: Any = None
    clock: float = 0.0


def simulate_fleet(pool: Pool, workload: Workload) -> list[Record]:
    """Serve a workload by one pool, the reference's way."""
    first = pool.replicas[0]
    meeting, replicas = in_lockstep(pool.replicas, pool.shared) if pool.lockstep else (None, pool.replicas)
    places = []
    for replica in replicas:
        paths = replica.token_path_seconds, replica.token_turn_seconds
        place = Place(Record(len(workload.requests), replica.num_blocks, *paths))
        place.events = Engine(replica, place.inbox, place.record).events()
        place.clock = next(place.events)
        places.append(place)
    cache_tokens = first.num_blocks * first.kv_shape.block_size // len(first.kv_shape.windows)
    known = Engines(len(places), cache_tokens, first.kv_shape.block_size, pool.lockstep)
    choose, loads = make_policy(pool.router, known), Loads(len(places), [place.record for place in places])
    to_send = [*enumerate(workload.requests)]
    on_their_way: list[Arrival] = []
    free: list[float] = []
    latest = 0.0

    def send(time: float) -> None:
        """A client that is free from this time on sends the next request."""
        if to_send:
            index, request = to_send.pop(0)
            sent = max(time, request.arrival)
            arrival = sent + (first.request_path_seconds + first.request_token_seconds * request.num_input)
            on_their_way.append(Arrival(sent, index, arrival, request))

    for _ in range(workload.concurrency or len(to_send)):
        send(0.0)
    while free or on_their_way or any(place.outstanding for place in places):
        busy = [place for place in places if place.outstanding]
        behind = min(busy, key=lambda place: place.clock, default=None)
        delivery = min(on_their_way, key=lambda each: each[:2], default=None)
        known_until = min(
            inf if behind is None else behind.clock, inf if delivery is None else delivery.arrival
        )  # whoever has an answer by then has the next one of all
        if free and min(free) <= known_until:
            send(min(free))
            free.remove(min(free))
            continue
        if delivery is not None and (behind is None or delivery.arrival <= behind.clock):
            on_their_way.remove(delivery)
            loads.move_to(delivery.arrival)
            chosen = choose(delivery, loads)
            loads.sent(chosen, delivery.request)
            # Requests stay in order: a short one waits for a long one that was sent before it.
            latest = max(latest, delivery.arrival)
            places[chosen].inbox.put(delivery._replace(arrival=latest))
            places[chosen].outstanding[delivery.number] = delivery.request
            continue
        assert behind is not None
        if meeting is not None:
            meeting.time = behind.clock
        behind.clock = next(behind.events, inf)
        for index in [*behind.outstanding]:
            if not isnan(time := float(behind.record.last_token[index])):
                loads.answered(places.index(behind), time, index, behind.outstanding.pop(index))
                if workload.concurrency is not None:
                    free.append(time)
    for place in places:
        for _ in place.events:
            pass
    return [place.record for place in places]
