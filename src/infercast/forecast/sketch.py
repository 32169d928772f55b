"""An engine in a few numbers, which serves hundreds of times as many requests a second as the simulation does.

It knows how long a decode step of so many sequences takes, what a prompt adds to a step, and how many tokens fit. Its
latencies are off by some per cent, but go up and down with those of the simulation: so where it serves more requests
than are simulated, it shows by how much these have met more or less load than there is in the long run, and which
further requests make up for it. (A control variate; Glasserman, Monte Carlo Methods, 4.1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

import numpy as np

from infercast.engines.timer import KernelTimer
from infercast.forecast.slo import Array
from infercast.forecast.system import System
from infercast.serve import Record, Workload
from infercast.serve.record import PhaseTotals, ServedRequests
from infercast.serve.workload.request import Draw, Request
from infercast.serve.workload.synthetic import apart, drawn_numbers

LONG_RUN, WARM, STATIONARY = 90_000, 3_000, 1.3
"""Requests that show the long run, without the first ones, and a factor between its halves that is too much."""
WORTH, CHOICES, SPENT = 1_500, 32, 60_000
"""Further requests from which on a sketch is worth it; continuations of a run that it tries, and their requests."""
FILLING, OVERLAP = 2, 4
"""Times that requests stay: until a run has filled up that is too short to tell, and nothing is felt of before."""
FITTED, CAREFULLY = 6, 0.3  # Times that a sketch is made as slow as a run, each time by this power of what is missing


class Sketch:
    evened: ClassVar = {("ttft", 0.5): 0.006, ("tpot", 0.5): 0.006, ("tpot", 0.9): 0.02, ("ttft", 0.99): 0.01}
    """Percentiles below which a continuation brings the share of requests near that of the long run, and how near."""

    def __init__(self, steps: Sequence[float], prompt: float, room: float, budget: int, drawn: Draw) -> None:
        self._steps = steps  # Seconds of a decode step by its sequences, as many as may run
        self._prompt = prompt  # Seconds of a token of a prompt
        self._room, self._budget = room, budget  # Tokens of the KV cache, and of a step
        self._drawn = drawn
        self.long_run: dict[str, Array] = {}  # Latencies in order, of many requests of the same draw

    def of(self, requests: Sequence[Request]) -> dict[str, Array]:
        return self.latencies(numbers_of(requests))

    def latencies(self, numbers: Sequence[Array]) -> dict[str, Array]:
        """Of requests by their arrivals, prompts and answers: to the first token, a token, and of all."""
        arrivals, _, outputs = numbers
        first, last = self._serve(*(each.tolist() for each in numbers))
        return {"ttft": first - arrivals, "tpot": (last - first) / np.maximum(outputs - 1, 1), "e2e": last - arrivals}

    def keeps_up(self) -> bool:
        """Whether requests do not take longer and longer in a long run, which it then knows."""
        numbers = drawn_numbers(self._drawn, LONG_RUN, apart(self._drawn.seed, LONG_RUN))
        found = {name: each[WARM:] for name, each in self.latencies(numbers).items()}
        before, after = np.array_split(found["e2e"], 2)
        found["tpot"] = found["tpot"][numbers[2][WARM:] > 1]
        self.long_run = {name: np.sort(each) for name, each in found.items()}
        return float(after.mean()) < STATIONARY * float(before.mean())

    def evenest(self, workload: Workload, count: int, begin: float, stayed: float, longest: int) -> int:
        """The number of the continuation to ``count`` requests whose whole is most like the long run from ``begin`` on,
        but for the last ones, that are sent ``stayed`` seconds before the end.
        """
        before, known = len(workload.requests), numbers_of(workload.requests)
        sent = known[0] - known[0][0]
        start = int(np.searchsorted(sent, sent[-1] - OVERLAP * stayed))  # Those from here on are still felt later
        seen, found = self._shares(known, self.latencies(known), sent >= begin), []
        for number in range(max(2, min(CHOICES, SPENT // (count - start)))):
            arrivals, *lengths = drawn_numbers(self._drawn, count - before, apart(self._drawn.seed, before, number))
            if int((lengths[0] + lengths[1]).max()) > longest:
                found.append(inf)
                continue
            further = before / (workload.rate or 1.0) + arrivals, *lengths
            later = [np.concatenate([each[start:], more]) for each, more in zip(known, further, strict=True)]
            latencies, uneven = self.latencies(later), 0.0
            for last in (stayed, 3 * stayed):  # in the end, and as far as is known when the last one is sent
                counts = (np.arange(count - start) >= before - start) & (later[0] <= later[0][-1] - last)
                below, whole = (seen + self._shares(later, latencies, counts)).T
                asked = [fraction for _, fraction in self.evened]
                off = (below / np.maximum(whole, 1) - asked) / [*self.evened.values()]
                uneven += float(np.square(off).sum())
            found.append(uneven)
        return int(np.argmin(found))

    def _shares(self, numbers: Sequence[Array], latencies: dict[str, Array], inside: Array) -> Array:
        """How many of these are below each of the long run's percentiles, and how many there are."""
        rows = []
        for name, fraction in self.evened:
            values = latencies[name][inside & (numbers[2] > 1) if name == "tpot" else inside]
            middle = self.long_run[name][int(fraction * self.long_run[name].size)]
            rows.append((int(np.count_nonzero(values <= middle)), values.size))
        return np.array(rows)

    def _serve(  # noqa: PLR0912 - once a step, of which there are some hundred thousand
        self, arrivals: list[float], inputs: list[int], outputs: list[int]
    ) -> tuple[Array, Array]:
        """When each request has its first and its last token, if step follows step."""
        steps, each, room, budget = self._steps, self._prompt, self._room, self._budget
        seats, total = len(steps) - 1, len(inputs)
        first, last = [0.0] * total, [0.0] * total
        now, step, held, running, left = 0.0, 0, 0, 0, 0
        ends: list[int] = []  # Of each running sequence its last step and, in the lower bits, its place
        bits, mask, arrivals = total.bit_length(), (1 << total.bit_length()) - 1, [*arrivals, inf]
        head = ready = number = 0  # The first that waits, those that the next step may take, and those that have come
        while True:
            if head < ready and running < seats and (held + (left or inputs[head]) <= room or not running):
                free, tokens, begun = max(budget - running, 1), 0, head
                while head < ready and running + head - begun < seats:
                    need = left or inputs[head]
                    if held + tokens + need > room and (running or head > begun):
                        break
                    if tokens + need > free:
                        left, tokens = need - (free - tokens), free
                        break
                    tokens, left, head = tokens + need, 0, head + 1
                now += steps[running] + each * tokens
                step, held, running = step + 1, held + running + tokens, running + head - begun
                for place in range(begun, head):
                    first[place] = now
                    heappush(ends, (step + outputs[place] - 1 << bits) + place)
            elif running:
                length, count = steps[running], (ends[0] >> bits) - step
                if ready < number:  # what came while the last step was planned waits for the one after this
                    count = 1
                elif arrivals[number] < now + count * length:
                    count = min(count, int((arrivals[number] - now) / length) + 1)
                now, step, held = now + count * length, step + count, held + count * running
            elif number < total:
                now = arrivals[number]
            else:
                return np.array(first), np.array(last)
            while ends and ends[0] >> bits <= step:
                place = heappop(ends) & mask
                last[place] = now
                running, held = running - 1, held - inputs[place] - outputs[place] + 1
            ready = number
            while arrivals[number] <= now:
                number += 1
            if not running and head == ready:
                ready = number


def sketch_of(
    system: System, workload: Workload, records: Sequence[Record], served: ServedRequests, room: int
) -> Sketch | None:
    """A sketch of the engines of a run, all of them together, as slow as they were for requests that have been served;
    None where they are more than steps and prompts. Each has ``room`` for so many sequences.
    """
    drawn, pool, requests = workload.drawn, system.pools[0], workload.requests
    is_plain = len(system.pools) == 1 and isinstance(pool.replica.timer, KernelTimer) and not workload.classes
    is_drawn = type(drawn) is Draw and drawn.spread_out and drawn.reuse is None and drawn.count == len(requests)
    if not is_plain or not is_drawn or workload.rate is None or drawn is None or drawn.rate != workload.rate:
        return None
    replica, engines = pool.replica, len(pool.engines.replicas)
    _, inputs, outputs = numbers_of(requests)
    decoding, prefilling = (_totals([getattr(each, name) for each in records]) for name in ("decoding", "prefilling"))
    if not decoding[0] or not prefilling[0]:
        return None
    context, seats = int(np.average(inputs + outputs / 2, weights=outputs)), replica.policy.max_num_seqs
    sizes = sorted({min(seats, round(1.4**power)) for power in range(24)})

    def step(count: int) -> float:
        estimate = pool.timer.decode(count, count * context, lambda: [context] * count, 1)
        return max(float(estimate.gpu_seconds[0]), estimate.host.total)

    steps = np.interp(np.arange(engines * seats + 1) / engines, sizes, [step(size) for size in sizes])
    count, seconds, sequences = decoding
    steps *= seconds / count / steps[min(round(engines * sequences / count), engines * seats)]
    # What steps with prompts take longer than without.
    count, seconds, sequences = prefilling
    begun = sum(int(np.count_nonzero(each.started_at > 0)) for each in records)
    others = min(max(round(engines * (sequences - begun) / count), 0), engines * seats)
    prompt = max(0.0, seconds - count * float(steps[others])) / max(begun * float(inputs.mean()), 1.0) / engines
    budget, slower = engines * replica.policy.max_num_batched_tokens, 1.0
    known = [each[: served.sent_at.size] for each in numbers_of(requests)]
    stayed = float((served.last_token - served.first_token).mean())
    for _ in range(FITTED):
        found = Sketch((slower * steps).tolist(), slower * prompt, engines * room * context, budget, drawn)
        seen = found.latencies(known)
        slower *= (stayed / max(float((seen["e2e"] - seen["ttft"]).mean()), 1e-9)) ** CAREFULLY
    return found if found.keeps_up() else None


def numbers_of(requests: Sequence[Request]) -> list[Array]:
    return [np.array([getattr(each, name) for each in requests]) for name in ("arrival", "num_input", "num_output")]


def _totals(phases: Sequence[PhaseTotals]) -> tuple[int, float, int]:
    """Steps, seconds and sequences so far."""
    known = [each.so_far() for each in phases]
    return sum(each.steps for each in known), sum(each.seconds for each in known), sum(each.sequences for each in known)
