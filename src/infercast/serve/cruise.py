"""The fast loop: an engine whose requests share nothing, as whole numbers instead of objects.

Nearly all turns of a long run are one of two: a stretch of decoding up to the next event, or one step in which a prompt
is computed beside the sequences that decode. Here a sequence is its index, what members have in common is kept once,
and both turns are written out, with the same additions in the same order as `infercast.serve.coast` and the scheduler
make them. Whatever is not plain (a cache that runs full, an engine without work) is left to these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate

from infercast.serve.coast import MOST_STEPS
from infercast.serve.indexed import IndexedConvoy
from infercast.serve.state import TELL_EVERY, Progress, State
from infercast.serve.step import StepEstimate, groups_of
from infercast.serve.timeline import MARGIN
from infercast.serve.workload.clients import Clients


class Step:
    """A step under way: as `infercast.serve.state.Flight`, with indices of requests."""

    __slots__ = ("done", "end", "first", "num_sampled", "process")

    def __init__(self, end: float, process: float, num_sampled: int, first: list[int], done: list[int]) -> None:
        self.end, self.process, self.num_sampled, self.first, self.done = end, process, num_sampled, first, done


class Cruise(IndexedConvoy):
    """An engine with one step under way when it plans the next; see `infercast.serve.boarding` for how it gets here."""

    def __init__(self, state: State, clients: Clients, step: Step, progress: Progress | None) -> None:
        super().__init__(state.scheduler.cache.shape, clients.num_outputs)
        self.state, self.clients, self.step, self.progress = state, clients, step, progress
        self.timer = groups_of(state.timer)
        self.inputs = clients.num_inputs
        self.waiting: deque[int] = deque()
        self.prompt: tuple[int, int] | None = None
        """A prompt that is partly computed, and how much of it."""
        limits = state.scheduler.limits
        self.most_tokens, self.most_sequences = limits.max_num_batched_tokens, limits.max_num_seqs
        self.clock, self.gpu_free = state.timeline.clock, state.timeline.gpu_free

    def run(self) -> None:
        """Take turns as long as they are plain."""
        state, clients, waiting = self.state, self.clients, self.waiting
        while self.members or waiting or self.prompt:
            while (arrival := clients.next_arrival) is not None and arrival <= self.clock:
                index, _, sent = clients.pop()
                waiting.append(index)
                state.record.sent(index, sent)
                if self.progress is not None and index % TELL_EVERY == 0:
                    self.progress(index, self.clock)
            if not self.members or not self._is_alone():
                if not self._compute_prompts():
                    return
            elif not self._decode(arrival):
                return

    def _is_alone(self) -> bool:
        """Whether no prompt can be computed beside the members."""
        running = len(self.members) + len(self.step.done)
        if self.prompt or running > self.most_tokens:
            return False
        return not self.waiting or self.state.is_blocked or running >= self.most_sequences

    def _decode(self, arrival: float | None) -> bool:
        """Jump over steps of nothing but decoding; False, and nothing done, if blocks would run out."""
        state, step, count = self.state, self.step, len(self.members)
        record, cache, done = state.record, state.scheduler.cache, self.step.done
        first = (count, len(self.waiting), count, self.computed, count)
        estimate = self.timer.decode(count, self.computed, self.contexts, self._most_steps(arrival))
        seconds, ends, clocks = self._run_ahead(estimate, arrival)
        # Who ends with the step under way gives blocks back when the first of the steps ahead has taken its own.
        start, before, steps = (self.steps + 1) % self.block_size, cache.num_held, len(seconds)
        needed = self.blocks[start : start + steps]
        if len(needed) < steps:
            needed = (needed + self.blocks * (1 + steps // self.block_size))[:steps]
        held = [*accumulate(needed, initial=before)]
        if held[1 if done else -1] > cache.num_blocks:
            return False
        del held[0]
        if not done:
            cache.take(held[-1] - before)
            self._take_in(step, clocks[0])
        else:
            cache.take(needed[0])
            self._take_in(step, clocks[0])
            freed = held[0] - cache.num_held
            held[1:] = [blocks - freed for blocks in held[1:] if blocks - freed <= cache.num_blocks]
            if len(held) < steps:
                steps = len(held)
                seconds, ends, clocks = seconds[:steps], ends[:steps], clocks[:steps]
            if steps > 1:
                cache.take(held[-1] - cache.num_held)
        record.decoding.note(first, estimate, seconds, held)
        record.steady_tokens(count, clocks[1:])
        self.clock, self.gpu_free, state.step_seconds = clocks[-1], ends[-1], seconds[-1]
        self.step = Step(ends[-1], estimate.host.process, count, [], self.advance(steps))
        if self.step.done:
            state.is_blocked = False
        return True

    def _most_steps(self, arrival: float | None) -> int:
        """Steps until somebody has all tokens, or so; until the next request comes, by the length of the last step."""
        if self.step.done and (self.waiting or self.clients.wait_for_answers):
            return 1  # somebody may have waited for that end; otherwise it changes nothing that is planned
        steps = self.last_steps[0][0] - self.steps
        if arrival is not None:
            coming = 2 + int(1.1 * (arrival - self.clock) / (self.state.step_seconds or 1e-6))
            steps = coming if coming < steps else steps
        return steps if steps < MOST_STEPS else MOST_STEPS

    def _run_ahead(self, estimate: StepEstimate, arrival: float | None) -> tuple[list[float], list[float], list[float]]:
        """`Timeline.run_ahead`, with the most frequent case written out: the GPU never waits for its host."""
        seconds, step, (plan, prepare, launch, process, _) = estimate.gpu_seconds, self.step, estimate.host
        launched, longer = plan + prepare + launch + MARGIN, process if process > step.process else step.process
        if self.clock + launched >= self.gpu_free or min(seconds) <= launched + longer:
            timeline = self.state.timeline
            timeline.jump(self.clock, self.gpu_free)
            return timeline.run_ahead(estimate.host, seconds, (step,), 2, arrival)[:3]
        ends = [*accumulate(seconds, initial=self.gpu_free)]
        clocks = [end + process for end in ends]
        clocks[0] = self.gpu_free + step.process
        del ends[0], clocks[-1]
        # The first step is planned now, the others when the host is free after the one before.
        if arrival is not None and arrival <= clocks[-1]:
            steps = 1 + bisect_left(clocks, arrival)
            return seconds[:steps], ends[:steps], clocks[:steps]
        return seconds, ends, clocks

    def _compute_prompts(self) -> bool:
        """Plan one step with prompts in it and take in the one before; False, and nothing done, if there is no room."""
        state, cache, count = self.state, self.state.scheduler.cache, len(self.members)
        budget = self.most_tokens - count
        if budget < 0 or cache.num_held + self._blocks_beside(budget) > cache.num_blocks:
            return False
        cache.take(self.blocks[(self.steps + 1) % self.block_size])
        beside, started, caught_up = self._fill(budget)
        if not count and not beside:
            return False
        estimate = self.timer.compute(beside, len(caught_up), count, self.computed, self.contexts)
        tokens, context, sampled = count, self.computed, count + len(caught_up)
        for new_tokens, computed in beside:
            tokens, context = tokens + new_tokens, context + computed
        sequences = count + len(beside)
        if tokens > sequences:
            estimate = state.conditions.meet(estimate, self.clock, self.gpu_free)
        start, seconds = self._launch(estimate)
        for index in started:
            state.record.started_at[index] = start
        phase = state.record.prefilling if tokens > sequences else state.record.decoding
        phase.note((sequences, len(self.waiting), tokens, context, sampled), estimate, (seconds,), (cache.num_held,))
        leaving = self.advance(1)
        state.is_blocked = bool(self.waiting) and not beside and not leaving
        for index in caught_up:
            if self.outputs[index] > 1:
                self.join(index, self.inputs[index], 1)
            else:
                leaving.append(index)
        step, self.step = self.step, Step(self.gpu_free, estimate.host.process, sampled, caught_up, leaving)
        self.clock = (self.clock if self.clock > step.end else step.end) + step.process
        self._take_in(step, self.clock)
        return True

    def _blocks_beside(self, budget: int) -> int:
        """Blocks that the members and the prompt that is partly computed ask for in the next step."""
        needed = self.blocks[(self.steps + 1) % self.block_size]
        if self.prompt:
            index, computed = self.prompt
            reached = min(self.inputs[index], computed + budget)
            needed += self.num_groups * (self._blocks_of(reached) - self._blocks_of(computed))
        return needed

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _fill(self, budget: int) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """Prompts for the next step: (new, computed) tokens of each, who of them starts, and who catches up."""
        cache, waiting = self.state.scheduler.cache, self.waiting
        beside: list[tuple[int, int]] = []
        started: list[int] = []
        caught_up: list[int] = []
        running = len(self.members) + len(self.step.done) + (self.prompt is not None)
        if self.prompt and budget:
            index, computed = self.prompt
            reached = min(self.inputs[index], computed + budget)
            cache.take(self.num_groups * (self._blocks_of(reached) - self._blocks_of(computed)))
            beside.append((reached - computed, computed))
            budget -= reached - computed
            self.prompt = (index, reached)
            if reached == self.inputs[index]:
                caught_up.append(index)
                self.prompt = None
        while waiting and budget > 0 and running < self.most_sequences:
            index = waiting[0]
            tokens = self.inputs[index]
            # A prompt starts only if there is room for all of it.
            if cache.num_held + self.num_groups * self._blocks_of(tokens) > cache.num_blocks:
                break
            waiting.popleft()
            started.append(index)
            running += 1
            new_tokens = tokens if tokens < budget else budget
            cache.take(self.num_groups * self._blocks_of(new_tokens))
            beside.append((new_tokens, 0))
            budget -= new_tokens
            if new_tokens == tokens:
                caught_up.append(index)
            else:
                self.prompt = (index, new_tokens)
        return beside, started, caught_up

    def _launch(self, estimate: StepEstimate) -> tuple[float, float]:
        """`Timeline.launch` of a host that has not slept: when the step begins, and what it adds to the run."""
        host, gpu_seconds, gpu_free = estimate.host, estimate.gpu_seconds[0], self.gpu_free
        idle_from = self.clock if self.clock > gpu_free else gpu_free
        ready = self.clock + host.plan + host.prepare
        start = ready if ready > gpu_free else gpu_free
        self.clock = ready + host.launch
        late = max(0.0, self.clock - (start + gpu_seconds))
        self.gpu_free = start + gpu_seconds + late
        return start, (start - idle_from) + gpu_seconds + late

    def _take_in(self, step: Step, time: float) -> None:
        """The result of a step is there: tokens leave, and sequences that have all of theirs end."""
        state, done = self.state, step.done
        record = state.record
        left = record.indexed_tokens(time, step.num_sampled, step.first, done)
        if done:
            state.is_blocked = False
            for index in done:
                record.num_output[index] = self.outputs[index]
                # Nothing is computed on the last token.
                state.scheduler.cache.retire(self.inputs[index] + self.outputs[index] - 1)
                if self.clients.wait_for_answers:
                    self.clients.answer(left)
