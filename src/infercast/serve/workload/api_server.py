"""API servers between clients and engines: event loops of one thread each, which take requests in and send tokens out.

A turn of the loop serves whatever is ready when it begins: the text of tokens that the engine has put out, a part of
the answer of every stream that has any, and a piece of the work on every request. A request needs several turns on its
way in. So the more streams there are the longer it waits, requests that come together reach the engine together, and
tokens that come while a turn goes on are sent as one part.

How long a request waits depends on steps that the engine has not made yet. So a server works up to a moment of which
the steps are known (`move_to`), and `soonest` is a time before which no request leaves it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from math import inf
from typing import NamedTuple, Protocol

TURNS = 12  # Of the event loop, from a connection to the engine: from the log of a server of vLLM 0.33


class ServerCosts(NamedTuple):
    """Seconds of an API server's thread."""

    turn: float = 0.0  # For a request, in a round
    token: float = 0.0  # For each token of an answer ...
    part: float = 0.0  # ... and each part of an answer that is sent; 0: a request waits for its round alone
    hand_over: float = 0.0  # Between two requests that the engine gets together
    work: float = 0.0  # For a request, over all turns, where parts are sent


class StepLog(Protocol):
    """When steps of an engine ended, and their tokens: runs of steps as (steps, tokens of each, ...)."""

    stretches: list[int]
    before_write: Callable[[], None] | None  # Called before both are emptied
    ahead: tuple[Sequence[float], int, int] | None
    """Ends of steps that follow unless a request arrives, their tokens, and those of the first."""

    @property
    def ends(self) -> Sequence[float]: ...


class Steps:
    """The steps of some engines, in the order of their ends, as far as they were read."""

    def __init__(self, logs: Sequence[StepLog]) -> None:
        self._logs = logs
        self._places = [(0, 0, 0) for _ in logs]  # Of each: ends, stretches and steps of the next stretch read
        self._last = [-inf for _ in logs]  # End of the last step read, which may not be in the log yet
        self.known: deque[tuple[float, int]] = deque()

    def read(self, since: float, until: float = -inf) -> None:
        """Take in what is new, but of steps that ended before ``since`` the last few alone; ahead, up to a time."""
        known = self.known
        for number, log in enumerate(self._logs):
            at, stretch, taken = self._places[number]
            ends, end = log.ends, len(log.ends)
            if at == end and log.ahead is None:
                continue
            stretches, last = log.stretches, self._last[number]
            kept = 16  # What the loop was busy with before these is over, or was sent as one part
            first = max(bisect_right(ends, last, at), bisect_left(ends, since, at) - kept) if at < end else at
            while at < end:
                stop = min(at - taken + stretches[stretch], end)
                if stop > first:
                    known.extend(zip(ends[max(at, first) : stop], repeat(stretches[stretch + 1]), strict=False))
                taken += stop - at
                at = stop
                if taken == stretches[stretch]:
                    stretch, taken = stretch + 3, 0
            self._places[number] = at, stretch, taken
            if end:
                last = max(last, ends[-1])
            if log.ahead is not None:
                times, tokens, first_tokens = log.ahead
                for time in times:
                    if last < time <= until:
                        known.append((time, first_tokens if time == times[0] else tokens))
                        last = time
            self._last[number] = last
        if len(self._logs) > 1:
            self.known = deque(sorted(known))

    def forget(self, log: StepLog) -> None:
        """A log is emptied."""
        self._places = [
            (0, 0, 0) if each is log else place for each, place in zip(self._logs, self._places, strict=True)
        ]


class EventLoop:
    """The thread of one API server; ``share``: of the tokens of its engines' steps that it sends."""

    def __init__(self, costs: ServerCosts, share: float = 1.0) -> None:
        self.costs, self._share, self._each = costs, share, costs.work / TURNS
        self.steps = Steps(())
        self.coming: deque[tuple[float, int]] = (
            deque()
        )  # Requests that it does not know yet: when sent, and their number
        self._inside: deque[tuple[int, float, int]] = deque()  # Those it works on: their last turn, and the same
        self._now, self._turn, self._parts = 0.0, 0, 0

    @property
    def soonest(self) -> tuple[float, int] | None:
        """A time before which no request leaves, and the number of the first; None if it has none."""
        if self._inside:
            last, _, number = self._inside[0]
            return self._now + (last - self._turn) * self._each, number
        if not self.coming:
            return None
        sent, number = self.coming[0]
        return max(sent, self._now) + self.costs.work, number

    def move_to(self, time: float) -> list[tuple[float, int, float]]:
        """Make all turns that begin by then; returns the requests that leave: when, their number, and when sent."""
        costs, each, coming, inside = self.costs, self._each, self.coming, self._inside
        if not (coming or inside):
            return []
        self.steps.read(coming[0][0] if coming and not inside else -inf, time)
        steps, now, turn, parts, found = self.steps.known, self._now, self._turn, self._parts, []
        next_step, next_coming = steps[0][0] if steps else inf, coming[0][0] if coming else inf
        while inside or coming:
            begin = now
            if not (inside or parts):
                while next_step < next_coming and len(steps) > 1:
                    # All tokens are sent before the next step ends, which finds what it would find without this one.
                    tokens, following = -int(-steps[0][1] * self._share // 1), steps[1][0]
                    sent = (next_step if next_step > now else now) + tokens * costs.token + tokens * costs.part
                    if sent >= following or following > time or following > next_coming:
                        break
                    steps.popleft()
                    now, next_step = sent, following
                first = next_step if next_step < next_coming else next_coming
                begin = first if first > now else now
            if begin > time:
                break
            turn += 1
            while next_coming <= begin:
                inside.append((turn + TURNS - 1, *coming.popleft()))
                next_coming = coming[0][0] if coming else inf
            longer = len(inside) * each
            now = begin + longer + parts * costs.part
            parts = 0
            while next_step <= begin:
                tokens = -int(-steps.popleft()[1] * self._share // 1)
                next_step = steps[0][0] if steps else inf
                now += tokens * costs.token
                parts = tokens if tokens > parts else parts
            if not inside:
                continue
            last = inside[0][0]
            if last > turn and not parts:  # turns of work alone, until something is new
                until = next_step if next_step < next_coming else next_coming
                while now < until and now <= time and turn < last - 1:
                    turn += 1
                    now += longer
            while inside and inside[0][0] <= turn:
                found.append((now, inside[0][2], inside[0][1]))
                inside.popleft()
                now += costs.hand_over
        self._now, self._turn, self._parts = now, turn, parts
        return found


def _read(log: StepLog, loops: Sequence[EventLoop]) -> None:
    """Before it is emptied."""
    for loop in loops:
        loop.steps.read(inf if loop.soonest is None else -inf)
        loop.steps.forget(log)


class ApiServers:
    """Several servers in front of the same engines; requests go round robin."""

    def __init__(self, costs: ServerCosts, count: int = 1) -> None:
        self.loops = [EventLoop(costs) for _ in range(count)]
        self._costs, self._num_sent = costs, 0

    def listen(self, logs: Sequence[StepLog]) -> None:
        """Send the tokens of these engines: a server those of some of them, or its share of those of the only one."""
        count, engines = len(self.loops), len(logs)
        self.loops = [EventLoop(self._costs, share=min(1.0, engines / count)) for _ in range(count)]
        for number, loop in enumerate(self.loops):
            loop.steps = Steps([logs[number % engines]] if engines < count else logs[number::count])
        for number, log in enumerate(logs):
            log.before_write = partial(_read, log, self.loops if engines < count else [self.loops[number % count]])

    def put(self, sent: float, number: int) -> None:
        """A client has sent a request; in the order in which they do."""
        self.loops[self._num_sent % len(self.loops)].coming.append((sent, number))
        self._num_sent += 1

    @property
    def soonest(self) -> tuple[float, int] | None:
        """A time before which no request leaves a server, and the number of that which may; None if there is none."""
        if len(self.loops) == 1:
            return self.loops[0].soonest
        return min(filter(None, [loop.soonest for loop in self.loops]), default=None)

    def move_to(self, time: float) -> list[tuple[float, int, float]]:
        """As `EventLoop.move_to`, of all servers."""
        if len(self.loops) == 1:
            return self.loops[0].move_to(time)
        return sorted(left for loop in self.loops for left in loop.move_to(time))
