"""Kernels of a step, and of the prefill and decode phases of a run; step times for schedulers that are not ours."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.host import Launch
from infercast.engines.speculation import Drafting
from infercast.engines.timer import DRAFT_GAPS, GAPS, KernelTimer
from infercast.errors import InputError
from infercast.forecast.deploy import Deployable, DeployOptions, GpuSource, ModelSource, deploy, resolve_deployment
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.models.lower import attention_calls, head_calls, token_calls, verify_calls
from infercast.ops import Call
from infercast.ops.op import rejection, tensor_rate_of
from infercast.predict.board_power import THROTTLED, BoardPower, board_under, throttle, throttle_decoding, weight_of
from infercast.predict.estimate import SOURCES, Estimate, exposed_seconds, kind_of, total
from infercast.predict.families import families_of
from infercast.predict.roofline import overlapped_share
from infercast.serve import Record
from infercast.serve.fleet.two_pools import taken_in
from infercast.serve.record import PhaseTotals
from infercast.serve.step import DraftShape, Prompts, StepShape
from infercast.serve.timeline import StepNoise, Timeline
from infercast.shown import PlottableResult
from infercast.units import format_many, format_seconds

MOST_SEQUENCES = 2**20


_average_steps: WeakKeyDictionary[PhaseTotals, tuple[Deployment, bool, StepCost]] = WeakKeyDictionary()


class StepCalls(NamedTuple):
    by_tokens: list[Call]
    by_sequences: list[Call]
    by_rows: list[Call]
    launch: Launch
    padded_tokens: int

    @property
    def all(self) -> list[Call]:
        return [*self.by_tokens, *self.by_sequences, *self.by_rows]


def draft_step_calls(deployment: Deployment, shape: DraftShape) -> StepCalls:
    model, layout, drafting = deployment.model, deployment.layout, deployment.drafting
    assert drafting is not None
    launch, padded = deployment.graphs.launch(shape.num_tokens, shape.is_decode)
    rows, number = max(1, shape.num_sampled), shape.num_sequences
    verifying = shape.num_verifying
    keys = np.array(shape.new_tokens) + np.array(shape.computed)
    prompts = np.array(shape.new_tokens[verifying:]), keys[verifying:]
    width = 1 + round(shape.num_drafts / verifying) if verifying else 1
    by_tokens = token_calls(model, layout, padded)
    by_sequences = verify_calls(model, layout, width, keys[:verifying]) if verifying else []
    by_sequences += attention_calls(model, layout, *prompts) if shape.prompts else []
    by_rows = [*head_calls(model, layout, rows), Call("rejection", rejection(rows, model.vocabulary))]
    draft, passes = drafting.draft, min(drafting.passes, shape.num_next)
    if draft is not None and passes:
        own = replace(layout, tensor=drafting.tensor)
        by_tokens += [*draft.combining_calls(padded), *draft.pass_calls(own, padded)]
        by_sequences += draft.verify_calls(own, width, keys[:verifying]) if verifying else []
        by_sequences += draft.attention_calls(own, *prompts) if shape.prompts else []
        by_rows += _times(passes, draft.head_calls(own, number))
        if passes > 1:
            later = [*draft.pass_calls(own, number), *draft.attention_calls(own, np.ones_like(keys), keys)]
            by_rows += _times(passes - 1, later)
    return StepCalls(by_tokens, by_sequences, by_rows, launch, padded)


def _times(count: int, calls: list[Call]) -> list[Call]:
    return [replace(call, count=count * call.count) for call in calls]


def step_calls(deployment: Deployment, shape: StepShape) -> StepCalls:
    """The operators of a step over a given batch, padded as its graphs are."""
    if isinstance(shape, DraftShape):
        return draft_step_calls(deployment, shape)
    model, layout = deployment.model, deployment.layout
    launch, padded = deployment.graphs.launch(shape.num_tokens, shape.is_decode)
    queries = np.array(shape.new_tokens)
    return StepCalls(
        token_calls(model, layout, padded),
        attention_calls(model, layout, queries, queries + np.array(shape.computed)),
        head_calls(model, layout, max(1, shape.num_sampled)),  # an engine runs its head even without sampling
        launch,
        padded,
    )


@dataclass(frozen=True, slots=True)
class KernelCost:
    """All launches of one kernel in a step."""

    name: str
    family: str
    count: int
    estimate: Estimate  # One launch
    achieved: float  # FLOP/s where arithmetic is the bound, bytes/s otherwise
    limit: float  # The GPU's own rate for the same
    unit: str
    terms: dict[str, float]  # Terms of the estimate, with ``explain``: seconds of each pipe, and learned corrections
    dynamic_joules: float = 0.0  # Energy of one launch above what the board draws idle, at the unhindered clock
    is_new: bool = False  # Whether the release runs a newer kernel that was not measured: an older one stands for it

    @property
    def seconds(self) -> float:
        return self.count * float(self.estimate.seconds)

    def watts(self, board: BoardPower) -> float:
        return min(board.idle_watts + self.dynamic_joules / float(self.estimate.seconds), board.held_watts)

    def joules(self, board: BoardPower) -> float:
        """Energy of all launches together, what the board draws idle included."""
        return self.seconds * self.watts(board)


@dataclass(frozen=True, slots=True, repr=False)
class StepCost(PlottableResult):
    """One step, kernel by kernel."""

    kernels: tuple[KernelCost, ...]
    gpu: Estimate  # All kernels together
    gap_seconds: float  # Seconds that the GPU idles between them, beyond what estimates include
    host_seconds: float  # Seconds of the host, hidden where the GPU takes longer
    launch: str
    num_tokens: int  # Tokens that are computed
    padded_tokens: int  # Tokens that the kernels are launched for
    board: BoardPower  # What the GPU draws

    @property
    def joules(self) -> float:
        """Energy of the step on one GPU, idle time included."""
        work = sum(kernel.count * kernel.dynamic_joules for kernel in self.kernels)
        most = (self.board.held_watts - self.board.idle_watts) * float(self.gpu.seconds)
        return self.board.idle_watts * self.seconds + min(work, most)

    @property
    def watts(self) -> float:
        """Mean board power over the step."""
        return self.joules / self.seconds

    def _words(self) -> str:
        kernels = format_many(len(self.kernels), "kernel")
        return f"{format_many(self.num_tokens, 'token')} in {format_seconds(self.seconds)}, {kernels}, {self.launch}"

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows."""
        return kind_of(self.gpu.source)

    @property
    def seconds(self) -> float:
        """The step as its GPU or its host takes longer."""
        return max(float(self.gpu.seconds) + self.gap_seconds, self.host_seconds)


def estimate_step(
    deployment: Deployable, shape: StepShape, *, gpu: GpuSource | None = None, explain: bool = False,
    **options: Unpack[DeployOptions],
) -> StepCost:  # fmt: skip
    """Estimate every kernel of one step over a batch that the engine's scheduler could plan. A model's name does with
    ``gpu`` and further ``options`` of `deploy`. With ``explain``, each kernel also carries the terms that its estimate
    is made of.
    """
    found = resolve_deployment(deployment, gpu, options)
    if found.gpu.stages:
        raise InputError(f"a step on {found.gpu.title} is estimated by stage; use estimate_partition")
    _check_shape(found, shape)
    return estimate_shape(found, shape, explain=explain)


def estimate_shape(deployment: Deployment, shape: StepShape, *, explain: bool = False) -> StepCost:
    """Estimate every kernel of one step, whatever the settings allow."""
    calls = step_calls(deployment, shape)
    estimated = tuple(_estimate_call(deployment, call, explain) for call in calls.all)
    for names in deployment.model.edits.overlap:
        beside = [call for call in calls.by_tokens if call.name in names]
        share = float(np.ravel(overlapped_share(beside, deployment.predictor, deployment.gpu))[0])
        estimated = tuple(
            replace(each, estimate=each.estimate.scaled(share)) if each.name in names else each for each in estimated
        )
    kernels = _throttled(deployment, calls.by_tokens, estimated, is_decode=shape.is_decode)
    gpu = total((kernel.estimate, kernel.count) for kernel in kernels)
    gap, host = deployment.host_model.gap_seconds, deployment.host_cost(shape)
    by_tokens = sum(kernel.seconds for kernel in kernels[: len(calls.by_tokens)])
    waits = deployment.weight_waits(np.array([calls.padded_tokens]), np.array([by_tokens]))
    gap += 0.0 if waits is None else float(waits[0])
    waited = 0.0 if shape.is_decode else deployment.host_model.waited_share * (float(gpu.seconds) + gap)
    host_seconds = host.waiting(waited).total
    board = board_under(deployment.gpu)
    return StepCost(kernels, gpu, gap, host_seconds, calls.launch.value, shape.num_tokens, calls.padded_tokens, board)


def _throttled(
    deployment: Deployment, products: list[Call], kernels: tuple[KernelCost, ...], *, is_decode: bool
) -> tuple[KernelCost, ...]:
    """The same kernels where the power limit slows the step down, by its products with weights (the first kernels)."""
    slow = [call for call in products if call.op.family in THROTTLED]
    operations = sum(call.count * float(call.op.flops) * weight_of(call.op.compute_dtype) for call in slow)
    many = len(products) if is_decode else len(kernels)
    slower = throttle_decoding if is_decode else throttle
    seconds = sum(kernel.seconds for kernel in kernels[:many]) + (
        0.0 if is_decode else deployment.host_model.gap_seconds
    )
    factor = float(slower(deployment.gpu, operations, seconds))
    if factor == 1.0:
        return kernels
    return tuple(
        replace(kernel, estimate=kernel.estimate.scaled(factor), achieved=kernel.achieved / factor)
        if kernel.family in THROTTLED and number < many
        else kernel
        for number, kernel in enumerate(kernels)
    )


def prefill_shape(num_tokens: int, cached: int = 0) -> StepShape:
    """One prompt computed in one step, after ``cached`` tokens that are in the cache already."""
    return StepShape([num_tokens], [cached], 1)


def decode_shape(batch: int, context: int) -> StepShape:
    """``batch`` sequences that each compute one token after ``context`` earlier ones."""
    if batch > MOST_SEQUENCES:
        raise InputError(f"a step of {batch} sequences is above the {MOST_SEQUENCES} that any engine could hold")
    return StepShape([1] * batch, [context] * batch, batch)


def verify_shape(batch: int, context: int, drafting: Drafting) -> DraftShape:
    """The same with as many drafts to verify as there are, and as many to make for the next step."""
    width, drafts = drafting.width, drafting.num_drafts
    return DraftShape([width] * batch, [context] * batch, width * batch, batch, drafts * batch, width, batch, drafts)


def _check_shape(deployment: Deployment, shape: StepShape) -> None:
    settings = deployment.settings
    if not shape.new_tokens or len(shape.new_tokens) != len(shape.computed):
        raise InputError(
            f"a step needs at least one sequence and a context for each, not {len(shape.new_tokens)} sequences and "
            f"{len(shape.computed)} contexts"
        )
    if min(shape.new_tokens) < 1 or min(shape.computed) < 0:
        raise InputError("a step needs at least one new token a sequence and a context of 0 or more")
    if not isinstance(shape, DraftShape) and not 0 <= shape.num_sampled <= len(shape.new_tokens):
        raise InputError(f"num_sampled {shape.num_sampled} must lie between 0 and the batch of {len(shape.new_tokens)}")
    if deployment.model.pools and (shape.is_decode or (any(shape.computed) and not deployment.memory.kv_bytes)):
        name = deployment.model.name
        raise InputError(f"{name} gives no tokens and computes prompts whole; ask for a step of prompts alone")
    tokens, sequences, length = deployment.engine.bounds
    if shape.num_tokens > settings.max_num_batched_tokens:
        raise InputError(f"a step of {shape.num_tokens} tokens is above {tokens} {settings.max_num_batched_tokens}")
    if len(shape.new_tokens) > settings.max_num_seqs:
        raise InputError(f"a batch of {len(shape.new_tokens)} is above {sequences} {settings.max_num_seqs}")
    longest = max(new + old for new, old in zip(shape.new_tokens, shape.computed, strict=True))
    if longest > settings.max_model_len:
        raise InputError(f"a sequence of {longest} tokens is above {length} {settings.max_model_len}")
    _check_cache(deployment, shape)


def _check_cache(deployment: Deployment, shape: StepShape) -> None:
    memory = deployment.memory
    pairs = Counter(zip(shape.new_tokens, shape.computed, strict=True))
    needed = sum(memory.kv.shape.most_blocks(new + old, new) * count for (new, old), count in pairs.items())
    if needed <= memory.request_blocks:
        return
    tokens = sum((new + old) * count for (new, old), count in pairs.items())
    longest = max(new + old for new, old in pairs)
    raise InputError(
        f"a step over {len(shape.new_tokens):,} sequences with {tokens:,} tokens in all does not fit in the KV cache, "
        f"whose {memory.request_blocks:,} blocks hold {memory.most_sequences(longest, 1):,} sequences of {longest:,} "
        "tokens; take fewer or shorter ones, or more GPUs"
    )


def _estimate_call(deployment: Deployment, call: Call, explain: bool) -> KernelCost:
    """One kernel of the step, with the rate it reaches on the pipe that holds it back."""
    op, gpu = call.op, deployment.gpu
    estimate = deployment.predictor.estimate(op, gpu)
    seconds = float(estimate.seconds)
    if estimate.bound in ("tensor", "special"):
        achieved, limit, unit = op.flops / seconds, gpu.dense_flops(tensor_rate_of(op.compute_dtype)), "FLOP/s"
    else:
        family = families_of(op)[0]
        achieved, limit, unit = family.moved(op) / seconds, family.bandwidth(op, gpu), "B/s"
    terms = deployment.predictor.explain(op, gpu) if explain else {}
    share = float(exposed_seconds(call, seconds)) / (call.count * seconds)
    if share != 1.0:
        # Hidden whole, its interval is still as wide as it is.
        estimate = estimate.scaled(max(share, 1e-9))
    is_new = deployment.engine.is_new_kernel(op, gpu)
    joules = float(np.ravel(board_under(gpu).dynamic_joules(op, seconds))[0])
    return KernelCost(call.name, op.family, call.count, estimate, float(achieved), limit, unit, terms, joules, is_new)


class FamilyShare(NamedTuple):
    family: str
    seconds: float
    share: float
    bound: str  # What holds the family's largest kernel back in an average step of the phase
    source: str  # What the estimate of that kernel rests on
    kernels: tuple[tuple[str, float], ...]  # (name, seconds) of each kernel, largest first


class Phase(NamedTuple):
    name: str
    steps: int
    tokens: int
    seconds: float
    gpu_seconds: float
    host_bound_seconds: float  # Time in which GPUs waited for the host within steps; of a pipeline, of all its stages
    families: tuple[FamilyShare, ...]
    waits_for: str = "host"  # What holds a GPU that waits within steps

    @property
    def whole(self) -> float:
        """What the families and waiting are shares of: the steps' time, of a pipeline that of all stages together."""
        return self.gpu_seconds + self.host_bound_seconds


def weakest_source(phases: tuple[Phase, ...]) -> str:
    counts = 0.05  # Share of a phase from which on a family's source counts
    families = [family for phase in phases for family in phase.families if family.share >= counts and family.source]
    return max((family.source for family in families), key=SOURCES.index)


def summarise_phases(
    deployment: Deployment, record: Record, timer: KernelTimer, *, receives: bool = False
) -> tuple[Phase, ...]:
    """Sum the kernels of all steps up by family; a decode pool ``receives`` prompts that are computed already."""
    return tuple(
        _summarise(name, totals, deployment, timer, receives) for name, totals in record.phases.items() if totals.steps
    )


def host_bound_share(phases: Sequence[Phase]) -> float:
    """Share of the time of all stages in which their GPUs waited within steps."""
    whole = sum(phase.whole for phase in phases)
    return sum(phase.host_bound_seconds for phase in phases) / whole if whole else 0.0


def _summarise(name: str, totals: PhaseTotals, deployment: Deployment, timer: KernelTimer, receives: bool) -> Phase:
    step = average_step(deployment, totals, receives=receives)
    reasons = {each.name: (str(each.estimate.bound), each.estimate.source) for each in step.kernels}
    reasons |= dict.fromkeys((GAPS[0], DRAFT_GAPS[0]), ("launch", "physics"))
    members: dict[str, dict[str, float]] = {}
    kernel_seconds = timer.kernel_seconds(totals.rows, totals.varying, totals.slowed).tolist()
    gpu_seconds = sum(kernel_seconds)
    for (kernel, family), seconds in zip(timer.kernels, kernel_seconds, strict=True):
        if seconds > 0:
            of_family = members.setdefault(family, {})
            of_family[kernel] = of_family.get(kernel, 0.0) + seconds
    families = []
    for family, parts in members.items():
        ranked = tuple(sorted(parts.items(), key=lambda part: -part[1]))
        seconds = sum(parts.values())
        bound, source = next((reasons[kernel] for kernel, _ in ranked if kernel in reasons), ("", ""))
        families.append(FamilyShare(family, seconds, seconds / gpu_seconds, bound, source, ranked))
    families.sort(key=lambda family: -family.seconds)
    return Phase(
        name=name, steps=totals.steps, tokens=totals.tokens, seconds=totals.seconds, gpu_seconds=gpu_seconds,
        host_bound_seconds=max(0.0, deployment.layout.pipeline * totals.seconds - gpu_seconds),
        families=tuple(families), waits_for="host" if deployment.layout.pipeline == 1 else "host, other stages",
    )  # fmt: skip


def average_step(deployment: Deployment, totals: PhaseTotals, *, receives: bool = False) -> StepCost:
    """Kernels of a step of the average size of a phase that is over; kept, because several parts of an answer ask."""
    known = _average_steps.get(totals)
    if known is None or known[0] is not deployment or known[1] != receives:
        shape = average_shape(totals, deployment.drafting)
        known = deployment, receives, estimate_shape(deployment, taken_in(shape) if receives else shape)
        _average_steps[totals] = known
    return known[2]


def average_shape(totals: PhaseTotals, drafting: Drafting | None = None) -> StepShape:
    """A step of the average size of a phase; with drafts, sequences of no more tokens than those verify them."""
    sequences = max(1, round(totals.sequences / totals.steps))
    new_tokens = max(1, round(totals.tokens / totals.sequences))
    context = round(totals.context / totals.sequences)
    sampled = max(1, round(totals.sampled / totals.steps))
    sizes = [new_tokens] * sequences, [context] * sequences, sampled
    if drafting is None:
        return StepShape(*sizes)
    verifying = sequences if new_tokens <= drafting.width else 0
    drafts = verifying * (new_tokens - 1)
    return DraftShape(*sizes, verifying, drafts, drafting.width, sequences, drafting.num_drafts)


def typical_shape(record: Record, totals: PhaseTotals, drafting: Drafting | None = None) -> StepShape:
    """The same with prompts and decoding sequences apart, for which attention is launched in different ways."""
    if totals is record.decoding:
        return average_shape(totals, drafting)
    served = ~np.isnan(record.first_token)
    num_prompts = max(1, round(np.count_nonzero(served) / totals.steps))
    num_decodes = max(0, round(totals.sequences / totals.steps) - num_prompts)
    prompt_tokens = max(1, round((totals.tokens / totals.steps - num_decodes) / num_prompts))
    cached = round(float(record.num_cached[served].mean()))
    context = totals.context / totals.steps
    if not num_decodes:
        return StepShape([prompt_tokens] * num_prompts, [round(context / num_prompts)] * num_prompts, num_prompts)
    before = max(1, round((context - num_prompts * cached) / num_decodes))
    sampled = max(1, round(totals.sampled / totals.steps))
    return StepShape(
        [prompt_tokens] * num_prompts + [1] * num_decodes,
        [cached] * num_prompts + [before] * num_decodes,
        min(sampled, num_prompts + num_decodes),
    )


class StepTime(NamedTuple):
    """One step."""

    gpu: float  # Seconds on the GPU
    host: float  # Seconds of the engine's thread for it
    start: float  # Seconds on the clock at which the GPU begins ...
    end: float  # ... and the seconds at which it ends.
    ready: float  # Seconds on the clock at which its tokens leave the engine


class StepPredictor:
    """The time of each batch of a deployment, as a scheduler plans them one after the other.

    >>> predictor = StepPredictor.of("llama-3.1-8b", "h200-sxm")
    >>> step = predictor.step(prompts=[(512, 0)], decodes=[1000, 2000])
    >>> step.gpu > 0 and predictor.num_blocks > 0
    True
    """

    def __init__(self, deployment: Deployment) -> None:
        if deployment.stages is not None:
            raise InputError("a StepPredictor has one clock for all GPUs; pipeline_parallel_size must be 1")
        self.deployment = deployment
        self.replica = replica = deployment.replica()
        self.num_blocks: int = replica.num_blocks
        self.block_size: int = replica.kv_shape.block_size
        self.max_model_len: int | None = replica.max_model_len
        self.steps_under_way: int = replica.steps_under_way  # 2: a step is launched before the one before has ended
        self.clock = Timeline()
        self._noise = StepNoise(replica.settle_seconds, replica.launch_spread)
        self._under_way: deque[tuple[float, float]] = deque()  # When steps end, and what their results take

    @staticmethod
    def of(model: ModelSource, gpu: GpuSource, **options: Any) -> StepPredictor:
        """Of a deployment with the options of `deploy`."""
        return StepPredictor(deploy(model, gpu, **options))

    def seconds(self, prompts: Prompts = (), decodes: Sequence[int] = ()) -> tuple[float, float]:
        """GPU and host seconds of a batch: (new, computed) tokens of each prompt, contexts of decoding sequences."""
        estimate = self.replica.timer(_batch_shape(prompts, decodes))
        return estimate.gpu_seconds[0], estimate.host.total

    def launch(
        self, prompts: Prompts = (), decodes: Sequence[int] = (), at: float | None = None, *, unfinished: int = 0
    ) -> StepTime:
        """Launch a batch on the clock, not before ``at``; ``unfinished``: prompts of it that have tokens left."""
        if at is not None and at > self.clock.clock:
            self.clock.sleep_until(at)
        shape = _batch_shape(prompts, decodes, unfinished)
        estimate = self.replica.timer(shape)
        if not shape.is_decode:
            estimate = self._noise.meet(estimate, self.clock.clock, self.clock.gpu_free)
        span = self.clock.launch(estimate.host, estimate.gpu_seconds[0])
        self._under_way.append((span.end, estimate.host.process))
        return StepTime(estimate.gpu_seconds[0], estimate.host.total, span.start, span.end, inf)

    def take_in(self) -> float:
        """Wait for the oldest batch that was launched; returns when its tokens leave the engine."""
        return self.clock.take_in(*self._under_way.popleft())

    def step(self, prompts: Prompts = (), decodes: Sequence[int] = (), at: float | None = None) -> StepTime:
        """Launch a batch and wait for its result."""
        return self.launch(prompts, decodes, at)._replace(ready=self.take_in())


def _batch_shape(prompts: Prompts, decodes: Sequence[int], unfinished: int = 0) -> StepShape:
    new, computed = [1] * len(decodes) + [each for each, _ in prompts], [*decodes, *(each for _, each in prompts)]
    return StepShape(new, computed, len(new) - unfinished)
