"""The loop of a plain run, in a third of the operations: prompts share nothing, and all that start find blocks.

Such an engine needs no plans, sequences or block tables: its decode batch is a few numbers and a heap of last steps.
Times and totals have the same bits as those of `Loop` with `Scheduler`. If blocks run out, the run is given up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from itertools import accumulate

from infercast.serve.loop import MOST_STEPS, Loop
from infercast.serve.record import Numbers, Started
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepEstimate
from infercast.serve.workload.request import Request

Flying = tuple[float, float, int, list[Started], list[Started], list[Started]]
"""A step in flight: its end, seconds to process its result, its tokens, and whose are the first, the last, or both."""


class PlainLoop:
    """One engine with all its requests, as far as it has come: it is in the place of ``loop``, and has its parts."""

    def __init__(self, loop: Loop, scheduler: Scheduler) -> None:
        self.loop, self.record, self.timer, self.timeline = loop, loop.record, loop.timer, loop.timeline
        policy, cache, self.longest = scheduler.policy, scheduler.cache, scheduler.longest
        self.budget, self.most_running, self.reserves = policy.step_tokens, policy.max_num_seqs, policy.reserves_prompts
        self.num_blocks, self.size = cache.num_blocks, cache.shape.block_size
        self.watermark = policy.kept_free(cache.num_blocks)
        self.waiting: deque[Started] = deque()
        self.cut: Started | None = None  # The prompt that is computed in part ...
        self.num_cut = 0  # ... and its tokens so far
        self.num_running = self.num_held = 0
        self.flying: Flying | None = None
        self.step_seconds = 1e-6  # Duration of the last decode step
        # The decode batch: steps so far, context of all members, of each its context less the steps so far, the last
        # step of each, and how many begin a block, by step modulo the size of a block.
        self.steps = self.computed = 0
        self.members: dict[int, int] = {}
        self.last_steps: list[tuple[int, int, Started]] = []
        self.begin = [0] * self.size
        self.late: list[Started] = []  # Members in a step too many: the engine does not know their last token as such

    def run(self) -> bool:
        """Serve all requests; False if that takes more than this."""
        clients, timeline, goes_on = self.loop.clients, self.timeline, True
        while goes_on:
            arrival = clients.next_arrival
            if arrival is not None and arrival <= timeline.clock:
                arrival = self.loop.take_in_requests(self.add)
            count = len(self.members)
            if self.cut is not None or (self.waiting and self.num_running < self.most_running and count < self.budget):
                goes_on = self._compute(count)
            elif count:
                goes_on = self._decode(count, arrival)
            elif self.flying is not None:
                self._end(self.flying, timeline.take_in(*self.flying[:2]))
                self.flying = None
            elif arrival is None:
                return True
            else:
                timeline.sleep_until(arrival + self.loop.wake_up_seconds)
        return False

    def contexts(self) -> list[int]:
        return [before + self.steps for before in self.members.values()]

    def add(self, index: int, request: Request) -> None:
        known, output = request.num_input, request.num_output
        self.waiting.append((index, known, output, min(request.most_output, self.longest - known) > output))

    def _compute(self, count: int) -> bool:
        """A step with prompts: the one that was cut, and those that wait, as far as they fit."""
        size, waiting, blocks, cut = self.size, self.waiting, self.num_blocks, self.cut
        held, budget, computed = self.num_held + self.begin[(self.steps + 1) % size], self.budget - count, 0
        beside: list[tuple[int, int]] = []
        sampled: list[Started] = []
        started: list[Started] = []
        if cut is not None:
            computed = self.num_cut
            new = min(cut[1] - computed, budget)
            beside.append((new, computed))
            held += -(-(computed + new) // size) + -computed // size
            budget -= new
            self.num_cut += new
            if self.num_cut == cut[1]:
                sampled.append(cut)
                self.cut = None
        while waiting and budget > 0 and self.num_running < self.most_running:
            request = waiting[0]
            known = request[1]
            new = known if known < budget else budget
            needed = -(-(known if self.reserves else new) // size)
            if held + needed + (self.watermark if self.num_running else 0) > blocks:
                break
            held += -(-new // size)
            beside.append((new, 0))
            budget -= new
            self.num_running += 1
            started.append(waiting.popleft())
            if new == known:
                sampled.append(request)
            else:
                self.cut, self.num_cut = request, new
        if not beside or held > blocks or budget < 0 or (sampled and sampled[-1][2] == 1 and sampled[-1][3]):
            return False
        self.num_held, tokens, first = held, self.budget - budget, len(sampled)
        numbers = count + len(beside), len(waiting), tokens, self.computed + computed, count + first
        estimate = self.timer.compute(beside, first, count, self.computed, self.contexts)
        if tokens > numbers[0]:
            estimate = self.loop.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        self._launch(count, numbers, estimate, sampled, started)
        return True

    def _launch(
        self, count: int, numbers: Numbers, estimate: StepEstimate, sampled: list[Started], started: list[Started]
    ) -> None:
        """A single step, and the result of the one before."""
        record, wasted, host = self.record, len(self.late), estimate.host
        ending = self._advance(1) if count else []
        both: list[Started] = []
        steps = self.steps
        for request in sampled:
            index, known, output, _ = request
            if output == 1:
                both.append(request)
                continue
            self.members[index] = known - steps
            self.computed += known
            self.begin[(steps + 1 - known) % self.size] += 1
            heappush(self.last_steps, (steps + output - 1, index, request))
        span = self.timeline.launch(host, estimate.gpu_seconds[0])
        for request in started:
            record.started_at[request[0]] = span.start
        phase = record.prefilling if numbers[2] > numbers[0] else record.decoding
        phase.note(numbers, estimate, [span.seconds], [self.num_held])
        before, self.flying = self.flying, (span.end, host.process, numbers[4] - wasted, sampled, ending, both)
        if before is not None:
            self._end(before, self.timeline.take_in(before[0], before[1]))

    def _decode(self, count: int, arrival: float | None) -> bool:
        """A step of decoding alone, repeated until the batch changes or a request comes."""
        size, timeline, record, before, steps = self.size, self.timeline, self.record, self.flying, 1
        held, context = self.num_held + self.begin[(self.steps + 1) % size], self.computed
        if held > self.num_blocks or count > self.budget:
            return False
        if before is not None and not (timeline.slept or self.late or before[5] or (before[4] and self.waiting)):
            steps = min(self.last_steps[0][0] - self.steps, MOST_STEPS)
            if arrival is not None:
                coming = 2 + int(1.1 * (arrival - timeline.clock) / self.step_seconds)
                steps = coming if coming < steps else steps
        self.num_held = held
        numbers = count, len(self.waiting), count, context, count
        estimate = self.timer.decode(count, context, self.contexts, steps)
        if before is None or len(estimate.gpu_seconds) == 1:
            self._launch(count, numbers, estimate, [], [])
            return True
        seconds, ends, clocks = timeline.repeat(estimate.host, estimate.gpu_seconds, before[1])
        self._end(before, clocks[0])
        if arrival is not None and arrival <= clocks[-1]:
            steps = 1 + bisect_left(clocks, arrival)
            seconds, ends, clocks = seconds[:steps], ends[:steps], clocks[:steps]
        steps, first = len(seconds), (self.steps + 2) % size
        needed = self.begin[first : first + steps - 1]
        if len(needed) < steps - 1:
            needed = (needed + self.begin * (1 + steps // size))[: steps - 1]
        all_held = [*accumulate(needed, initial=self.num_held)]
        self.num_held, all_held[0] = all_held[-1], held
        if self.num_held > self.num_blocks:
            return False
        record.decoding.note(numbers, estimate, seconds, all_held)
        self.step_seconds, timeline.clock, timeline.gpu_free = seconds[-1], clocks[-1], ends[-1]
        record.steady_tokens(count, clocks[1:])
        self.flying = ends[-1], estimate.host.process, count, [], self._advance(steps), []
        return True

    def _advance(self, steps: int) -> list[Started]:
        """Count steps of the decode batch; returns those with their last token in the last one."""
        self.steps = now = self.steps + steps
        self.computed += steps * len(self.members)
        ending: list[Started] = []
        leaving, self.late, heap = self.late, [], self.last_steps
        while heap and heap[0][0] <= now:
            request = heappop(heap)[2]
            ending.append(request)
            (self.late if request[3] else leaving).append(request)
        for request in leaving:
            before = self.members.pop(request[0])
            self.computed -= before + now
            self.begin[(1 - before) % self.size] -= 1
        return ending

    def _end(self, step: Flying, time: float) -> None:
        """The result of a step is there."""
        _, _, count, sampled, done, both = step
        if both:
            done = [*done, *both]
        for _, known, output, is_open in done:
            self.num_held -= -(-(known + output - 1 + is_open) // self.size)
            self.num_running -= 1
        self.record.first_and_last(time, count, sampled, done)
