"""infercast's prefill-first scheduler behind the same few calls as SGLang's."""

from collections import deque
from typing import Any, cast

from sglang_cases import Case, reserve

from infercast.engines.sglang.settings import rules_of
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.radix_cache import HostPages, RadixCache
from infercast.serve.scheduler.admission import DeclaredSequence, ReservingDecodeBatch
from infercast.serve.scheduler.base import OLDEST_RULES, Plan, PrefillFirstPolicy, PrefillRules, Priorities
from infercast.serve.scheduler.drafts import DraftBatch
from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
from infercast.serve.speculation import Draws, Speculation
from infercast.serve.workload.classes import asking_for
from infercast.serve.workload.request import Request, Segment

FIRST_RATIO, LEAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
"""SGLang's share of declared answers that is promised at first, what of it is the least, and the steps to there."""


class Drawn(Draws):
    """The drafts that a case says are accepted."""

    def __init__(self, case: Case) -> None:
        super().__init__(_speculation(case))
        self._case = case

    def accepted(self, index: int, count: int) -> bytes:
        """Of a request."""
        return bytes(self._case.requests[index]["accepted"])


def _speculation(case: Case) -> Speculation:
    assert case.drafts is not None
    return Speculation(
        case.drafts["steps"],
        (0.5,) * case.drafts["steps"],
        num_verified=case.drafts["tokens"],
        lookahead=reserve(case),
        drops_block=case.drafts["algorithm"] == "EAGLE",
    )


class Ours:
    """infercast's scheduler with the loop around it."""

    def __init__(self, case: Case, rules: PrefillRules = OLDEST_RULES) -> None:
        first = min(FIRST_RATIO * case.conservativeness, 1.0)
        policy = PrefillFirstPolicy(
            max_running_requests=case.max_running_requests,
            chunked_prefill_size=case.chunked_prefill_size,
            max_prefill_tokens=case.max_prefill_tokens,
            mixed_chunk=case.mixed and case.chunked_prefill_size is not None,
            order="longest_match" if case.longest_match else "arrival",
            first_ratio=first,
            least_ratio=first * LEAST_SHARE,
            ratio_decay=(first - first * LEAST_SHARE) / DECAY_STEPS,
            ignores_end=case.ignore_eos,
            rules=rules,
            priorities=None if case.priorities is None else Priorities(**case.priorities),
        )
        self.case, self.policy = case, policy
        host = HostPages(case.host_tokens // case.page_size, case.copied_at) if case.host_tokens else None
        pages, shape = case.num_tokens // case.page_size, KvShape(case.page_size)
        self.cache = RadixCache(pages, shape, caching=case.caching or host is not None, host=host)
        steps, batches = 2 if case.overlap else 1, max(1, case.pipeline)
        drafts = None if case.drafts is None else DraftBatch(self.cache, policy, _speculation(case), Drawn(case))
        self.scheduler = PrefillScheduler(
            policy,
            self.cache,
            steps,
            case.max_model_len,
            num_batches=batches,
            drafts=drafts,
            max_adapters=case.max_adapters,
        )
        self.under_way: deque[Plan] = deque()
        self.was_idle = True

    def add(self, index: int) -> None:
        """A client sends a request."""
        request = self.case.requests[index]
        prefix = tuple(Segment(content, count) for content, count in request["prefix"])
        lengths = (0.0, request["input"], request["output"])
        given = {"declared": request["declared"], "priority": request.get("priority", 0)}
        made = Request(*lengths, prefix, request["answer"], **given)
        self.scheduler.add(index, asking_for(made, request.get("adapter")))

    def turn(self) -> list[Any]:
        """One turn of the loop."""
        scheduler, page = self.scheduler, self.case.page_size
        before = {each: each.num_preemptions for each in [*scheduler.running, *scheduler.waiting]}
        joining = () if scheduler.batch.joining is None else scheduler.batch.joining.sampled
        before |= {cast("DeclaredSequence", each): each.num_preemptions for each in joining}
        plan = scheduler.plan()
        rows = [] if plan is None else self._rows(plan, scheduler.cohort)
        retracted = sorted(each.index for each, count in before.items() if each.num_preemptions > count)
        decision = [rows, retracted, self.cache.num_blank * page, self.cache.num_evictable * page]
        if plan is not None:
            scheduler.start(plan)
            self.under_way.append(plan)
        while len(self.under_way) > (plan is not None and self.case.overlap):
            scheduler.complete(self.under_way.popleft())
        self.was_idle = plan is None
        return decision

    def is_busy(self) -> bool:
        """Whether it has requests, or a step whose result it has not taken in."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.under_way or not self.was_idle)

    def _rows(self, plan: Plan, cohort: ReservingDecodeBatch) -> list[list[int]]:
        """Who computes how many tokens after how many, prompts first."""
        prefills = zip(plan.sequences, plan.new_tokens, plan.computed, strict=True)
        rows = [[each.index, new, computed] for each, new, computed in prefills]
        if plan.decodes:
            rows += [[each.index, 1, each.num_computed + cohort.steps - each.joined] for each in cohort.in_order()]
        return rows


class OursPipeline(Ours):
    """The same where micro-batches take turns."""

    def __init__(self, case: Case, rules: PrefillRules = OLDEST_RULES) -> None:
        super().__init__(case, rules)
        self.planned: list[Plan | None] = [None] * case.pipeline
        self.slot = 0

    def turn(self) -> list[Any]:
        """One micro-batch is planned, and the result of the next one is taken in."""
        scheduler, page, slot = self.scheduler, self.case.page_size, self.slot
        self.slot = following = (slot + 1) % self.case.pipeline
        before = {each: each.num_preemptions for each in scheduler.running}
        plan = scheduler.plan()
        rows = [] if plan is None else self._rows(plan, scheduler.cohort)
        retracted = sorted(each.index for each, count in before.items() if each.num_preemptions > count)
        decision = [rows, retracted, self.cache.num_blank * page, self.cache.num_evictable * page]
        if plan is not None:
            scheduler.start(plan)
        self.planned[slot] = plan
        if (result := self.planned[following]) is not None:
            scheduler.complete(result)
        return decision

    def is_busy(self) -> bool:
        """Whether it has requests, or a step whose result it has not taken in."""
        return bool(self.scheduler.running or self.scheduler.waiting or any(self.planned))


def ours(case: Case, version: str = "0.5.16") -> Ours:
    """The engine of a case in a release."""
    rules = rules_of(f"sglang@{version}")
    return OursPipeline(case, rules) if case.pipeline > 1 else Ours(case, rules)
