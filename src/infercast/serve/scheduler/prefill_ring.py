"""Prompts first on a pipeline: as many batches as stages, which take their turns in a fixed order.

Each batch has its own sequences, which stay in it, and its own memory of being full. The queue, the cache, the share of
answers that is promised and the prompt that is cut are common to all, so the parts of one prompt go through batches
that follow each other. When a batch is planned again, its last result has come.
"""

from __future__ import annotations

from collections import deque

from infercast.serve.cache.radix_cache import RadixCache
from infercast.serve.scheduler.decode_batch import DeclaredSequence, DecodeBatch
from infercast.serve.scheduler.prefill_first import PrefillFirst
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.scheduler.sequence import Plan


class _Batch:
    """What one of the batches has for itself."""

    def __init__(self, cache: RadixCache, policy: PrefillFirst) -> None:
        self.cohort = DecodeBatch(cache, policy.longest_promise)
        self.ended: list[DeclaredSequence] = []
        self.fresh: list[DeclaredSequence] = []
        self.joining: Plan | None = None
        self.is_full = False
        self.places = (0, 0)
        """The first and the last that anybody in it has had."""

    def num_held(self) -> int:
        """Sequences that hold a place of the engine."""
        joining = [] if self.joining is None else self.joining.sampled
        return len(self.cohort.members) + sum(each.num_produced < each.num_output for each in joining)


class PrefillRing(PrefillScheduler):
    """The same scheduler, with one of several batches at a time."""

    def __init__(
        self, policy: PrefillFirst, cache: RadixCache, num_batches: int, max_model_len: int | None = None
    ) -> None:
        super().__init__(policy, cache, 1, max_model_len)
        self._batches = [_Batch(cache, policy) for _ in range(num_batches)]
        self._turn = -1
        self._turns: deque[int] = deque()
        """Whose steps are under way."""

    @property
    def running(self) -> list[DeclaredSequence]:
        """Everybody who has left the queue and is not known to be done."""
        self._save()
        found: list[DeclaredSequence] = [] if self.cut is None else [self.cut]
        for batch in self._batches:
            found += batch.cohort.members
            joining = [] if batch.joining is None else batch.joining.sampled
            found += [each for each in joining if isinstance(each, DeclaredSequence)]
        return found

    def plan(self) -> Plan | None:
        """Plan the next step of the batch whose turn it is."""
        self._load((self._turn + 1) % len(self._batches))
        plan = super().plan()
        if plan is not None and plan.decodes:
            # Others had their tokens in the step before, so everybody's last one counts.
            plan.fresh = [each for each in self.cohort.members if each.last_step > self.cohort.steps]
        return plan

    def most_steps(self, plan: Plan) -> int:
        """Batches take turns."""
        return 1

    def start(self, plan: Plan, steps: int = 1) -> list[int]:
        """The step just planned is handed to the GPUs."""
        self._turns.append(self._turn)
        return super().start(plan, steps)

    def complete(self, plan: Plan) -> list[DeclaredSequence]:
        """Take in the result of whoever was first."""
        turn = self._turn
        self._load(self._turns.popleft())
        done = super().complete(plan)
        self._load(turn)
        return done

    def _places(self, num_running: int) -> int:
        """Each batch has its share of the sequences that may run."""
        self._save()
        most = self.policy.max_running_requests
        held = sum(batch.num_held() for batch in self._batches) + (self.cut is not None)
        return min(max(1, most // len(self._batches)) - num_running, most - held)

    def _give_way(self, victim: DeclaredSequence) -> None:
        """One loses its pages; when it had its last token is known."""
        super()._give_way(victim)
        self.just_left.clear()

    def _last_under_way(self) -> Plan | None:
        """Nothing of the batch that is planned is."""
        return None

    def _load(self, turn: int) -> None:
        """Another batch is the one that is looked at."""
        self._save()
        batch = self._batches[turn]
        self._turn = turn
        self.cohort, self.ended, self._fresh = batch.cohort, batch.ended, batch.fresh
        self._joining, self.is_full = batch.joining, batch.is_full
        self._first_place, self._last_place = batch.places
        if not (self.cohort.members or self.ended or self._joining):
            self.is_full = False  # nobody can leave who would free it

    def _save(self) -> None:
        if self._turn >= 0:
            batch = self._batches[self._turn]
            batch.joining, batch.is_full = self._joining, self.is_full
            batch.places = (self._first_place, self._last_place)
