"""Several engines behind routers, in one simulation.

Every engine runs its own loop, and the engine with the earliest clock takes the next turn. A request is routed once no
engine's clock is before its arrival, so all earlier events are known. An engine that repeats a step yields a
speculative clock, and is interrupted if a request reaches it before that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, zip_longest
from math import inf, isnan
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.lazy_classes import dataclass, field, replace
from infercast.serve import simulation
from infercast.serve.fleet.lockstep import DpBarrier, Shared, in_lockstep
from infercast.serve.fleet.router import Engines, Loads, make_policy
from infercast.serve.loop import TELL_EVERY, Progress, Replica, StepObserver
from infercast.serve.record import Outage, Record
from infercast.serve.workload.clients import Arrival, ArrivalQueue, Arrivals, Clients
from infercast.serve.workload.request import Request, Workload

MOST_ENGINES = 1024  # Engines in a pool; more take minutes and gigabytes, and are never run behind one load balancer
MOST_RECORDED = 50_000_000  # Engines times requests: each engine keeps 48 bytes per request of the run


@dataclass(frozen=True, slots=True)
class Outages:
    """A replica that fails ends after the step under way, and comes back with an empty cache."""

    seconds: float  # How long each lasts, unless that is said with it
    named: tuple[tuple[int, float, float], ...] = ()  # Replicas by number, when each fails, and for how long
    mtbf: float | None = None  # Mean seconds from a replica's start to its failure; None: only those that are named
    seed: int = 0
    since: float = 0.0  # What counts as time 0, such as the beginning of a part of a day

    def of(self, replica: int) -> Iterator[tuple[float, float]]:
        """When one replica fails and when it is back, in order; without end if by chance."""
        for begin, end in self._named(replica) if self.mtbf is None else self._drawn(replica, self.mtbf):
            if end > self.since:
                yield max(begin - self.since, 0.0), end - self.since

    def down(self, replica: int, times: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Whether a replica is down at each of these times, in order."""
        found = np.zeros(times.size, dtype=bool)
        for begin, end in self.of(replica):
            if begin >= times[-1]:
                break
            found |= (times >= begin) & (times < end)
        return found

    def _named(self, replica: int) -> Iterator[tuple[float, float]]:
        for number, begin, seconds in sorted(self.named):
            if number == replica:
                yield begin, begin + seconds

    def _drawn(self, replica: int, mtbf: float) -> Iterator[tuple[float, float]]:
        failure_stream = 86_028_121  # combined with the seed: failures have a random stream of their own
        random, end = np.random.default_rng((self.seed, failure_stream, replica)), 0.0
        for _ in count():
            begin = end + float(random.exponential(mtbf))
            end = begin + self.seconds
            yield begin, end


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines behind one router."""

    replicas: tuple[Replica, ...]
    router: str = "least_loaded"
    lockstep: bool = False  # True if the engines share experts, so that every step is synchronous across all ...
    shared: Shared | None = None  # ... and the cost of what they do together in it.
    servers: int = 1  # API servers in front of the engines, each with one thread that accepts requests
    outages: Outages | None = None  # When replicas are down
    weights: tuple[float, ...] = ()  # What each serves compared with the others; none: all are equal


@dataclass(slots=True, eq=False)
class Engine:
    number: int  # Its index in the pool
    inbox: ArrivalQueue
    record: Record
    loop: simulation.AnyLoop
    clock: float = 0.0
    outstanding: dict[int, Request] = field(default_factory=dict)  # Unanswered requests by number
    meeting: DpBarrier | None = None  # The barrier with the other engines, if in lockstep
    events: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        self.events = self.loop.events()
        self.clock = next(self.events)

    def interrupt(self, time: float) -> None:
        """End its turn with the step under way at a moment, even if it repeats that."""
        if self.record.ahead is not None and time < self.clock:
            self.inbox.put(Arrival(time, -1, time, cast("Request", None)))
            self.clock = next(self.events)

    def start_again(self, inbox: ArrivalQueue, loop_of: Callable[[ArrivalQueue], simulation.AnyLoop]) -> None:
        """With nothing in it, and with its record."""
        drafts, self.record.ahead = self.record.drafts, None
        self.record.num_preemptions += self.loop.scheduler.num_preemptions
        self.inbox, self.loop, self.outstanding = inbox, loop_of(inbox), {}
        if self.record.drafts is not drafts:
            self.record.drafts.add(drafts)
        self.__post_init__()

    def take_turn(self) -> list[tuple[int, float]]:
        """One turn of its loop; returns the requests that it has answered, and when their clients had all tokens."""
        if self.meeting is not None:
            self.meeting.time = self.clock
        self.clock = next(self.events, inf)
        answered = self.inbox.answered
        if answered:
            self.inbox.answered = []
            answered.sort()
        return answered


class RunningPool:
    """A pool while it runs: its router and its engines."""

    def __init__(
        self, pool: Pool, num_requests: int, arrivals: Arrivals, watch: Sequence[StepObserver] = (),
        turned_into: Callable[[Replica], Replica] = lambda replica: replica,
        loop_for: Callable[[Replica, ArrivalQueue], simulation.AnyLoop] | None = None, is_plain: bool = False,
        shares: bool = False,
    ) -> None:  # fmt: skip
        """``arrivals``: requests for its router; ``turned_into``: a transformation applied to each replica;
        ``loop_for``: makes the loop of a replica, where it is another than for a recorded run; ``is_plain`` and
        ``shares`` as in `simulation.loop_of`.
        """
        check_size(len(pool.replicas), num_requests)
        self._arrivals, first = arrivals, pool.replicas[0]
        self._last_arrival = 0.0
        self.down: set[int] = set()  # Engines that get no requests for now
        self._outages = [pool.outages.of(each) for each in range(len(pool.replicas))] if pool.outages else []
        self._changes: list[tuple[float, int, float]] = []
        """When the next replicas fail, and are back: times, numbers, and ends of outages; 0 for those who are back."""
        self._held: list[Arrival] = []  # Requests that wait until any replica is back
        self._sent: dict[int, float] = {}  # When requests were sent first
        # Engines with work, earliest clock first.
        self._busy: list[tuple[float, int]] = []
        meeting, replicas = in_lockstep(pool.replicas, pool.shared) if pool.lockstep else (None, pool.replicas)
        self.engines: list[Engine] = []
        self._loops: list[Callable[[ArrivalQueue], simulation.AnyLoop]] = []  # Made anew when a replica is back
        for replica, watcher in zip_longest(map(turned_into, replicas), watch):
            inbox = ArrivalQueue(sends_at_once=arrivals.sends_at_once)
            if loop_for is None:
                make = partial(simulation.loop_of, replica, record=simulation.new_record(replica, num_requests))
                self._loops.append(partial(make, watch=watcher, is_plain=is_plain, shares=shares))
            else:
                self._loops.append(partial(loop_for, replica))
            loop = self._loops[-1](inbox)
            self.engines.append(Engine(len(self.engines), inbox, loop.record, loop, meeting=meeting))
            self._plan_outage(len(self.engines) - 1)
        self._loads = Loads(len(self.engines), [engine.record for engine in self.engines])
        engines = Engines(
            count=len(self.engines),
            cache_tokens=[
                each.num_blocks * each.kv_shape.block_size // len(each.kv_shape.windows) for each in replicas
            ],
            block_size=first.kv_shape.block_size, publish_counts=pool.lockstep or first.tells_load,
            weighs_cache=first.tells_load,
            usage=lambda number: self.engines[number].loop.scheduler.cache.num_held / replicas[number].num_blocks,
            down=self.down, weights=pool.weights,
        )  # fmt: skip
        self._on_failure, self._choose = engines.on_failure, make_policy(pool.router, engines)

    @property
    def next_delivery(self) -> float:
        """When the next request reaches an engine."""
        arrival = self._arrivals.next_arrival
        return inf if arrival is None else arrival

    @property
    def furthest_behind(self) -> float:
        """The earliest clock of all engines with work."""
        busy = self._busy
        while busy:
            clock, number = busy[0]
            if clock == self.engines[number].clock:
                return clock
            heapq.heappop(busy)  # it had looked ahead too far
        return inf

    def next_engine(self) -> Engine:
        """Pop that engine to take its turn."""
        return self.engines[heapq.heappop(self._busy)[1]]

    def route(self) -> None:
        """Send the next request to an engine, unless an API server has still to work on it."""
        arrival = self.next_delivery
        self._arrivals.move_to(arrival)
        if self.next_delivery > arrival:
            return
        arrival = self.next_delivery
        index, request, sent = self._arrivals.pop()
        if self._outages:
            sent = self._sent.setdefault(index, sent)
        self._send(Arrival(sent, index, arrival, cast("Request", request)))

    def _send(self, delivery: Arrival) -> None:
        index, request = delivery.number, delivery.request
        self._loads.move_to(delivery.arrival)
        if request is None:
            self._recall(delivery)
            return
        if self._outages and len(self.down) == len(self.engines):
            self._held.append(delivery)
            return
        chosen = self._choose(delivery, self._loads)
        self._loads.sent(chosen, request)
        engine = self.engines[chosen]
        self._deliver(engine, delivery)
        engine.outstanding[index] = request

    def _plan_outage(self, number: int) -> None:
        if self._outages and (times := next(self._outages[number], None)) is not None:
            heapq.heappush(self._changes, (times[0], number, times[1]))

    @property
    def _next_change(self) -> float:
        """When the next replica fails or is back, while there is anything to serve."""
        if not self._changes or (self.next_delivery == inf and not self._held and self.furthest_behind == inf):
            return inf
        return self._changes[0][0]

    def _change(self) -> list[tuple[int, float]]:
        """A replica fails, or is back; returns what it had answered before."""
        time, number, end = heapq.heappop(self._changes)
        if end:
            heapq.heappush(self._changes, (end, number, 0.0))
            self.down.add(number)
            return self._fail(self.engines[number], time, end)
        self.down.discard(number)
        self._plan_outage(number)
        held, self._held = self._held, []
        for delivery in held:
            self._send(delivery._replace(arrival=time))
        return []

    def _fail(self, engine: Engine, time: float, end: float) -> list[tuple[int, float]]:
        """All that the replica has not answered is sent again, and is wasted as far as it was computed."""
        engine.interrupt(time)
        number, answered = engine.number, sorted(engine.inbox.answered)
        for index, moment in answered:
            self._loads.answered(number, moment, index, engine.outstanding.pop(index))
        lost, abort, most = engine.outstanding, engine.loop.scheduler.abort, 5000
        if len(engine.record.outages) == most:
            raise InputError(f"replica {number} fails more than {most:,} times, so that requests hardly ever end")
        engine.record.outages.append(Outage(time, end, len(lost), sum(map(abort, lost))))
        for index, request in lost.items():
            self._loads.answered(number, time, index, request)
            engine.record.drop(index)
            cast("Clients", self._arrivals).put_back(index, request, time)
        for tell in self._on_failure:
            tell(number)
        self._busy = sorted(each for each in self._busy if each[1] != number)
        engine.start_again(ArrivalQueue(sends_at_once=self._arrivals.sends_at_once), self._loops[number])
        return answered

    def _recall(self, delivery: Arrival) -> None:
        """Tell its engine that the client of a request has left; it stays with the engine, as if by another number."""
        index = delivery.number
        for engine in self.engines:
            if index in engine.outstanding:
                engine.outstanding[~index] = engine.outstanding.pop(index)
                self._deliver(engine, delivery)
            elif not isnan(engine.record.last_token[index]):  # answered, and its client has left before it had all
                engine.record.lose(index, delivery.sent, 0)

    def _deliver(self, engine: Engine, delivery: Arrival) -> None:
        arrival, chosen = delivery.arrival, engine.number
        # Requests stay in order: one may have had to wait for another that was sent before it.
        if arrival < self._last_arrival:
            arrival = self._last_arrival
            delivery = delivery._replace(arrival=arrival)
        self._last_arrival = arrival
        engine.inbox.put(delivery)
        if engine.record.ahead is not None and arrival < engine.clock:
            engine.clock = next(engine.events)  # it repeats its step no further
            heapq.heappush(self._busy, (engine.clock, chosen))
        elif not engine.outstanding:
            heapq.heappush(self._busy, (engine.clock, chosen))

    def take_turn(self, engine: Engine, until: float = 0.0) -> list[tuple[int, float]]:
        """A turn of the engine, or more of them up to a time before which nothing reaches it.

        Returns the requests that it has answered, and when their clients had all tokens.
        """
        found: list[tuple[int, float]] = []
        outstanding = engine.outstanding
        while True:
            if answered := engine.take_turn():
                for index, time in answered:
                    if index in outstanding:  # not one that was aborted in its last step
                        self._loads.answered(engine.number, time, max(index, ~index), outstanding.pop(index))
                found += answered
            if not outstanding:
                return found
            if engine.clock >= until:
                heapq.heappush(self._busy, (engine.clock, engine.number))
                return found

    def serve(self, until: float = inf, *, apart: bool = True) -> Iterator[tuple[int, int, float]]:
        """Serve what comes before a time; ``apart``: when the next request comes does not depend on answers.

        Yields the requests that were answered: the number of their engine, their own, and when.
        """
        while True:
            change = self._next_change if self._changes else inf
            arrival = min(self.next_delivery, until, change)
            if self.furthest_behind < arrival:
                engine = self.next_engine()
                for index, time in self.take_turn(engine, arrival if apart else 0.0):
                    yield engine.number, index, time
            elif arrival == change < inf:
                number = self._changes[0][1]
                for index, time in self._change():
                    yield number, index, time
            elif arrival == until:
                return
            else:
                self.route()

    def abort(self, index: int, time: float) -> int | None:
        """Drop a request after its client has left; returns its engine's number, None if no engine has it."""
        engine = next((each for each in self.engines if index in each.outstanding), None)
        if engine is None:
            return None
        self._loads.answered(engine.number, time, index, engine.outstanding.pop(index))
        if not engine.inbox.drop(index):
            engine.loop.scheduler.abort(index)
        return engine.number

    def close(self) -> None:
        for engine in self.engines:
            for _ in engine.events:
                pass


def simulate_fleet(
    pool: Pool, workload: Workload, watch: Sequence[StepObserver] = (), progress: Progress | None = None,
    go_on: simulation.GoOn | None = None,
) -> list[Record]:  # fmt: skip
    """Serve a workload with one pool; each engine's record holds the requests it served.

    ``watch``: one step observer per engine; none by default. ``progress`` is called on answers.
    ``go_on`` may add requests when the last one is sent.
    """
    for replica in {id(each.timer): each for each in pool.replicas}.values():
        simulation.check_workload(replica, workload)
    shares = workload.has("prefix")

    def serve(is_plain: bool, go_on: simulation.GoOn | None) -> list[Record]:
        clients = simulation.clients_of(pool.replicas[0], workload, pool.servers)
        running = RunningPool(pool, len(workload.requests), clients, watch, is_plain=is_plain, shares=shares)
        records = [engine.record for engine in running.engines]
        clients.listen(records)
        if go_on is not None:
            simulation.further_from(clients, pool.replicas[0], records, go_on)
        served = running.serve(apart=not (clients.wait_for_answers or pool.lockstep))
        for answered, (_, index, time) in enumerate(served, 1):
            clients.answer(time, index)
            if progress is not None and answered % TELL_EVERY == 0:
                progress(answered, time)
        running.close()
        return records

    if pool.outages is None:
        return simulation.plainly(serve, go_on, is_plain=simulation.share_nothing(workload, or_prompts=True))
    if any(each.patience for each in workload.requests):
        raise InputError("clients that leave replicas that fail are not modelled; leave client_timeout and cancel out")
    return simulation.plainly(serve, go_on, is_plain=False)


def next_pool(pools: Sequence[RunningPool], until: float = inf) -> RunningPool | None:
    """The pool of the engine with the earliest clock, once all requests that reach an engine before that are routed.

    Requests that reach an engine after ``until`` wait.
    """
    while True:
        behind = receiving = pools[0]
        clock, arrival = behind.furthest_behind, behind.next_delivery
        for other in pools[1:]:
            if (others := other.furthest_behind) < clock:
                clock, behind = others, other
            if (others := other.next_delivery) < arrival:
                arrival, receiving = others, other
        if arrival == inf or arrival > clock or arrival > until:
            return None if clock == inf else behind
        receiving.route()


def check_size(engines: int, requests: int) -> None:
    """Reject pools that are too large to simulate."""
    if engines > MOST_ENGINES:
        raise InputError(f"{engines:,} replicas are too many to simulate together; use 1 to {MOST_ENGINES:,}")
    if engines * requests > MOST_RECORDED:
        raise InputError(
            f"{engines:,} replicas and {requests:,} requests are too many to simulate together; use at most "
            f"{MOST_RECORDED // engines:,} requests or {max(1, MOST_RECORDED // requests):,} replicas"
        )


def same_engines(replica: Replica, count: int) -> tuple[Replica, ...]:
    """Equal engines, each with its own warm-up state."""
    return tuple(replace(replica) for _ in range(count))
