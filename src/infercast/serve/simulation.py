"""Builds one engine's scheduler, cache and loop from a `Replica` and serves a workload with them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from infercast.errors import InputError
from infercast.lazy_classes import fields
from infercast.serve.cache.kv_cache import KvCache
from infercast.serve.loop import Loop, PlanObserver, Progress, Replica, StepObserver
from infercast.serve.plain import OBEYED_HERE, NotPlain, PlainLoop
from infercast.serve.record import Record
from infercast.serve.scheduler.base import PrefillFirstPolicy
from infercast.serve.scheduler.offloading import HostOffload
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.clients import Clients, Source
from infercast.serve.workload.request import Request, Workload

if TYPE_CHECKING:
    from infercast.serve.plain_prefill import PlainPrefillLoop
    from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler
    from infercast.serve.transfers import Transfers
    from infercast.serve.workload.patience import ImpatientClients

AnyLoop: TypeAlias = "Loop | PlainLoop | PlainPrefillLoop"
GoOn = Callable[..., Workload | None]  # From what is recorded when the last request is sent: a longer workload, or None


def simulate(
    replica: Replica, workload: Workload, *, jump: bool = True, observe: PlanObserver | None = None,
    progress: Progress | None = None, watch: StepObserver | None = None, go_on: GoOn | None = None,
) -> Record:  # fmt: skip
    """Serve a workload and record the latencies of every request.

    With ``jump``, runs of pure decode steps are computed at once; results are bit-identical. ``observe`` is called
    after each step is planned, which needs ``jump=False``; ``watch`` receives the steps as they are launched, in runs
    where the clock jumps. ``go_on`` may add requests when the last one is sent.
    """
    check_workload(replica, workload)
    shares = workload.has("prefix")
    make = partial(loop_of, replica, jump=jump, observe=observe, progress=progress, watch=watch, shares=shares)

    def serve(is_plain: bool, go_on: GoOn | None) -> Record:
        clients = clients_of(replica, workload)
        record = new_record(replica, len(workload.requests))
        clients.listen([record])
        if go_on is not None:
            further_from(clients, replica, [record], go_on)
        for _ in make(clients, record, is_plain=is_plain).events():
            pass
        return record

    return plainly(serve, go_on, is_plain=share_nothing(workload, or_prompts=True))


Result = TypeVar("Result")


def plainly(serve: Callable[[bool, GoOn | None], Result], go_on: GoOn | None, *, is_plain: bool) -> Result:
    """What ``serve`` returns with fast loops or, if the run is `NotPlain`, from its start without them. The second time
    it gets the answers that ``go_on`` gave before, and then further ones.
    """
    said = list[Workload | None]()

    def again(*recorded: Any) -> Workload | None:
        for each in before:
            return each
        assert go_on is not None
        said.append(go_on(*recorded))
        return said[-1]

    with no_garbage():
        for may_be_plain in (True, False) if is_plain else (False,):
            before = iter([*said])
            try:
                return serve(may_be_plain, None if go_on is None else again)
            except NotPlain:
                pass
    raise AssertionError("`Loop` serves every run")


def share_nothing(workload: Workload, *, or_prompts: bool = False) -> bool:
    """Whether no prompt has images or a shared part, unless it may, and no client leaves or has an answer at once."""
    names = ("images", "patience") if or_prompts else ("prefix", "images", "patience")
    at_once = [each for each in workload.requests if each.num_output == 1 < each.most_output]
    return not at_once and not any(map(workload.has, names))


def further_from(clients: Clients | ImpatientClients, replica: Replica, records: Sequence[Record], go_on: GoOn) -> None:
    """Let ``go_on`` add requests, with room for them in the records, of which a part can be summed up."""

    def further() -> Sequence[Request]:
        before, workload = records[0].sent_at.size, go_on(records)
        if workload is None:
            return ()
        check_workload(replica, workload)
        for record in records:
            record.grow(len(workload.requests))
        return workload.requests[before:]

    clients.further = further
    for record in records:
        record.next_mark = 0


def clients_of(replica: Replica, workload: Workload, servers: int = 1) -> Clients | ImpatientClients:
    """The clients of a workload, connected to engines like this one, through at least this number of API servers."""
    servers = max(servers, replica.num_servers)
    path, token = replica.request_path_seconds, replica.request_token_seconds
    encoder = replica.encoder
    images = (0.0, 0.0) if encoder is None else (encoder.request_seconds, encoder.pixel_seconds)
    found = Clients(workload, path, token, replica.server, servers, images)
    if workload.patience is None and not workload.has("patience"):
        return found
    from infercast.serve.workload.patience import ImpatientClients  # noqa: PLC0415 - most clients wait

    return ImpatientClients(found)


def new_record(replica: Replica, num_requests: int) -> Record:
    return Record(num_requests, replica.num_blocks, replica.token_path_seconds, replica.token_turn_seconds)


def scheduler_of(replica: Replica) -> Scheduler | PrefillScheduler:
    """The scheduler that an engine's policy asks for, with an empty cache."""
    policy, shape, speculation, offload = replica.policy, replica.kv_shape, replica.speculation, replica.offload
    ahead, decode_together = replica.steps_under_way, replica.stages is None
    encoder = None if replica.encoder is None else replica.encoder.new_cache()
    if isinstance(policy, PrefillFirstPolicy):
        from infercast.serve.cache.radix_cache import HostPages, RadixCache  # noqa: PLC0415 - others do without
        from infercast.serve.scheduler.drafts import DraftBatch  # noqa: PLC0415
        from infercast.serve.scheduler.prefill_scheduler import PrefillScheduler  # noqa: PLC0415

        host = None if offload is None else HostPages(offload.num_blocks, max(1, offload.store_threshold))
        cache = RadixCache(replica.num_blocks, shape, caching=replica.prefix_caching or host is not None, host=host)
        batch = None if speculation is None else DraftBatch(cache, policy, speculation)
        num, longest, adapters = 1 if decode_together else ahead, replica.max_model_len, replica.max_adapters
        found = PrefillScheduler(policy, cache, ahead, longest, num_batches=num, drafts=batch, max_adapters=adapters)
        found.encoder = encoder
        return found
    drops_last = speculation is not None and speculation.drops_block
    blocks = KvCache(
        replica.num_blocks, shape, caching=replica.prefix_caching, sparse_windows=replica.sparse_windows,
        retained_every=replica.retained_every, drops_last=drops_last,
        ahead=0 if speculation is None else speculation.hash_ahead,
    )  # fmt: skip
    drafts = None
    if speculation is not None:
        from infercast.serve.scheduler.drafts import Drafts  # noqa: PLC0415 - most engines draft nothing

        drafts = Drafts(speculation, policy, blocks, replica.max_model_len)
    return Scheduler(
        policy, blocks, ahead, replica.max_model_len, decode_together=decode_together, drafts=drafts,
        max_adapters=replica.max_adapters, encoder=encoder,
        offload=None if offload is None else HostOffload(offload, shape, ahead, drops_last=drops_last),
    )  # fmt: skip


def loop_of(
    replica: Replica, clients: Source, record: Record, *, jump: bool = True, observe: PlanObserver | None = None,
    progress: Progress | None = None, watch: StepObserver | None = None, is_plain: bool = False, shares: bool = False,
) -> AnyLoop:  # fmt: skip
    """One engine's loop, ready to run; ``is_plain``: it may be `NotPlain`; ``shares``: prompts share blocks."""
    scheduler = scheduler_of(replica)
    if isinstance(scheduler, Scheduler) and scheduler.interval is not None:
        scheduler.interval.pass_number = getattr(replica.timer, "next_number", None)
    record.drafts = record.drafts if scheduler.drafts is None else scheduler.drafts.counts
    transfers: Transfers | None = None
    if (tier := replica.offload) is not None:
        from infercast.serve.transfers import BlockTransfers, LayerTransfers  # noqa: PLC0415

        transfers = (
            BlockTransfers(tier, scheduler) if isinstance(scheduler, Scheduler) else LayerTransfers(tier, scheduler)
        )
    loop = Loop(
        replica, scheduler, clients, record, transfers, jump=jump, observe=observe, progress=progress, watch=watch
    )
    if not is_plain or not jump or observe is not None or watch is not None:
        return loop
    if isinstance(scheduler, Scheduler):
        if scheduler.cache.is_plain and not _not_obeyed(replica, OBEYED_HERE):
            return PlainLoop(loop, scheduler, shares=shares)
        return loop
    from infercast.serve import plain_prefill  # noqa: PLC0415 - others do without

    if shares or _not_obeyed(replica, plain_prefill.OBEYED_HERE):
        return loop
    return plain_prefill.PlainPrefillLoop(loop, scheduler)


def _not_obeyed(replica: Replica, obeyed: frozenset[str]) -> list[str]:
    """Fields of a replica, its policy and the policy's rules that would change a run, and that a loop does not obey."""
    policy = replica.policy
    rules = policy.rules if isinstance(policy, PrefillFirstPolicy) else None
    found = [
        each.name
        for of in (replica, policy)
        for each in fields(of)
        if each.name not in obeyed and getattr(of, each.name) != each.default
    ]
    defaults = {} if rules is None else rules._field_defaults
    return found + [name for name in defaults if name not in obeyed and getattr(rules, name) != defaults[name]]


_num_runs = count(1)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable the cyclic garbage collector: a run creates no cycles, and collecting takes a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            swept_every = 64  # Runs after which what forecasts leave is collected: Python alone waits for gigabytes
            if next(_num_runs) % swept_every == 0:
                gc.collect()


def check_workload(replica: Replica, workload: Workload) -> None:
    """Reject requests that the engine would reject, before the first step."""
    if not workload.requests:
        raise InputError("the workload has no requests")
    adapters = {request.adapter for request in workload.requests} - {None}
    if replica.max_adapters is None and adapters:
        raise InputError("requests ask for LoRA adapters, which the engine has no room for; say --enable-lora")
    if replica.stages is not None and len(adapters) > (replica.max_adapters or 0):
        raise InputError(
            f"requests ask for {len(adapters)} LoRA adapters, above the {replica.max_adapters} of a step: the "
            "engine counts those of one step of a pipeline, and fails when two steps meet with more; raise "
            f"max_loras to {len(adapters)}"
        )
    longest = replica.max_model_len or replica.num_blocks * replica.kv_shape.block_size
    budget = replica.policy.max_num_batched_tokens
    held = budget * (replica.steps_under_way if replica.policy.frees_on_completion else 1)
    spare = replica.policy.spare_tokens(replica.kv_shape.block_size)
    if replica.speculation is not None:
        spare += replica.speculation.spare_tokens
        budget = replica.speculation.budget(budget, replica.policy.max_num_seqs)
    inputs = [request.num_input for request in workload.requests]
    outputs = [request.num_output for request in workload.requests]
    most = max(map(add, inputs, outputs))
    fits = replica.kv_shape.most_blocks(most - 1 + spare, held) <= replica.num_blocks
    in_one_step = replica.policy.chunked_prefill or most - 1 <= budget
    declares = not [1 for each in workload.requests if each.declared is not None and each.declared < each.num_output]
    if min(inputs) >= 1 and min(outputs) >= 1 and most <= longest and fits and in_one_step and declares:
        return  # the longest request is a bound for all
    for index, request in enumerate(workload.requests):
        if request.num_input < 1 or request.num_output < 1:
            raise InputError(
                f"request {index} has {request.num_input} input and {request.num_output} output tokens; "
                "both must be at least 1"
            )
        if request.num_declared < request.num_output:
            raise InputError(
                f"request {index} declares {request.declared} output tokens and produces {request.num_output}; "
                "declare as many as it produces, or more"
            )
        if request.num_input + request.num_output > longest:
            raise InputError(
                f"request {index} needs {request.num_input} input + {request.num_output} output tokens, "
                f"above max_model_len {longest}; shorten it or raise max_model_len"
            )
        computed = request.num_input + request.num_output - 1  # the last token is never computed on
        if (needed := replica.kv_shape.most_blocks(computed + spare, held)) > replica.num_blocks:
            raise InputError(
                f"request {index} needs {needed} KV blocks for its {request.num_input} input + {request.num_output} "
                f"output tokens, above the {replica.num_blocks} there are; shorten it or give the cache more memory"
            )
        # After a preemption, the tokens sampled so far are recomputed with the prompt.
        if computed > budget and not replica.policy.chunked_prefill:
            raise InputError(
                f"request {index} may compute {computed} tokens in one step, above max_num_batched_tokens {budget}; "
                "shorten it, raise max_num_batched_tokens or enable chunked prefill"
            )
