"""infercast's scheduler behind the same few calls as vLLM's, and both driven side by side."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from drafting_cases import drafts_of
from scheduling_cases import Case

from infercast.engines.vllm.versions import Rule, engine_version
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.scheduler.drafts import Drafts
from infercast.serve.scheduler.encoder import EncoderCache
from infercast.serve.scheduler.offloading import HostOffload
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.classes import asking_for
from infercast.serve.workload.request import Image, Request, Segment

MOST_TURNS = 20_000


class EndlessError(RuntimeError):
    """Requests wait for each other for ever."""


class Engine(Protocol):
    """A scheduler that can be asked what it does next."""

    def add(self, index: int) -> None: ...

    def schedule(self) -> tuple[list[Any], Any]: ...

    def complete(self, handle: Any) -> None: ...

    def is_busy(self) -> bool: ...

    def abort(self, index: int) -> None: ...


class Ours:
    """infercast's scheduler, by the rules of the case's version."""

    def __init__(self, case: Case) -> None:
        version = engine_version(f"vllm@{case.version}")
        self.case = case
        speculation, draws = (None, None) if case.speculation is None else drafts_of(case)
        self.cache = KvCache(
            case.num_blocks - 1,
            case.shape,
            caching=case.caching,
            sparse_windows=version.has(Rule.SPARSE_WINDOWS) and case.retention is not None,
            retained_every=case.retention or 0,
            drops_last=speculation is not None and speculation.drops_block,
            ahead=0 if speculation is None else speculation.hash_ahead,
        )
        limits = FcfsPolicy(
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_num_seqs=case.max_num_seqs,
            long_prefill_token_threshold=case.threshold,
            chunked_prefill=case.chunked,
            max_num_scheduled_tokens=case.scheduled_tokens,
            adaptive_threshold=case.adaptive,
            prefill_interval=case.prefill_interval,
            waits_for_tokens=not case.is_async,
            decode_stride=case.pipeline if case.is_async and case.v2_runner else 1,
            threshold_exempts_single_request=version.has(Rule.THRESHOLD_EXEMPTS_SINGLE_REQUEST),
            frees_on_completion=version.has(Rule.FREES_ON_COMPLETION),
            allow_partial_block=not version.has(Rule.NEEDS_WHOLE_BLOCKS),
            last_token_own_step=version.has(Rule.PARTS_LAST),
            skipped_queue_separate=version.has(Rule.SKIPPED_QUEUE_SEPARATE),
            watermark=case.watermark,
            reserves_prompts=case.reserves_prompts,
            by_priority=case.by_priority,
            steps_over=version.has(Rule.STEPS_OVER),
            goes_on=version.has(Rule.GOES_ON),
            counts_running=version.has(Rule.COUNTS_RUNNING),
            skips_unreadable=version.has(Rule.SKIPS_UNREADABLE),
            own_interval=version.has(Rule.OWN_INTERVAL),
        )
        drafts = None
        self.num_planned = 0
        if speculation is not None:
            drafts = Drafts(speculation, limits, self.cache, case.max_model_len, draws)
        self.scheduler = Scheduler(
            limits,
            self.cache,
            case.steps_under_way,
            case.max_model_len,
            decode_together=case.pipeline == 1,
            max_adapters=case.max_adapters,
            drafts=drafts,
            offload=self.offload_of(case),
            encoder=EncoderCache(case.encoder) if case.encoder else None,
        )
        if self.scheduler.interval is not None and not case.is_lone:
            self.scheduler.interval.pass_number = lambda: self.num_planned

    def offload_of(self, case: Case) -> HostOffload | None:
        """The case's tier in the host's memory, if it has one."""
        return None

    def add(self, index: int) -> None:
        """A client sends a request."""
        request = self.case.requests[index]
        prefix = tuple(Segment(content, count) for content, count in request["prefix"])
        lengths = request["input"], request["output"]
        priority = request.get("priority", 0)
        images = tuple(
            Image(tokens, embeds, (1, 1, 1), 0, start, content)
            for start, tokens, embeds, content in request.get("images", ())
        )
        sent = Request(0.0, *lengths, prefix, request["answer"], request.get("most"), priority=priority, images=images)
        self.scheduler.add(request.get("again", index), asking_for(sent, request.get("adapter")))

    def schedule(self) -> tuple[list[Any], Any]:
        """What the next step does, and what `complete` needs to end it."""
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        before = {sequence.index: sequence.num_preemptions for sequence in sequences}
        self.num_planned += 1
        plan = self.scheduler.plan()
        preempted = sorted(each.index for each in sequences if each.num_preemptions > before[each.index])
        steps = []
        if plan is not None:
            together = zip(self.scheduler.cohort.members, plan.contexts(), strict=True) if plan.decodes else ()
            steps = [[sequence.index, 1, computed] for sequence, computed in together]
            rows = zip(plan.sequences, plan.new_tokens, plan.computed, strict=True)
            steps += [[sequence.index, new, computed] for sequence, new, computed in rows]
            self.scheduler.start(plan)
        encoder = self.scheduler.encoder
        encoded = [] if encoder is None else [[image.content for image in encoder.planned]]
        return [steps, preempted, self.cache.num_free, *encoded], plan

    def complete(self, handle: Any) -> None:
        """The step's results arrive."""
        if handle is not None:
            self.scheduler.complete(handle)

    def is_busy(self) -> bool:
        """Whether it has requests."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def abort(self, index: int) -> None:
        """A client leaves."""
        self.scheduler.abort(self.case.requests[index].get("again", index))


def turns(case: Case, *engines: Engine) -> Iterator[list[Any]]:
    """What each of the engines plans in every step, all driven by the same events as vLLM's engine core has them."""
    queues: list[deque[Any]] = [deque() for _ in engines]
    events = []  # Those of a turn in this order: requests, clients that leave, and what happens to requests sent again
    for index, request in enumerate(case.requests):
        order = (2, index) if "again" in request else (0, 0)
        events.append((request["turn"], *order, False, index))
        events += [(request["abort"], *(order if order[0] else (1, 0)), True, index)] if "abort" in request else []
    events.sort()
    turn = done = 0
    while turn < MOST_TURNS:
        while done < len(events) and events[done][0] <= turn:
            *_, leaves, index = events[done]
            for engine in engines:
                engine.abort(index) if leaves else engine.add(index)
            done += 1
        turn += 1
        if any(engine.is_busy() for engine in engines):
            planned = [engine.schedule() for engine in engines]
            yield [decision for decision, _ in planned]
            for queue, (_, handle) in zip(queues, planned, strict=True):
                queue.append(handle)
            if len(queues[0]) < case.steps_under_way:
                continue
        elif not queues[0]:
            if done == len(events):
                return
            turn = max(turn, events[done][0])
            continue
        for engine, queue in zip(engines, queues, strict=True):
            engine.complete(queue.popleft())
    raise EndlessError(f"no end after {turn} turns")


class Script:
    """Decisions as lines of text: who computes (new:computed tokens, where it does not just go on), who gave way, and
    the blocks that are free.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._reached: dict[int, int] = {}

    def add(self, decision: list[Any]) -> None:
        """One more step."""
        steps, preempted, free, *copies = decision
        words = []
        for index, new, computed in steps:
            goes_on = new == 1 and self._reached.get(index) == computed
            words.append(f"{index}" if goes_on else f"{index}:{new}:{computed}")
            self._reached[index] = computed + new
        line = f"{' '.join(words)}|{' '.join(map(str, preempted))}|{free}"
        self.lines.append(line + "".join([f"|{' '.join(map(_words, each))}" for each in copies]))


def _words(copy: Any) -> str:
    """A copy of a request's blocks, or whose copies are waited for."""
    return ":".join(map(str, copy)) if isinstance(copy, list) else str(copy)
