"""The engine that the real one is held against: every sequence by itself, every block by itself, every step
by itself. It is slow, and short enough to be read and believed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from runpy import run_path
from typing import Any

from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.step import StepShape
from infercast.serve.timeline import NOTHING_NEW, StagedTimeline, StepNoise, Timeline
from infercast.serve.workload.clients import Clients, Source
from infercast.serve.workload.request import Request, Workload

ReferenceCache: Any = run_path(str(Path(__file__).with_name("reference_cache.py")))["ReferenceCache"]


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine."""

    index: int
    request: Request
    holding: Any
    num_tokens: int
    """The prompt and every token sampled so far, or being sampled in a step under way, that will be computed on."""
    num_computed: int = 0
    num_promised: int = 0
    """Tokens that finished steps and steps under way produce."""
    num_produced: int = 0
    """Tokens that finished steps have produced."""
    num_cached: int = 0
    num_preemptions: int = 0
    last_token: float = math.nan
    num_most: int = 0
    """Tokens of the answer at which the engine knows that it ends."""
    num_under_way: int = 0
    not_before: int = 0

    @property
    def num_output(self) -> int:
        return self.request.num_output


@dataclass(slots=True)
class Plan:
    """What one step computes."""

    sequences: list[Sequence] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    wasted: list[Sequence] = field(default_factory=list)
    """Of those sampled: they have all their tokens, which the engine did not know."""
    num_preempted: int = 0

    @property
    def shape(self) -> StepShape:
        return StepShape(self.new_tokens, self.computed, len(self.sampled))


class Scheduler:
    """Decides what each step computes. Sequences are served in order of arrival; the last one gives way first."""

    def __init__(self, limits: FcfsPolicy, cache: Any, steps_under_way: int = 2, longest: int = 1 << 60) -> None:
        self.limits = limits
        self._longest = longest
        self.cache = cache
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.num_preemptions = 0
        self._block_size = cache.shape.block_size
        self._is_windowed = any(cache.shape.windows)
        self._step = 0
        self._most_under_way = limits.max_num_batched_tokens * (steps_under_way if limits.frees_on_completion else 1)
        # One step under way never sees the difference, two only in windows.
        self.frees_on_completion = limits.frees_on_completion and steps_under_way > (1 if self._is_windowed else 2)
        self._deep = steps_under_way > 2
        self._under_way: deque[Plan] = deque()

    def add(self, index: int, request: Request) -> None:
        """Queue a request."""
        holding = self.cache.new_holding(index, request)
        most = min(request.most_output, max(self._longest - request.num_input, request.num_output))
        self.waiting.append(Sequence(index, request, holding, num_tokens=request.num_input, num_most=most))

    def schedule(self) -> Plan | None:
        """Plan the next step, assuming that the steps under way end as planned; None if nothing can be computed."""
        plan = Plan()
        self._step += 1
        self.cache.new_step()
        if self.limits.prompts_first:
            self.schedule_waiting(plan, self.limits.max_num_batched_tokens)
        if not plan.sequences:
            budget = self._schedule_running(plan)
            if not plan.num_preempted:
                self.schedule_waiting(plan, budget)
        if not plan.sequences:
            return None
        if self.frees_on_completion:
            self._under_way.append(plan)
        return plan

    def complete(self, sampled: SequenceOf[Sequence]) -> list[Sequence]:
        """Take in the tokens that a finished step produced; returns the sequences that are done."""
        if self.frees_on_completion:
            plan = self._under_way.popleft()
            for sequence, new_tokens in zip(plan.sequences, plan.new_tokens, strict=True):
                sequence.num_under_way -= new_tokens
        done = []
        for sequence in sampled:
            num_output = sequence.request.num_output
            if sequence.num_produced == num_output:  # a step too many, planned before the last token was known
                continue
            sequence.num_produced += 1
            if self.limits.waits_for_tokens:
                sequence.num_tokens += 1
            if sequence.holding.capacity:
                known = sequence.num_computed - (sequence.num_promised - sequence.num_produced)
                if known // self._block_size > sequence.holding.num_named:
                    self.cache.name_full_blocks(sequence.holding, known)
            if sequence.num_produced == num_output:
                done.append(sequence)
        self._release(done)
        return done

    def _release(self, done: SequenceOf[Sequence]) -> None:
        """Let go of sequences that have all their tokens."""
        gone = {*done}
        self.running = [sequence for sequence in self.running if sequence not in gone]
        for sequence in done:
            if sequence.num_preemptions and sequence in self.waiting:  # it gave way in its last step
                self.waiting.remove(sequence)
            self.cache.free(sequence.holding)

    def _schedule_running(self, plan: Plan) -> int:
        """First the running sequences, in order; returns what is left of the token budget."""
        budget = self.limits.max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            position += 1
            missing = sequence.num_tokens - sequence.num_computed
            if missing == 0 or self._step < sequence.not_before:  # its last token is being sampled right now
                continue
            if self._deep and self._is_last_under_way(sequence):
                continue
            new_tokens = missing if missing == 1 else self.chunk(missing, budget)
            new_tokens = self.aligned(sequence, sequence.num_computed, new_tokens)
            if not new_tokens:
                continue
            if not self._make_room(sequence, new_tokens, plan):
                break
            self.put(plan, sequence, new_tokens)
            budget -= new_tokens
        return budget

    def _is_last_under_way(self, sequence: Sequence) -> bool:
        """Whether all its tokens but one are known, and that one is being sampled.

        With more than one of them under way an engine cannot tell, and plans a token too many.
        """
        under_way = sequence.num_promised - sequence.num_produced
        last = sequence.request.num_input + sequence.num_most
        return under_way > 0 and sequence.num_computed + 2 - under_way >= last

    def _make_room(self, sequence: Sequence, new_tokens: int, plan: Plan) -> bool:
        """Blocks for the new tokens, preempting from the back of the line until there are enough."""
        if self._is_windowed:
            self.cache.slide(sequence.holding, sequence.num_computed - sequence.num_under_way)
        if sequence.num_computed + new_tokens <= sequence.holding.capacity:
            return True
        while not self.cache.grow(sequence.holding, sequence.num_computed, new_tokens):
            victim = self.running.pop()
            self._preempt(victim)
            plan.num_preempted += 1
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; it will compute its tokens again, before anyone else who waits."""
        self.cache.free(sequence.holding, done=False)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def schedule_waiting(self, plan: Plan, budget: int) -> None:
        """Then those who wait, in order, until one does not fit."""
        position = 0
        while position < len(self.waiting) and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[position]
            if (
                self.frees_on_completion and sequence.num_under_way
            ):  # it gave way and is still in a step; others may pass it
                position += 1
                continue
            new_tokens = self._start(sequence, budget)
            if not new_tokens:
                return
            del self.waiting[position]
            self.running.append(sequence)
            plan.started.append(sequence)
            self.put(plan, sequence, new_tokens)
            budget -= new_tokens

    def _start(self, sequence: Sequence, budget: int) -> int:
        """Give a sequence its first blocks; returns the tokens it computes, 0 if it has to wait."""
        num_tokens = sequence.request.num_input + sequence.num_produced
        num_cached = self.cache.longest_prefix(sequence.holding, num_tokens)
        missing = num_tokens - num_cached
        # The threshold comes first: a prompt that it cuts small enough may start even without chunked prefill.
        if self.chunk(missing, missing) > budget and not self.limits.chunked_prefill:
            return 0
        new_tokens = self.aligned(sequence, num_cached, self.chunk(missing, budget), starts=True)
        if not new_tokens:
            return 0
        if not self.cache.admit(sequence.holding, num_cached, new_tokens, num_tokens, self._most_under_way):
            return 0
        sequence.num_computed = sequence.num_cached = num_cached
        return new_tokens

    def chunk(self, missing: int, budget: int) -> int:
        """How much of a prompt this step computes."""
        threshold = self.limits.long_prefill_token_threshold
        if threshold and not (
            self.limits.threshold_exempts_single_request and len(self.running) + len(self.waiting) == 1
        ):
            return min(missing, budget, threshold)
        return min(missing, budget)

    def aligned(self, sequence: Sequence, computed: int, new_tokens: int, starts: bool = False) -> int:
        """As many tokens of a prompt as end with a block, where states are kept of such steps alone."""
        num_input, size = sequence.request.num_input, self._block_size
        known = num_input + sequence.num_produced
        if not self.cache.shape.aligned or computed >= max(num_input, known - 1):
            return new_tokens
        end, parts_at = computed + new_tokens, sequence.holding.junction * size
        if self.limits.allow_partial_block:
            return self.opened(computed, end, max(num_input, known - 1), known, parts_at)
        last = known - known % size
        if end < last:
            new_tokens -= new_tokens % size
        elif computed < last:
            new_tokens = min(new_tokens, last - computed)
        common = parts_at - computed if starts else 0
        return common - common % size if size <= common < new_tokens else new_tokens

    def opened(self, start: int, end: int, prompt_end: int, known: int, parts_at: int) -> int:
        """The same where a step may end inside a block that is too large for it."""
        size, limits = self._block_size, self.limits
        most = min(limits.max_num_batched_tokens, limits.long_prefill_token_threshold or limits.max_num_batched_tokens)
        if end < prompt_end and (end - end % size > start or size <= most):
            end -= end % size
        next_block = start - start % size + size if start % size else 0
        stops = [known - 1 - (known - 1) % size, next_block, parts_at]
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    def put(self, plan: Plan, sequence: Sequence, new_tokens: int) -> None:
        """Enter a sequence into the plan and count its tokens as computed; if it caught up, it samples a token."""
        computed = sequence.num_computed
        reached = sequence.num_computed = computed + new_tokens
        plan.sequences.append(sequence)
        plan.new_tokens.append(new_tokens)
        plan.computed.append(computed)
        num_input, num_output = sequence.request.num_input, sequence.request.num_output
        # Others may find a full block already while it is computed, but not before its last token is known.
        known = num_input + sequence.num_produced
        known = reached if reached < known else known
        if known // self._block_size > sequence.holding.num_named:
            self.cache.name_full_blocks(sequence.holding, known)
        self.cache.renew(sequence.holding, known)
        if self.frees_on_completion:
            sequence.num_under_way += new_tokens
        if reached == sequence.num_tokens:
            plan.sampled.append(sequence)
            if sequence.num_promised >= num_output:
                plan.wasted.append(sequence)
            sequence.num_promised += 1
            sequence.not_before = self._step + self.limits.decode_stride
            if not self.limits.waits_for_tokens and (sequence.num_promised < sequence.num_most or self._deep):
                sequence.num_tokens += 1


class Engine:
    """The loop, one step at a time."""

    """As a fleet asks it; it never is."""

    def __init__(self, replica: Replica, clients: Source, record: Record) -> None:
        self.replica, self.clients, self.record = replica, clients, record
        cache = ReferenceCache(
            replica.num_blocks, replica.kv_shape, caching=replica.prefix_caching, sparse_windows=replica.sparse_windows
        )
        self.scheduler = Scheduler(replica.policy, cache, replica.steps_under_way, replica.max_model_len or 1 << 60)
        self.timeline = Timeline()
        if replica.stages is not None:
            self.timeline = StagedTimeline(replica.stages, in_turn=replica.stages_in_turn)
        self.conditions = StepNoise(replica.settle_seconds, replica.launch_spread)
        self.under_way: deque[tuple[float, float, Plan] | None] = deque()

    def events(self) -> Iterator[float]:
        """Turn by turn until no client will send again: the clock before each."""
        scheduler, clients, timeline = self.scheduler, self.clients, self.timeline
        while True:
            yield timeline.clock
            while (arrival := clients.next_arrival) is not None and arrival <= timeline.clock:
                index, request, sent = clients.pop()
                scheduler.add(index, request)
                self.record.sent_at[index] = sent
            plan = scheduler.schedule()
            started = plan is not None
            if plan is not None:
                self.start(plan)
            elif self.replica.stages is not None and (scheduler.running or scheduler.waiting):
                self.under_way.append(None)
                started = True
            if started and len(self.under_way) < self.replica.steps_under_way:
                continue
            if self.under_way:
                self.finish()
            elif arrival is not None:
                timeline.sleep_until(arrival + self.replica.wake_up_seconds)
            else:
                self.record.close(scheduler.num_preemptions)
                return

    def start(self, plan: Plan) -> None:
        """Hand a planned step to the GPU."""
        shape, timeline, scheduler = plan.shape, self.timeline, self.scheduler
        estimate = self.replica.timer(shape)
        if not shape.is_decode:
            estimate = self.conditions.meet(estimate, timeline.clock, timeline.gpu_free)
        news = NOTHING_NEW if self.replica.first_uses is None else self.replica.first_uses.meet(shape)
        span = timeline.launch(estimate.host, estimate.gpu_seconds[0], news, plan)
        self.under_way.append((span.end, estimate.host.process, plan))
        for sequence in plan.started:
            if not sequence.num_preemptions:
                self.record.started_at[sequence.index] = span.start
                self.record.num_cached[sequence.index] = sequence.num_cached
        phase = self.record.decoding if shape.is_decode else self.record.prefilling
        first = (shape.num_sequences, len(scheduler.waiting), shape.num_tokens, shape.total_computed, shape.num_sampled)
        phase.note(first, estimate, [span.seconds], [scheduler.cache.num_held])

    def finish(self) -> None:
        """Wait for the oldest step under way and take its result in."""
        step = self.under_way.popleft()
        if step is None:
            return
        end, process, plan = step
        time = self.timeline.take_in(end, process)
        done = self.scheduler.complete(plan.sampled)
        received = [sequence for sequence in plan.sampled if sequence not in plan.wasted]
        self.record.tokens(time, len(received), received, done)
        for sequence in done:
            self.clients.answer(self.record.last_end, sequence.index)


def simulate(replica: Replica, workload: Workload) -> Record:
    """Serve a workload, the reference's way."""
    clients = Clients(workload, replica.request_path_seconds, replica.request_token_seconds)
    record = Record(len(workload.requests), replica.num_blocks, replica.token_path_seconds, replica.token_turn_seconds)
    for _ in Engine(replica, clients, record).events():
        pass
    return record
