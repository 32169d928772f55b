"""Both schedulers with a tier of the KV cache in the host's memory, and a worker that ends copies when a case says so.

vLLM's offloading connector is the real one; only the copies themselves are made up. It keeps the blocks of a copy in a
set, whose order is another in every process: here that is the order of the blocks, as ours has it on request.
"""

import random
from collections.abc import Iterable
from types import SimpleNamespace as Namespace
from typing import Any

from our_scheduler import Ours
from scheduling_cases import Case

from infercast.engines.vllm.kv_cache import tier_rules
from infercast.engines.vllm.versions import engine_version
from infercast.serve.cache.tiers import LinkSpeed, Offload
from infercast.serve.scheduler.offloading import HostOffload, KvTransfer

PAGE = 4096
"""Bytes of the host's memory that what is kept together is rounded up to, since 0.32."""


class Worker:
    """Copies that begin with a step and are seen with a later one."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._turn = 0
        self._counts: dict[tuple[int, bool], int] = {}
        self._under_way: list[tuple[int, Any]] = []
        self._unsubmitted: list[tuple[int, Any]] = []

    def step(self, loads: list[tuple[int, Any]], stores: list[tuple[int, Any]]) -> list[Any]:
        """Copies are handed over with a step, each of a request; returns those whose end is seen with it."""
        self._turn += 1
        self._under_way += [(self._turn + self._delay(index, True), copy) for index, copy in self._unsubmitted]
        self._unsubmitted = stores
        self._under_way += [(self._turn + self._delay(index, False), copy) for index, copy in loads]
        ended = [copy for ready, copy in self._under_way if ready <= self._turn]
        self._under_way = [each for each in self._under_way if each[0] > self._turn]
        return ended

    def _delay(self, index: int, is_store: bool) -> int:
        """In steps; the same for the same copy of the same request."""
        count = self._counts[index, is_store] = self._counts.get((index, is_store), 0) + 1
        return random.Random(f"{index}:{is_store}:{count}").choice([0, 0, 1, 2, self._case.slowest_copy])


class OursOffloading(Ours):
    """infercast's scheduler with the case's tier."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.worker = Worker(case)

    def offload_of(self, case: Case) -> HostOffload:
        """The case's tier, whose blocks have an order."""
        speed = LinkSpeed(1e9)
        offload = Offload(
            case.tier_blocks, 1, 1, speed, speed, case.tier_factor, case.prompts_only, case.store_threshold,
            **tier_rules(engine_version(f"vllm@{case.version}"), (case.speculation or {}).get("method")),
        )  # fmt: skip
        drops_last = bool(case.speculation and case.speculation["drops_block"])
        steps = case.steps_under_way
        self.moves = HostOffload(offload, case.shape, steps, drops_last=drops_last, in_order=True)
        return self.moves

    def schedule(self) -> tuple[list[Any], Any]:
        """What the next step does and copies, and what `complete` needs to end it."""
        decision, plan = super().schedule()
        moves = self.moves
        loads = [(move.sequence.index, move) for move in moves.loads]
        stores = [(move.sequence.index, move) for move in moves.stores]
        flushed = {move.sequence.index for move in moves.flushed} & {*decision[1]}
        told = [[[index, len(move.keys)] for index, move in copies] for copies in (loads, stores)]
        decision += [*told, sorted(flushed)]
        moves.loads, moves.stores, moves.flushed = [], [], []
        return decision, (plan, self.worker.step(loads, stores))

    def complete(self, handle: tuple[Any, list[KvTransfer]]) -> None:
        """The step's results arrive, and with them the ends of copies."""
        plan, ended = handle
        super().complete(plan)
        self.scheduler.end_moves(ended)

    def is_busy(self) -> bool:
        """Whether it has requests or copies."""
        return super().is_busy() or bool(self.moves.num_under_way or self.moves.ended)


class Ordered(dict[Any, None]):
    """A set that keeps its order."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None

    def update(self, *others: Iterable[Any]) -> None:  # type: ignore[override]
        for other in others:
            super().update(dict.fromkeys(other))

    def difference_update(self, other: Iterable[Any]) -> None:
        for item in other:
            super().pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]

    def discard(self, item: Any) -> None:
        super().pop(item, None)

    def pop(self) -> Any:  # type: ignore[override]
        return self.popitem()[0]

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        return self.keys().isdisjoint(other)


def real_offloading(case: Case) -> Any:
    """vLLM's scheduler and its offloading connector."""
    import vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler as connector  # noqa: PLC0415
    from vllm.config import KVTransferConfig  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (  # noqa: PLC0415
        OffloadingWorkerMetadata,
    )
    from vllm.v1.kv_cache_interface import KVCacheTensor  # noqa: PLC0415
    from vllm.v1.outputs import KVConnectorOutput  # noqa: PLC0415
    from vllm_scheduler import Real, scheduler_of  # noqa: PLC0415

    connector.set = Ordered

    class RealOffloading(Real):
        """As the connector's worker sees it."""

        def __init__(self, case: Case) -> None:
            page = 2 * case.block_size * 4
            place = {"shared_by": ["layer0"]}
            if case.version != "0.25":
                place = {"layers": ["layer0"], "layer_stride": case.num_blocks * page, "block_stride": page}
            tensors = [KVCacheTensor(size=case.num_blocks * page, **place)]
            kept = case.tier_factor * page
            if case.version != "0.25":
                kept = -(-kept // PAGE) * PAGE
            extra: dict[str, Any] = {"cpu_bytes_to_use": case.tier_blocks * kept}
            extra |= {"block_size": case.block_size * case.tier_factor, "offload_prompt_only": case.prompts_only}
            extra |= {"store_threshold": case.store_threshold}
            transfer = KVTransferConfig(
                kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
            )
            super().__init__(case, scheduler_of(case, tensors, kv_transfer_config=transfer))
            self.worker = Worker(case)
            self.jobs: dict[int, tuple[str, bool]] = {}
            self.scheduler.finished_req_ids = Ordered()

        def schedule(self) -> tuple[list[Any], Any]:
            decision, (output, sampled) = super().schedule()
            self.scheduler.finished_req_ids = Ordered()
            meta = output.kv_connector_metadata
            self.jobs |= {number: (job.req_id, False) for number, job in meta.load_jobs.items()}
            self.jobs |= {number: (job.req_id, True) for number, job in meta.store_jobs.items()}
            loads = [(self._name(job.req_id), number) for number, job in meta.load_jobs.items()]
            stores = [(self._name(job.req_id), number) for number, job in meta.store_jobs.items()]
            blocks = [
                [[self._name(job.req_id), len(spec(job).block_ids)] for job in jobs.values()]
                for jobs, spec in ((meta.load_jobs, _source), (meta.store_jobs, _target))
            ]
            flushed = {self._name(self.jobs[number][0]) for number in meta.jobs_to_flush or ()} & {*decision[1]}
            decision += [*blocks, sorted(flushed)]
            return decision, (output, sampled, self.worker.step(loads, stores))

        def complete(self, handle: Any) -> None:
            output, sampled, ended = handle
            received = {self.jobs[number][0] for number in ended if not self.jobs[number][1]}
            told = KVConnectorOutput(
                finished_recving=received,
                kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(ended, 1)),
            )
            super().complete((output, sampled), told)

        def is_busy(self) -> bool:
            has_ended = case.version != "0.25" and self.scheduler.has_finished_requests()
            return super().is_busy() or bool(self.scheduler.connector.has_pending_push_work()) or has_ended

    return RealOffloading(case)


def _source(job: Namespace) -> Any:
    return job.src_spec


def _target(job: Namespace) -> Any:
    return job.dst_spec
