"""SGLang's own scheduler, driven on a CPU: its batches, radix cache and token allocator, with a model made up."""

import dataclasses
import importlib
import itertools
from array import array
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace as Namespace
from typing import Any

import sglang
import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import schedule_batch, schedule_policy
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.mem_cache import allocation, radix_cache
from sglang.srt.mem_cache.allocator import paged
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_cases import Case

from infercast.engines.settings import numbers

RELEASE = numbers(sglang.__version__)
OWN, ANSWERED = 10_000_000_000, 20_000_000_000
"""Where token numbers begin that belong to one request alone."""
END = 5
"""The token that ends an answer before its declared length."""


class Nobody:
    """Whatever is asked of it, it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Queued(Nobody):
    """When a request was queued, by a clock that ticks."""

    ticks = itertools.count()

    def __init__(self) -> None:
        self.set_wait_queue_entry_time()

    def set_wait_queue_entry_time(self) -> None:
        self.wait_queue_entry_time = next(self.ticks)


class Ordered(dict[Any, None]):
    """A set in the order of its elements, so that a run can be repeated."""

    def __init__(self, elements: Any = ()) -> None:
        super().__init__(dict.fromkeys(elements))

    def add(self, element: Any) -> None:
        self[element] = None


class Only(Namespace):
    """Has what it is given, and None for the rest."""

    def __getattr__(self, name: str) -> None:
        return None


class OutOfTokensError(Exception):
    """SGLang gave up, or a request: it had promised more tokens than it has."""


def _aborted(*_: Any) -> None:
    raise OutOfTokensError("a request was aborted")


class Real:
    """The scheduler of the imported SGLang."""

    def __init__(self, case: Case) -> None:
        self.case = case
        _steady_clock()
        arguments = _arguments(case)
        get_context().set_server_args(arguments)
        self.scheduler = _scheduler(case, arguments)
        self.results: deque[tuple[ScheduleBatch]] = deque()
        self.scheduler.result_queue = self.results
        self.scheduler.enable_skip_finishing_decode = case.overlap

    def add(self, index: int) -> None:
        """A client sends a request."""
        request = self.case.requests[index]
        tokens = [content * 100_003 + k for content, count in request["prefix"] for k in range(count)]
        tokens += [OWN + index * 100_003 + k for k in range(len(tokens), request["input"])]
        sampling = SamplingParams(max_new_tokens=request["declared"], temperature=0.0, ignore_eos=self.case.ignore_eos)
        sampling.normalize(None)
        ends = {self._token(index, request["output"] - 1)}
        adapter = request.get("adapter")
        made = Req(
            str(index), "", array("q", tokens), sampling, eos_token_ids=ends, vocab_size=1 << 60, time_stats=None,
            lora_id=None if adapter is None else str(adapter),
        )  # fmt: skip
        self.scheduler.init_req_max_new_tokens(made)
        self.scheduler.waiting_queue.append(made)
        made.priority = request.get("priority")
        made.time_stats = Queued()

    def turn(self) -> list[Any]:
        """One turn of the loop: who computes what, who gives way, and the tokens that are free or can be freed."""
        scheduler = self.scheduler
        known = [*scheduler.running_batch.reqs, *(scheduler.last_batch.reqs if scheduler.last_batch else ())]
        before = {request.rid: request.retraction_count for request in known}
        batch, scheduler.running_batch = self._plan()
        decision = [_rows(batch), self._retracted(before), *self._room()]
        if batch is not None:
            self.results.append((batch.copy(),))
        waits = 1 if batch is not None and self.case.overlap else 0
        while len(self.results) > waits:
            self._process(*self.results.popleft())
        # With overlap a turn that has taken in a result is not idle yet.
        idle = batch is None and (scheduler.last_batch is None or not self.case.overlap)
        scheduler.last_batch = batch
        if idle and not self.is_busy():
            scheduler.new_token_ratio_tracker.reset()
        return decision

    def is_busy(self) -> bool:
        """Whether it has requests."""
        scheduler = self.scheduler
        held = scheduler.waiting_queue or not scheduler.running_batch.is_empty() or scheduler.chunked_req is not None
        return bool(held or self.results or scheduler.last_batch is not None)

    def _plan(self) -> tuple[ScheduleBatch | None, ScheduleBatch]:
        """The next step, and who decodes from now on."""
        scheduler = self.scheduler
        try:
            plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        except RuntimeError as error:
            raise OutOfTokensError(str(error)) from error
        return plan.batch_to_run, plan.running_batch

    def _retracted(self, before: dict[str, int]) -> list[int]:
        again = self.scheduler.waiting_queue
        return sorted(int(each.rid) for each in again if each.retraction_count > before.get(each.rid, 1 << 30))

    def _process(self, batch: ScheduleBatch) -> None:
        """The results of a step arrive."""
        width = self.case.drafts["tokens"] if self.case.drafts and batch.forward_mode.is_decode() else 1
        tokens = [self._token(int(each.rid), len(each.output_ids) + k) for each in batch.reqs for k in range(width)]
        result = Only(
            next_token_ids=torch.tensor(tokens), can_run_cuda_graph=False, num_correct_drafts=0,
            num_block_accept_tokens=0, num_cap_tokens=0, get_num_generated_tokens=lambda count: count,
            speculative_num_draft_tokens=width, num_non_draft_tokens_per_req=1,
            accept_lens=torch.tensor([self._accepted(each) for each in batch.reqs]),
        )  # fmt: skip
        processor = self.scheduler.batch_result_processor
        if batch.forward_mode.is_decode():
            processor.process_batch_result_decode(batch, result)
        else:
            processor.process_batch_result_prefill(batch, result)

    def _accepted(self, request: Req) -> int:
        """Tokens of a request in a step: accepted drafts and one more."""
        accepted, place = self.case.requests[int(request.rid)].get("accepted", ()), len(request.output_ids)
        return 1 + (accepted[place] if place < len(accepted) else 0)

    def _token(self, index: int, position: int) -> int:
        """A token of an answer: by the name of its content, or the request's own."""
        answer = self.case.requests[index]["answer"]
        return (ANSWERED + index * 100_003 if answer is None else answer * 100_003) + position

    def _room(self) -> tuple[int, int]:
        cache = self.scheduler.tree_cache
        return self.scheduler.token_to_kv_pool_allocator.available_size(), int(cache.evictable_size())


class RealPipeline(Real):
    """The same where micro-batches take turns: the loop of pipeline parallelism, without stages."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.slot = 0
        self.planned: list[ScheduleBatch | None] = [None] * case.pipeline
        self.before: list[ScheduleBatch | None] = [None] * case.pipeline
        self.running = [ScheduleBatch(reqs=[], batch_is_full=False) for _ in range(case.pipeline)]

    def turn(self) -> list[Any]:
        """One micro-batch is planned, and the result of the next one is taken in."""
        scheduler, slot = self.scheduler, self.slot
        self.slot = following = (slot + 1) % self.case.pipeline
        before = {each.rid: each.retraction_count for each in [*self.running[slot].reqs, *self._joining(slot)]}
        if not before:
            # SGLang leaves a micro-batch unused for ever for which a prompt did not fit while it was empty; here, as in
            # ours, it is tried again.
            self.running[slot].batch_is_full = False
        scheduler.running_batch, scheduler.last_batch = self.running[slot], self.before[slot]
        batch, self.running[slot] = self._plan()
        self.planned[slot] = batch
        decision = [_rows(batch), self._retracted(before), *self._room()]
        if (result := self.planned[following]) is not None:
            self._process(result)
            self.before[following] = result
        if following == 0 and not self.is_busy():
            scheduler.new_token_ratio_tracker.reset()
        return decision

    def is_busy(self) -> bool:
        """Whether it has requests."""
        scheduler = self.scheduler
        runs = any(not each.is_empty() for each in self.running)
        held = scheduler.waiting_queue or runs or scheduler.chunked_req is not None
        return bool(held or any(each is not None for each in self.planned))

    def _joining(self, slot: int) -> list[Req]:
        last = self.before[slot]
        return [] if last is None else last.reqs


def real(case: Case) -> Real:
    """The engine of a case."""
    return RealPipeline(case) if case.pipeline > 1 else Real(case)


def _rows(batch: ScheduleBatch | None) -> list[list[int]]:
    if batch is None:
        return []
    new = [1] * len(batch.reqs) if batch.forward_mode.is_decode() else batch.extend_lens
    if batch.forward_mode.is_decode() and not batch.spec_algorithm.is_none():
        width = get_context().server_args.speculative_num_draft_tokens
        holders = [each if hasattr(each, "kv_committed_len") else each.kv for each in batch.reqs]
        return [[int(one.rid), width, own.kv_committed_len] for one, own in zip(batch.reqs, holders, strict=True)]
    ends = batch.seq_lens_cpu.tolist()
    return [[int(each.rid), count, end - count] for each, count, end in zip(batch.reqs, new, ends, strict=True)]


def _steady_clock() -> None:
    """Nodes of the tree are accessed at 0, 1, 2, ...: no two at the same moment."""
    ticks = itertools.count()
    radix_cache.time = Namespace(monotonic=lambda: next(ticks), perf_counter=lambda: 0.0)


def with_defaults(**given: Any) -> ServerArgs:
    """Server arguments as a command line gives them, before SGLang works out the rest."""
    if hasattr(ServerArgs, "resolve_once"):
        return ServerArgs(model_path="", **given)
    arguments = object.__new__(ServerArgs)
    object.__setattr__(arguments, "model_path", "")
    for each in dataclasses.fields(ServerArgs):
        if each.default is not dataclasses.MISSING:
            object.__setattr__(arguments, each.name, each.default)
        elif each.default_factory is not dataclasses.MISSING:
            object.__setattr__(arguments, each.name, each.default_factory())
    for name, value in given.items():
        object.__setattr__(arguments, name, value)
    return arguments


def _arguments(case: Case) -> ServerArgs:
    """Server arguments as they are after all defaults are set."""
    given = {
        "chunked_prefill_size": case.chunked_prefill_size or -1,
        "max_prefill_tokens": case.max_prefill_tokens,
        "max_running_requests": case.max_running_requests,
        "pp_size": case.pipeline,
        "pp_max_micro_batch_size": max(1, case.max_running_requests // case.pipeline),
        "page_size": case.page_size,
        "disable_overlap_schedule": not case.overlap,
        "disable_radix_cache": not case.caching,
        "enable_mixed_chunk": case.mixed,
        "schedule_policy": "lpm" if case.longest_match else "fcfs",
        "schedule_conservativeness": case.conservativeness,
        "attention_backend": "torch_native",
        "device": "cpu",
    }
    if case.priorities is not None:
        given["schedule_low_priority_values_first"] = case.priorities["sign"] > 0
        given["priority_scheduling_preemption_threshold"] = case.priorities["threshold"]
        given["disable_priority_preemption"] = not case.priorities["preempts"]
    if case.drafts is not None:
        given["speculative_algorithm"], given["speculative_num_steps"] = case.drafts["algorithm"], case.drafts["steps"]
        given["speculative_eagle_topk"] = case.drafts["top_k"]
        given["speculative_num_draft_tokens"] = case.drafts["tokens"]
    return with_defaults(**given)


def _scheduler(case: Case, arguments: ServerArgs) -> Scheduler:
    """As much of a scheduler as plans steps and takes in their results."""
    kv_type = torch.bfloat16
    if case.page_size == 1:
        tokens: Any = TokenToKVPoolAllocator(case.num_tokens, kv_type, "cpu", None, need_sort=False)
    else:
        tokens = PagedTokenToKVPoolAllocator(case.num_tokens, case.page_size, kv_type, "cpu", None, need_sort=False)
    slots = ReqToTokenPool(case.max_running_requests, case.max_model_len + 64, "cpu", enable_memory_saver=False)
    whole = case.chunked_prefill_size is None
    paired = case.drafts is not None and case.drafts["algorithm"] == "EAGLE"
    cache = _cache(case, CacheInitParams(not case.caching, slots, tokens, case.page_size, is_eagle=paired))
    made = object.__new__(Scheduler)
    nobody = Nobody()
    model = Only(vocab_size=1 << 60, is_encoder_decoder=False, is_multimodal=False)
    values = {
        "server_args": arguments, "req_to_token_pool": slots, "token_to_kv_pool_allocator": tokens, "tree_cache": cache,
        "model_config": model, "page_size": case.page_size, "max_prefill_tokens": case.max_prefill_tokens,
        "max_running_requests": case.max_running_requests, "max_total_num_tokens": case.num_tokens,
        "max_req_len": case.max_model_len - 1, "max_new_tokens_limit": None,
        "schedule_policy": arguments.schedule_policy,
        "chunked_prefill_size": case.chunked_prefill_size, "is_mixed_chunk": case.mixed and not whole,
        "chunked_req": None, "_pending_chunked_abort_req": None, "enable_dynamic_chunking": False,
        "enable_overlap": case.overlap, "dllm_config": None,
        "spec_algorithm": SpeculativeAlgorithm.from_string(arguments.speculative_algorithm),
        "enable_hierarchical_cache": case.host_tokens > 0, "enable_hicache_storage": False,
        "enable_priority_scheduling": case.priorities is not None,
        "schedule_low_priority_values_first": arguments.schedule_low_priority_values_first,
        "priority_scheduling_preemption_threshold": arguments.priority_scheduling_preemption_threshold,
        "enable_lora": case.max_adapters is not None, "enable_lora_overlap_loading": False, "lora_drainer": None,
        "enable_hisparse": False, "is_hybrid_swa": False,
        "enable_fpm": False,
        "disaggregation_mode": DisaggregationMode.NULL, "require_mlp_sync": False, "truncation_align_size": None,
        "min_free_slots_delayer": None, "forward_ct": 0, "waiting_queue": [], "last_batch": None,
        "running_batch": ScheduleBatch(reqs=[], batch_is_full=False), "abort_on_priority_when_disabled": False,
        "grammar_manager": Namespace(has_waiting_grammars=lambda: False),
        "dp_attn_adapter": Namespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=True: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        ),
        "ngram_embedding_manager": Namespace(prepare_for_forward=lambda batch, chunked_req: batch),
        "tp_worker": Namespace(
            model_runner=Namespace(
                prefill_aware_swa=False, attn_backend=None,
                lora_manager=Namespace(validate_lora_batch=lambda ids: len(ids) <= (case.max_adapters or 0)),
            )
        ),
        "metrics_reporter": Namespace(enable_metrics=False, num_retracted_reqs=0), "load_inquirer": nobody,
        "ipc_channels": Namespace(send_to_tokenizer=Namespace(send_output=_aborted)),
        "max_queued_requests": None, "metrics_collector": nobody, "sliding_window_size": None, "kv_shard_widening": 1,
        "_prefill_decode_interval_remaining": 0, "prefill_decode_interval": 0, "prefill_decode_interval_min_bs": 0,
        "dynamic_chunk_sizer": None, "beam_coordinator": Namespace(pending_member_rows=lambda *_: 0),
        "processed_tokens_counter": 0, "enable_lmcache": False,
        "hisparse_coordinator": None, "enable_unified_cache_external_linker": False, "decode_offload_manager": None,
        "enable_unified_memory": False, "scheduler_stage_metrics": None, "send_abort_output": _aborted,
    }  # fmt: skip
    for name, value in values.items():
        setattr(made, name, value)
    made.init_schedule_policy()
    made.batch_result_processor = _processor(case, made)
    return made


def _cache(case: Case, parameters: CacheInitParams) -> Any:
    """As the release chooses it (``mem_cache/registry.py``); its modules are not in every release."""
    if case.host_tokens:
        module = "sglang_tier" if RELEASE < (0, 5, 19) else "sglang_unified_tier"  # imports what others need not have
        return importlib.import_module(module).TwoTiers(parameters, case.host_tokens, case.copied_at)
    if not case.caching and case.chunked_prefill_size is not None and RELEASE < (0, 5, 22):
        from sglang.srt.mem_cache.chunk_cache import ChunkCache  # noqa: PLC0415

        return ChunkCache(parameters)
    if RELEASE < (0, 5, 19):
        return RadixCache(parameters)
    from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: PLC0415
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: PLC0415

    parameters.tree_components = (ComponentType.FULL,)
    return UnifiedRadixCache(parameters)


def _processor(case: Case, scheduler: Scheduler) -> SchedulerBatchResultProcessor:
    nobody = Nobody()
    reporter = Namespace(
        num_generated_tokens=0, forward_ct_decode=0, report_decode_stats=lambda *_, **__: None,
        report_prefill_stats=lambda *_, **__: None, update_spec_metrics=lambda *_, **__: None,
        snapshot_spec_decode_metrics=lambda *_: None,
    )  # fmt: skip
    given = {
        "is_generation": True, "disaggregation_mode": DisaggregationMode.NULL, "enable_overlap": case.overlap,
        "enable_overlap_mlx": False, "server_args": scheduler.server_args, "model_config": scheduler.model_config,
        "token_to_kv_pool_allocator": scheduler.token_to_kv_pool_allocator, "tree_cache": scheduler.tree_cache,
        "hisparse_coordinator": None, "req_to_token_pool": scheduler.req_to_token_pool, "decode_offload_manager": None,
        "metrics_collector": nobody, "metrics_reporter": reporter, "draft_worker": None, "model_worker": nobody,
        "logprob_result_processor": nobody, "output_streamer": nobody, "abort_request": nobody,
        "beam_coordinator": nobody,
    }  # fmt: skip
    known = SchedulerBatchResultProcessor.__annotations__
    return SchedulerBatchResultProcessor(**{name: value for name, value in given.items() if name in known})


class _Kernel:
    """A kernel that a GPU would run, as a function of the host: called with a grid in brackets."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Any:
        return self.function


def _extend(prefix: Any, ends: Any, last: Any, pages: Any, out: Any, _: int, page_size: int) -> None:
    needed = int(((ends + page_size - 1) // page_size - (prefix + page_size - 1) // page_size).sum())
    if needed <= len(pages):  # else the caller sees that there are too few pages, and takes none
        paged.alloc_extend_naive(prefix, ends, last, pages, out, page_size, "cpu")


def _decode(ends: Any, last: Any, pages: Any, out: Any, _: int, page_size: int) -> None:
    taken = 0
    for position, (end, where) in enumerate(zip(ends.tolist(), last.tolist(), strict=True)):
        if (end - 1) % page_size:
            out[position] = where + 1
        elif taken < len(pages):
            out[position] = pages[taken] * page_size
            taken += 1


schedule_policy.set = Ordered  # preempted requests are queued in its order
paged.alloc_extend_kernel, paged.alloc_decode_kernel = _Kernel(_extend), _Kernel(_decode)
RadixCache.pretty_print = lambda *_: None  # what SGLang shows when it gives up


def _assign(rows: Any, table: Any, starts: Any, ends: Any, where: Any, _: int) -> None:
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = where[taken : taken + end - start].to(table.dtype)
        taken += end - start


allocation.assign_req_to_token_pool_func = _assign
for _module in (schedule_batch, allocation):
    _module.is_pin_memory_available = lambda *_: False
schedule_batch.SamplingBatchInfo = Namespace(
    from_schedule_batch=lambda *_: Namespace(
        filter_batch=lambda *_: None, merge_batch=lambda *_: None,
        penalizer_orchestrator=Namespace(is_required=False), copy_for_forward=nullcontext,
    )
)  # fmt: skip
