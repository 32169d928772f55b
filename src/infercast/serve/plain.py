"""The loop of a plain run, in a third of the operations: all requests that start find blocks.

Such an engine needs no plans or sequences: its decode batch is a few numbers and a heap of last steps. Prompts that may
share blocks have tables of them, and answers that may be reused are in the prefix cache from their ends on.
Times and totals have the same bits as those of `Loop` with `Scheduler`. If blocks run out, the run is `NotPlain`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate

from infercast.lazy_classes import NamedTuple
from infercast.serve.cache.blocks import BlockAllocation
from infercast.serve.loop import Loop, worth_timing
from infercast.serve.record import MOST_NOTED_ENDS, Numbers
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.step import StepEstimate
from infercast.serve.timeline import Repetitions
from infercast.serve.workload.request import Request


class PlainRequest(NamedTuple):
    number: int
    num_input: int
    num_output: int
    is_open: bool  # True if its last token is known as such only as it comes
    blocks: BlockAllocation | None  # Where it may share any


class Member(NamedTuple):
    """A request that decodes; in the order in which they end."""

    last_step: int
    number: int
    offset: int  # Its context less the steps of the batch
    request: PlainRequest


class StepInFlight(NamedTuple):
    end: float
    process: float  # Seconds to process its result
    num_tokens: int
    first: list[PlainRequest]  # Requests that get their first token ...
    last: list[PlainRequest]  # ... and their last one.
    has_both: bool  # True if some get one that is both


class RepeatedStep(NamedTuple):
    """Repetitions of a step that are timed but not launched."""

    numbers: Numbers
    estimate: StepEstimate
    repeated: Repetitions
    held: int  # Blocks in the first
    before: tuple[int, int]  # Tokens of the step in flight, and those that are not first ones


# Fields of a `Replica` and of its policy that a fast loop obeys, or that mean nothing without another one that makes a
# run take `Loop`. With another value in any other field it is `Loop`'s, which obeys all.
OBEYED = frozenset(
    {
        *("timer", "policy", "num_blocks", "kv_shape", "max_model_len", "max_output", "launch_spread"),
        *("settle_seconds", "request_path_seconds", "request_token_seconds", "server", "num_servers", "tells_load"),
        *("wake_up_seconds", "token_path_seconds", "token_turn_seconds"),
        *("sparse_windows", "retained_every", "stages_in_turn", "encoder"),  # of windows, of pipelines, and of images
    }
)
"""By both fast loops."""
OBEYED_HERE = OBEYED | {
    *("max_num_batched_tokens", "max_num_seqs", "max_num_scheduled_tokens", "watermark", "reserves_prompts"),
    *("prefix_caching", "frees_on_completion"),  # the latter differs with windows, or in pipelines
    *("adaptive_threshold", "threshold_exempts_single_request"),  # of a threshold
    *("allow_partial_block", "last_token_own_step"),  # of aligned states
    *("skipped_queue_separate", "counts_running", "skips_unreadable"),  # of adapters, and of drafts
    *("steps_over", "goes_on", "own_interval"),  # of priorities, and of an interval
}


class NotPlain(Exception):  # noqa: N818 - nothing is wrong
    """A run that takes more than this: blocks have run out, or an answer is reused before its end."""


class PlainLoop:
    """One engine as far as it has come, in the place of ``loop`` and with its parts; its prompts may share blocks."""

    def __init__(self, loop: Loop, scheduler: Scheduler, *, shares: bool = False) -> None:
        self.loop, self.record, self.timer, self.timeline = loop, loop.record, loop.timer, loop.timeline
        self.clients = loop.clients
        self.scheduler, self.cache, self.longest = scheduler, scheduler.cache, scheduler.longest
        policy, cache = scheduler.policy, scheduler.cache
        self.budget, self.most_running, self.reserves = policy.step_tokens, policy.max_num_seqs, policy.reserves_prompts
        self.num_blocks, self.size, self.shares = cache.num_blocks, cache.shape.block_size, shares
        self.settled = 0  # Of the blocks held, those that the cache knows to be, where any are shared
        self.expected: dict[int, BlockAllocation] = {}  # Edges of answers that others may reuse, and who computes them
        self.watermark = policy.kept_free(cache.num_blocks)
        self.waiting: deque[PlainRequest] = deque()
        self.cut: PlainRequest | None = None  # The prompt that is computed in part ...
        self.num_cut = 0  # ... and its tokens so far
        self.flying: StepInFlight | None = None
        self.step_seconds = 1e-6  # Duration of the last decode step
        # The decode batch: steps, context of all members, and how many begin a block, by step modulo a block's size.
        self.steps = self.computed = self.num_joined = self.num_running = 0
        self.begin = [0] * self.size
        self.members: list[Member] = []  # A heap
        self.late: list[Member] = []  # Those in a step too many: the engine does not know their last token as such

    def events(self) -> Iterator[float]:
        """As those of `Loop`, or `NotPlain`."""
        clients, timeline, record, waiting = self.clients, self.timeline, self.record, self.waiting
        while True:
            if clients.wait_for_answers:  # or there are several engines
                yield timeline.clock
            if len(record.ends) >= MOST_NOTED_ENDS:
                record.write()
            arrival = clients.next_arrival
            if arrival is not None and arrival <= timeline.clock:
                arrival = self.loop.admit_arrivals(self.add)
            count = len(self.members) + len(self.late)
            if self.cut is not None or (waiting and self.num_running < self.most_running and count < self.budget):
                self._compute(count)
            elif count:
                ahead = self._look_ahead(count, arrival)
                if ahead is None:
                    continue
                if clients.wait_for_answers:  # a client may still send a request that arrives earlier
                    record.ahead = ahead.repeated[2], count, ahead.before[0]
                    yield ahead.repeated[2][-1]
                    record.ahead = None
                self._repeat(ahead)
            elif self.flying is not None:
                self._end(self.flying, timeline.take_in(self.flying.end, self.flying.process))
                self.flying = None
            elif arrival is None:
                record.close(0)
                return
            else:
                timeline.sleep_until(arrival + self.loop.wake_up_seconds)

    def contexts(self) -> list[int]:
        by_number = sorted((each.number, each.offset) for each in (*self.members, *self.late))
        return [offset + self.steps for _, offset in by_number]

    def add(self, index: int, request: Request) -> None:
        known, output = request.num_input, request.num_output
        blocks = BlockAllocation(index, self.cache.path(request), known, 1) if self.shares else None
        most = output if request.declared is None and not request.stops else request.most_output
        is_open = min(most, self.longest - known) > output
        self.waiting.append(tuple.__new__(PlainRequest, (index, known, output, is_open, blocks)))

    def _settle(self, held: int) -> None:
        """Allocate what has been counted, before others look for blocks or leave theirs."""
        if held > self.num_blocks:
            raise NotPlain
        if held > self.settled:
            self.cache.num_held = self.settled
            self.cache.take(held - self.settled)
        self.cache.num_held = self.settled = held

    def _name(self, blocks: BlockAllocation, num_tokens: int) -> None:
        """Let others find the blocks of a prompt, unless they are those of an answer that is not named yet."""
        for edge, _, end in blocks.path:
            if edge in self.expected and end > self.expected[edge].named:
                raise NotPlain
        self.cache.name(blocks, num_tokens)

    def _start(self, index: int, known: int, blocks: BlockAllocation, budget: int, held: int) -> tuple[int, int] | None:
        """Allocate the first blocks of a request; returns (new, computed) tokens of its first step, or None."""
        self._settle(held)
        computed = self.cache.longest_prefix(blocks, known)
        new = known - computed if known - computed < budget else budget
        spare = self.watermark if self.num_running else 0
        if not self.cache.admit(blocks, computed, new, known if self.reserves else 0, self.budget, spare=spare):
            return None
        (self._name if self.expected else self.cache.name)(blocks, computed + new)
        self.settled, self.record.num_cached[index] = self.cache.num_held, computed
        return new, computed

    def _expect(self, blocks: BlockAllocation) -> None:
        """Its answer may be reused: no other request may look for it, or compute the same, before its end."""
        for edge, _, end in blocks.path:
            if end > blocks.named:
                if edge in self.expected or self.cache.is_cached(edge, blocks.named):
                    raise NotPlain
                self.expected[edge] = blocks

    def _compute(self, count: int) -> None:
        """A step with prompts: the one that was cut, and those that wait, as far as they fit."""
        size, waiting, num_blocks, cut = self.size, self.waiting, self.num_blocks, self.cut
        held, budget, computed = self.cache.num_held + self.begin[(self.steps + 1) % size], self.budget - count, 0
        prefills: list[tuple[int, int]] = []
        sampled, started = list[PlainRequest](), list[PlainRequest]()
        if cut is not None:
            computed = self.num_cut
            new = min(cut.num_input - computed, budget)
            prefills.append((new, computed))
            held += -(-(computed + new) // size) + -computed // size
            budget -= new
            self.num_cut += new
            if cut.blocks is not None:
                self._settle(held)
                self._name(cut.blocks, self.num_cut)
            if self.num_cut == cut.num_input:
                sampled.append(cut)
                self.cut = None
        while waiting and budget > 0 and self.num_running < self.most_running:
            request = waiting[0]
            index, known, _, _, blocks = request
            if blocks is None:
                new, before = known if known < budget else budget, 0
                needed = -(-(known if self.reserves else new) // size)
                if held + needed + (self.watermark if self.num_running else 0) > num_blocks:
                    break
                held += -(-new // size)
            else:
                pair = self._start(index, known, blocks, budget, held)
                if pair is None:
                    break
                (new, before), held = pair, self.settled
            prefills.append((new, before))
            budget -= new
            computed += before
            self.num_running += 1
            started.append(waiting.popleft())
            if before + new == known:
                sampled.append(request)
            else:
                self.cut, self.num_cut = request, before + new
        last = sampled[-1] if sampled else None
        if not prefills or held > num_blocks or budget < 0 or (last and last.num_output == 1 and last.is_open):
            raise NotPlain
        self.cache.num_held, tokens, first = held, self.budget - budget, len(sampled)
        numbers = count + len(prefills), len(waiting), tokens, self.computed + computed, count + first
        estimate = self.timer.compute(prefills, first, count, self.computed, self.contexts)
        if tokens > numbers[0]:
            estimate = self.loop.conditions.meet(estimate, self.timeline.clock, self.timeline.gpu_free)
        self._launch(count, numbers, estimate, sampled, started)

    def _launch(
        self, count: int, numbers: Numbers, estimate: StepEstimate, sampled: list[PlainRequest],
        started: list[PlainRequest],
    ) -> None:  # fmt: skip
        """A single step, and the result of the one before."""
        record, timeline, host, tokens = self.record, self.timeline, estimate.host, numbers[4] - len(self.late)
        done = self._advance(1, count) if count else []
        steps, has_both = self.steps, False
        for request in sampled:
            _, known, output, _, blocks = request
            if output == 1:
                done, has_both = [*done, request], True
                continue
            self.computed += known
            self.num_joined += 1
            self.begin[(steps + 1 - known) % self.size] += 1
            member = steps + output - 1, self.num_joined, known - steps, request
            heappush(self.members, tuple.__new__(Member, member))
            if blocks is not None and blocks.shared > blocks.named:
                self._expect(blocks)
        span = timeline.launch(host, estimate.gpu_seconds[0])
        for request in started:
            record.started_at[request.number] = span.start
        phase = record.prefilling if numbers[2] > numbers[0] else record.decoding
        phase.note(numbers, estimate, [span.seconds], [self.cache.num_held])
        flying = span.end, host.process, tokens, sampled, done, has_both
        before, self.flying = self.flying, tuple.__new__(StepInFlight, flying)
        if before is not None:
            self._end(before, timeline.take_in(before.end, before.process))

    def _look_ahead(self, count: int, arrival: float | None) -> RepeatedStep | None:
        """Time a step of decoding alone, repeated until the batch changes; None if it was launched once."""
        timeline, before, now, steps = self.timeline, self.flying, self.steps, 1
        self.cache.num_held += self.begin[(now + 1) % self.size]
        if self.cache.num_held > self.num_blocks or count > self.budget:
            raise NotPlain
        is_next = before is not None and before.last and (self.waiting or self.clients.sends_at_once)
        if before is not None and not (timeline.slept or self.late or before.has_both or is_next):
            steps = worth_timing(self.members[0].last_step - now, arrival, timeline.clock, self.step_seconds)
        numbers, held = (count, len(self.waiting), count, self.computed, count), self.cache.num_held
        estimate = self.timer.decode(count, self.computed, self.contexts, steps)
        if before is None or len(estimate.gpu_seconds) == 1:
            self._launch(count, numbers, estimate, [], [])
            return None
        repeated = timeline.repeat(estimate.host, estimate.gpu_seconds, before.process)
        if before.first or before.last:
            self._answer(before, repeated[2][0])
        tokens = before.num_tokens, before.num_tokens - len(before.first)
        return tuple.__new__(RepeatedStep, (numbers, estimate, repeated, held, tokens))

    def _repeat(self, ahead: RepeatedStep) -> None:
        """Launch the same step again and again, until a request comes."""
        numbers, estimate, (seconds, ends, clocks), held, before = ahead
        timeline, record, begin, count = self.timeline, self.record, self.begin, numbers[0]
        arrival = self.clients.next_arrival
        if arrival is not None and arrival <= clocks[-1]:
            steps = 1 + bisect_left(clocks, arrival)
            seconds, clocks = seconds[:steps], clocks[:steps]
        steps, first = len(seconds), (self.steps + 2) % self.size
        needed = begin[first : first + steps - 1]
        if len(needed) < steps - 1:
            needed = (needed + begin * (1 + steps // self.size))[: steps - 1]
        all_held = [*accumulate(needed, initial=self.cache.num_held)]
        self.cache.num_held, all_held[0] = all_held[-1], held
        if self.cache.num_held > self.num_blocks:
            raise NotPlain
        record.decoding.note(numbers, estimate, seconds, all_held)
        record.ends.fromlist(clocks)
        record.stretches += (1, *before, steps - 1, count, count)
        self.step_seconds, timeline.clock, timeline.gpu_free = seconds[-1], clocks[-1], ends[steps - 1]
        last = self._advance(steps, count)
        self.flying = tuple.__new__(StepInFlight, (ends[steps - 1], estimate.host.process, count, [], last, False))

    def _advance(self, steps: int, count: int) -> list[PlainRequest]:
        """Count steps of the decode batch; returns those with their last token in the last one."""
        self.steps = now = self.steps + steps
        self.computed += steps * count
        members, leaving = self.members, self.late
        ending: list[PlainRequest] = []
        if leaving or members[0].last_step <= now:
            self.late = []
            while members and members[0].last_step <= now:
                member = heappop(members)
                ending.append(member.request)
                (self.late if member.request.is_open else leaving).append(member)
            for member in leaving:
                self.computed -= member.offset + now
                self.begin[(1 - member.offset) % self.size] -= 1
        return ending

    def _end(self, step: StepInFlight, time: float) -> None:
        record, tokens = self.record, step.num_tokens
        record.ends.append(time)
        record.stretches += (1, tokens, tokens - len(step.first))
        if step.first or step.last:
            self._answer(step, time)

    def _answer(self, step: StepInFlight, time: float) -> None:
        """Clients get their first or last tokens, and blocks of the latter are free."""
        record, size = self.record, self.size
        time += record.token_path_seconds + record.token_turn_seconds * step.num_tokens
        for request in step.first:
            record.first_token[request.number] = time
        for index, known, output, is_open, blocks in step.last:
            length = -(-(known + output - 1 + is_open) // size)
            if blocks is None:
                self.cache.num_held -= length
            else:
                blocks.length = length
                self._settle(self.cache.num_held)
                self.cache.name(blocks, known + output - 1)
                self.cache.free(blocks)
                self.settled = self.cache.num_held
                for edge, _, _ in blocks.path if self.expected else ():
                    if self.expected.get(edge) is blocks:
                        del self.expected[edge]
            self.num_running -= 1
            record.last_token[index] = time
            record.num_output[index] = output
            self.clients.answer(time, index)
