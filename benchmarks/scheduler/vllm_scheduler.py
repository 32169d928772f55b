"""vLLM's own scheduler, driven on a CPU: the configuration it needs, requests with made-up tokens, made-up results."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace as Namespace
from typing import Any

import torch
from drafting_cases import drafts_of
from scheduling_cases import LONGEST, STATE, Case
from vllm.config import CacheConfig, SchedulerConfig
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.short_conv import ShortConv
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from infercast.engines.vllm.versions import Rule, rules_of

OWN, ANSWERED = 10_000_000_000, 20_000_000_000
"""Where token numbers begin that belong to one request alone."""


def fast_hash(value: object) -> bytes:
    """Any hash will do."""
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).digest()


init_none_hash(fast_hash)


class Real:
    """The scheduler of the imported vLLM."""

    def __init__(self, case: Case, scheduler: Scheduler | None = None) -> None:
        self.case = case
        self.scheduler = scheduler or scheduler_of(case)
        self.num_added = self.num_planned = 0
        self.speculation, self.draws = drafts_of(case) if case.speculation is not None else (None, None)
        size = min(case.block_sizes, default=case.block_size)
        ahead = (self.speculation.hash_ahead,) if self.speculation is not None and self.speculation.hash_ahead else ()
        self.hasher = get_request_block_hasher(size, fast_hash, *ahead) if case.caching else None

    def add(self, index: int) -> None:
        """A client sends a request."""
        request = self.case.requests[index]
        self.num_added += 1
        tokens = [content * 100_003 + k for content, count in request["prefix"] for k in range(count)]
        tokens += [OWN + index * 100_003 + k for k in range(len(tokens), request["input"])]
        most = request.get("most", request["output"])
        sampling = SamplingParams(max_tokens=most, ignore_eos=True, temperature=0.0)
        if most > request["output"]:
            sampling.stop_token_ids = [self._token(self._name(str(index)), request["output"] - 1)]
        self.scheduler.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=tokens,
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=float(self.num_added),
                priority=request.get("priority", 0),
                lora_request=_adapter(request.get("adapter")),
                block_hasher=self.hasher,
                mm_features=[_image(*image) for image in request.get("images", ())],
            )
        )

    def schedule(self) -> tuple[list[Any], Any]:
        """What the next step does, and what `complete` needs to end it."""
        requests = self.scheduler.requests
        before = {key: request.num_preemptions for key, request in requests.items()}
        output = self.scheduler.schedule(not self.case.is_lone and self.num_planned % self.case.prefill_interval != 0)
        self.num_planned += 1
        planned = output.num_scheduled_tokens
        sampled = {key for key in planned if not requests[key].is_prefill_chunk}
        name = self._name
        preempted = sorted(name(key) for key, request in requests.items() if request.num_preemptions > before[key])
        steps = [[name(key), count, requests[key].num_computed_tokens - count] for key, count in planned.items()]
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        inputs = output.scheduled_encoder_inputs.items()
        contents = [self.case.requests[int(key)]["images"][number][3] for key, numbers in inputs for number in numbers]
        return [steps, preempted, free, *([contents] if self.case.encoder else [])], (output, sampled)

    def complete(self, handle: Any, copies: Any = None) -> None:
        """The step's results arrive, and with them what a connector has to say of its copies."""
        output, sampled = handle
        keys = [*output.num_scheduled_tokens]
        tokens = [self._tokens(key, output) if key in sampled else [] for key in keys]
        result = ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: position for position, key in enumerate(keys)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=copies,
        )
        self.scheduler.update_from_output(output, result)
        if self.draws is not None and not self.case.is_async:
            self.scheduler.update_draft_token_ids(DraftTokenIds(keys, [self._drafts(key, output) for key in keys]))

    def abort(self, index: int) -> None:
        """A client leaves."""
        self.scheduler.finish_requests([str(index)], RequestStatus.FINISHED_ABORTED)

    def is_busy(self) -> bool:
        """Whether it has requests."""
        return bool(self.scheduler.has_unfinished_requests())

    def _name(self, key: str) -> int:
        """The number of a request, also when it is sent again, which vLLM sees as another one."""
        again: int = self.case.requests[int(key)].get("again", int(key))
        return again

    def _tokens(self, key: str, output: Any) -> list[int]:
        """The next tokens of an answer, by the name of its content or the request's own: as many as drafts are right,
        and one more.
        """
        request = self.scheduler.requests.get(key)
        if request is None:
            return []
        position, number = request.num_output_tokens, self._name(key)
        drafts = len(output.scheduled_spec_decode_tokens.get(key, ()))
        started = {each.req_id for each in output.scheduled_new_reqs} | {*output.scheduled_cached_reqs.resumed_req_ids}
        accepted = 0
        if self.draws is not None and drafts and key not in started:
            accepted = min(drafts, self.draws.accepted(number, self.case.requests[number]["output"])[position])
        first = self._token(number, position)
        return [*range(first, first + 1 + accepted)]

    def _token(self, number: int, position: int) -> int:
        """A token of an answer."""
        answer = self.case.requests[number]["answer"]
        return (ANSWERED + number * 100_003 if answer is None else answer * 100_003) + position

    def _drafts(self, key: str, output: Any) -> list[int]:
        """Drafts for the next step of a request, where they are known before it is planned."""
        request = self.scheduler.requests.get(key)
        if request is None or self.speculation is None or self.draws is None:
            return []
        count = output.num_spec_tokens_to_schedule
        if self.speculation.match < 1.0 and not request.is_prefill_chunk:
            number = self._name(key)
            count = self.draws.drafted(number, self.case.requests[number]["output"])[request.num_output_tokens]
        return [7] * count


def _image(start: int, tokens: int, embeds: int, content: int) -> MultiModalFeatureSpec:
    """An image of a prompt, with a mark before what is encoded and others behind it, if it has any."""
    marks = torch.arange(tokens)
    is_embed = None if embeds == tokens else (marks > 0) & (marks <= embeds)
    place = PlaceholderRange(offset=start, length=tokens, is_embed=is_embed)
    return MultiModalFeatureSpec(data=None, modality="image", identifier=f"image {content}", mm_position=place)


def _adapter(number: int | None) -> Namespace | None:
    return None if number is None else Namespace(lora_int_id=number, lora_name=f"adapter {number}", lora_path="")


def scheduler_of(case: Case, tensors: Sequence[Any] = (), **settings: Any) -> Scheduler:
    """vLLM's scheduler with the settings of a case, and others."""
    scheduling = SchedulerConfig(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_model_len=case.max_model_len,
        long_prefill_token_threshold=case.threshold,
        enable_chunked_prefill=case.chunked,
        async_scheduling=case.is_async,
        is_encoder_decoder=False,
        policy="priority" if case.by_priority else "fcfs",
        watermark=case.watermark,
        scheduler_reserve_full_isl=case.reserves_prompts,
        **({"long_prefill_token_threshold_adaptive": True} if case.adaptive else {}),
        **({"prefill_schedule_interval": case.prefill_interval} if case.is_lone else {}),
    )
    if case.speculation is not None:
        taken = 0 if case.speculation["slots_by_step"] else case.speculation["slots_taken"] * case.max_num_seqs
        scheduling.max_num_scheduled_tokens = case.max_num_batched_tokens - taken
    if case.scheduled_tokens:
        scheduling.max_num_scheduled_tokens = case.scheduled_tokens
    mode = {"mamba_cache_mode": case.states} if case.states else {}
    caching = CacheConfig(block_size=case.block_size, enable_prefix_caching=case.caching, **mode)
    caching.num_gpu_blocks = case.num_blocks
    groups = [KVCacheGroupSpec([f"layer{i}"], _spec(case, window)) for i, window in enumerate(case.windows)]
    for group, size in zip(groups, case.block_sizes, strict=False):
        group.kv_cache_spec = replace(group.kv_cache_spec, block_size=size)
    rules, method = rules_of(case.version), (case.speculation or {}).get("method")
    if (method == "mtp" and rules.has(Rule.KNOWS_DRAFTS)) or (method == "eagle" and rules.has(Rule.HASHES_AHEAD)):
        # Layers of the drafts come last, and are like the last of the target.
        groups[max(number for number, window in enumerate(case.windows) if window != STATE)].is_eagle_group = True
    blocks = KVCacheConfig(num_blocks=case.num_blocks, kv_cache_tensors=[*tensors], kv_cache_groups=groups)
    if hasattr(caching, "prefix_cache_retention_interval"):
        blocks.prefix_cache_retention_interval = case.retention
    scheduler = (AsyncScheduler if case.is_async else Scheduler)(
        vllm_config=_config(case, scheduling, caching, settings),
        kv_cache_config=blocks,
        structured_output_manager=Namespace(
            should_advance=lambda *_, **__: False,
            grammar_init=lambda request: None,
            accept_tokens=lambda *_: True,
            validate_tokens=lambda request, tokens, *_: tokens,
        ),
        block_size=LONGEST if case.states == "none" else max(case.block_sizes, default=case.block_size),
        **({"hash_block_size": min(case.block_sizes)} if case.block_sizes else {}),
        mm_registry=Namespace(supports_multimodal_inputs=lambda model: False),
        log_stats=False,
    )
    if case.encoder:  # As `compute_mm_encoder_budget` has it by default, both are as large
        scheduler.max_num_encoder_input_tokens = case.encoder
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=case.encoder)
    return scheduler


def _spec(case: Case, window: int) -> Any:
    if window == STATE:
        return _state_spec(case)
    shape = {"block_size": case.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if case.chunklocal and window:
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=window)
    ahead = case.speculation.get("read_ahead", 0) if case.speculation else 0
    kept = {"extra_retained_tokens": ahead - 1} if ahead else {}
    return SlidingWindowSpec(**shape, **kept, sliding_window=window) if window else FullAttentionSpec(**shape)


def _state_spec(case: Case) -> MambaSpec:
    """What a recurrent layer of vLLM says of its cache: Mamba2, or one that leaves no state before a step's end."""
    size = LONGEST if case.states == "none" else case.block_size
    settings = Namespace(
        cache_config=Namespace(
            mamba_block_size=size, mamba_page_size_padded=None, mamba_cache_mode=case.states, use_replayssm=False
        ),
        speculative_config=_drafting(case),
        num_speculative_tokens=case.speculation["num_drafts"] if case.speculation else 0,
        model_config=Namespace(hf_config=Namespace(model_type="")),
    )
    kind = MambaMixer2 if case.checkpoints else ShortConv
    made = {"get_state_shape": lambda _: ((size,),), "get_state_dtype": lambda _: (torch.float32,)}
    layer = object.__new__(type(kind.__name__, (kind,), made))
    spec: MambaSpec = layer.get_kv_cache_spec(settings)
    assert getattr(spec, "num_prefill_checkpoint_blocks", 0) == case.checkpoints
    return spec


def _config(case: Case, scheduling: SchedulerConfig, caching: CacheConfig, settings: dict[str, Any]) -> Namespace:
    """As much of a configuration as the scheduler asks for, in both versions."""
    model = Namespace(
        is_encoder_decoder=False, max_model_len=case.max_model_len, is_diffusion=False,
        enable_return_routed_experts=False,
        is_multimodal_model=False, uses_mrope=False, runner_type="generate", supports_multimodal_inputs=False,
        return_sampling_mask=False, is_hybrid=False, use_mla=False, dtype="bfloat16", model="",
    )  # fmt: skip
    parallel = Namespace(
        data_parallel_index=0, data_parallel_rank=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
        pipeline_parallel_size=case.pipeline, world_size=1, rank=0, tensor_parallel_size=1, data_parallel_size=1,
        data_parallel_rank_local=0,
    )  # fmt: skip
    observability = Namespace(
        kv_cache_metrics=False, enable_mfu_metrics=False, kv_cache_metrics_sample=0.01,
        per_request_spec_decode_metrics=None, enable_logging_iteration_details=False,
    )  # fmt: skip
    drafts, num_drafts = _drafting(case), case.speculation["num_drafts"] if case.speculation else 0
    adapters = None if case.max_adapters is None else Namespace(max_loras=case.max_adapters)
    needed: dict[str, Any] = {}
    needed.update(
        scheduler_config=scheduling, cache_config=caching, model_config=model, parallel_config=parallel,
        observability_config=observability, lora_config=adapters, kv_events_config=None, kv_transfer_config=None,
        ec_transfer_config=None, speculative_config=drafts, num_speculative_tokens=num_drafts, additional_config={},
        use_v2_model_runner=case.v2_runner, max_concurrent_batches=case.steps_under_way, is_mm_encoder_only=False,
        is_encoder_only=False,
        num_lookahead_tokens=case.speculation["lookahead"] if case.speculation else 0,
        num_prefill_lookahead_tokens=_read_ahead(case), reasoning_config=None,
        num_hash_lookahead_tokens=0 if case.speculation is None else drafts_of(case)[0].hash_ahead,
        max_in_flight_tokens=case.max_num_batched_tokens * case.steps_under_way,
        aux_output_config=Namespace(enabled=False),
        ec_manager_config=Namespace(get_encoder_cache_manager_obj=lambda: None),
    )  # fmt: skip
    return Namespace(**{**needed, **settings})


def _read_ahead(case: Case) -> int:
    """Tokens of a prompt beyond a step that drafts need: of an EAGLE head one, of several prediction heads as many."""
    if case.speculation is None or case.speculation["method"] not in ("eagle", "mtp"):
        return 0
    return case.speculation.get("read_ahead", 0) or 1


def _drafting(case: Case) -> Namespace | None:
    """As much of a speculative configuration as the scheduler asks for."""
    if case.speculation is None:
        return None
    drafts, method = case.speculation, case.speculation["method"]
    starts = [least for least, _ in drafts["by_batch"]] + [case.max_num_seqs + 1]
    ranges = [(start, end - 1, each) for (start, each), end in zip(drafts["by_batch"], starts[1:], strict=True)]
    return Namespace(
        method=method,
        num_speculative_tokens=drafts["num_drafts"],
        num_speculative_tokens_per_batch_size=ranges or None,
        use_eagle=lambda: drafts["drops_block"],
        use_eagle_block_drop=lambda: drafts["drops_block"],
        needs_eagle_block_drop=lambda: drafts["drops_block"],
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=False,
        uses_draft_model=lambda: method == "draft_model",
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        max_num_new_slots_for_drafting=drafts["slots_taken"],
    )
