"""The time of one step: kernels from tables by size, attention by batch, drafts, and corrections by measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, repeat
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from weakref import WeakMethod

import numpy as np

from infercast.engines.host import Costs, DraftPasses, Graphs, HostModel
from infercast.engines.settings import Resolved
from infercast.engines.speculation import Drafting
from infercast.engines.tables import (
    DecodeSurface,
    PromptSurface,
    Table,
    fuse_prefill_decode,
    grid_seconds,
    in_parts,
    products_of,
    sequence_kernels,
    sparse_sizes,
    weighted_sum,
)
from infercast.hardware import Gpu
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.models.images import encoder_calls
from infercast.models.layout import ParallelLayout
from infercast.models.lower import DRAFT_PREFIX, attention_calls, head_calls, lora_calls, token_calls, verify_calls
from infercast.models.mixers.mixer import GroupedAttention
from infercast.models.spec import ModelConfig, VisionPart
from infercast.ops import Attention, Call, Gemm
from infercast.ops.op import Quantity, Size, rejection
from infercast.predict.board_power import (
    FULL_SHARE,
    THROTTLED,
    longest_limited,
    power_limits,
    tensor_load,
    throttle_decoding,
    throttle_fraction,
)
from infercast.predict.estimate import exposed_seconds, padded
from infercast.predict.roofline import Predictor, overlapped_share
from infercast.serve.step import (
    ChangedTimer,
    Contexts,
    DraftShape,
    GroupShape,
    GroupTimer,
    HostCost,
    Prompts,
    StepEstimate,
    StepShape,
    estimated,
)
from infercast.serve.workload.request import NEVER, Image

if TYPE_CHECKING:
    from infercast.serve.scheduler.encoder import Encoder


class TimedDeployment(Protocol):
    @property
    def model(self) -> ModelConfig: ...  # As the engine runs it
    @property
    def layout(self) -> ParallelLayout: ...
    @property
    def gpu(self) -> Gpu: ...
    @property
    def settings(self) -> Resolved: ...
    @property
    def predictor(self) -> Predictor: ...
    @property
    def graphs(self) -> Graphs: ...
    @property
    def host_model(self) -> HostModel: ...
    @property
    def drafting(self) -> Drafting | None: ...
    @property
    def draft_passes(self) -> DraftPasses: ...
    def weight_waits(self, tokens: Table, seconds: Table) -> Table | None:
        """Seconds that steps of these tokens and kernel times wait for weights in host memory."""


ONE = np.array([1])


class Padding(NamedTuple):
    """Minimum attention time of decoding sequences in a step with prefill, over all launches."""

    per_key: float = 0.0
    window: float = inf

    def seconds(self, sequences: int, keys: int) -> float:
        return self.per_key * min(keys, self.window * sequences) if self.per_key else 0.0


def padded_in(config: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> dict[str, Padding]:
    """By kernel name (`predict.estimate.padded`); Triton's, which attention with sinks runs, packs query heads."""
    if any(isinstance(stack.mixer, GroupedAttention) and stack.mixer.sinks for stack in config.stacks):
        return {}
    found: dict[str, Padding] = {}
    for call in attention_calls(config, layout, ONE, ONE):
        if isinstance(call.op, Attention) and call.name not in found:
            found[call.name] = Padding(call.count * padded(call.op, gpu), call.op.window or inf)
    return found


GAPS = ("between kernels", "gaps")  # GPU idle time between a step's kernels is listed with them ...
DRAFT_GAPS = (f"{DRAFT_PREFIX}{GAPS[0]}", GAPS[1])  # ... and between draft kernels.
WAITS = ("waits for weights in host memory", GAPS[1])


Method = TypeVar("Method", bound=Callable[..., Any])


def weakly(method: Method) -> Method:
    """The method for a part of its own object, which goes with its tables as soon as nobody has it."""
    found = WeakMethod(method)

    def call(*given: Any) -> Any:
        return cast("Method", found())(*given)

    return cast("Method", call)


class KernelTimer:
    """A step timer: kernels by tokens or sampled rows come from two tables, attention is timed during the run."""

    rows_a_sequence = 1

    def __init__(self, deployment: TimedDeployment) -> None:
        config, layout, gpu, predictor = deployment.model, deployment.layout, deployment.gpu, deployment.predictor
        self._config, self._layout, self._gpu, self._predictor = config, layout, gpu, predictor
        self._graphs, self._host = deployment.graphs, deployment.host_model
        self._waited_share = self._host.waited_share
        settings, sizes = deployment.settings, self._graphs.sizes
        max_sequences, max_tokens = settings.max_num_seqs, max(settings.max_num_batched_tokens, *sizes, 1)
        max_rows = max_sequences * self.rows_a_sequence
        # Row i of a table is the step of i tokens, or i sampled rows; a step that samples nothing still runs the head.
        token_sizes, row_sizes = np.arange(1, max_tokens + 1), np.arange(1, max_rows + 1)
        if not predictor.is_cheap:
            token_sizes, row_sizes = sparse_sizes(max_tokens, sizes), sparse_sizes(max_rows, ())
        by_tokens = self._by_tokens(token_sizes)
        by_rows = self._by_rows(row_sizes)
        of_adapters = lora_calls(config, layout, token_sizes)
        by_sequence, launches = sequence_kernels(
            self._by_sequence, has_images=config.vision is not None and config.vision.images is not None
        )
        self._attention_names = {name: column for column, name in enumerate(by_sequence)}
        self._attention_launches = [launches[name] for name in by_sequence]
        found = padded_in(config, layout, gpu)
        self._padded = [found.get(name, Padding()) for name in by_sequence]
        self._is_padded, self._not_padded = any(each.per_key for each in self._padded), [0.0] * len(self._padded)
        tabled = self._overlapped(self._time_table(by_tokens, token_sizes, max_tokens), by_tokens, token_sizes)
        waits = deployment.weight_waits(np.arange(max_tokens + 1), tabled.sum(axis=1))
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in by_tokens),
            *(() if waits is None else (WAITS,)),
            *((call.name, call.op.family) for call in by_rows),
            GAPS,
            *((call.name, call.op.family) for call in of_adapters),
            *by_sequence.items(),
        )  # (name, family) of each kernel: those of the tables, then attention
        # The power limit: GEMM FLOP of each step size, and which kernels are slowed down.
        products = np.interp(
            np.arange(max_tokens + 1), token_sizes, np.broadcast_to(products_of(by_tokens), token_sizes.shape)
        )
        self._throttled = [family in THROTTLED for _, family in self.kernels]
        longer = throttle_decoding(gpu, products, tabled.sum(axis=1)) - 1.0
        decoding = tabled * (1.0 + np.outer(longer, self._throttled[: len(by_tokens)]))
        if layout.all_to_all and (parts := getattr(settings, "parts", ())):
            tabled, decoding = in_parts([tabled, decoding], by_tokens, *parts)
        waiting = [] if waits is None else [np.tile(waits, 2)]
        self._token_table = np.column_stack([np.vstack([tabled, decoding]), *waiting])
        """Steps with prefill, then decode-only steps, whose clock has settled."""
        self._decoding_row, head = len(tabled), self._time_table(by_rows, row_sizes, max_rows)
        self._row_table = np.column_stack([head, np.full(len(head), self._host.gap_seconds)])
        self._token_seconds: list[float] = self._token_table.sum(axis=1).tolist()
        self._row_seconds: list[float] = self._row_table.sum(axis=1).tolist()
        # LoRA adapters: time added to a step, by tokens; 0 in the first row, for steps without any.
        self._adapter_table = self._time_table(of_adapters, token_sizes, max_tokens) if of_adapters else None
        if self._adapter_table is not None:
            self._adapter_table[0] = 0.0
        self._no_adapters = () if self._adapter_table is None else (0,)
        self._surfaces = None
        if not predictor.is_cheap:
            decode = DecodeSurface(weakly(self._time_sequences), max_sequences, settings.max_model_len)
            self._surfaces = decode, PromptSurface(weakly(self._time_sequences), max_tokens, settings.max_model_len)
        self._decoding = cache(weakly(self._look_at_decoding))
        self._prompting = cache(partial(self._graphs.launch, is_decode=False))
        self._products, self._limited_below = products.tolist(), longest_limited(gpu, products).tolist()
        self._limit = gpu.dense_flops("bf16"), power_limits(gpu).max_slowdown, power_limits(gpu).unthrottled_load
        """Tensor core peak, the maximum slowdown of GEMMs, and the share of the peak above which it starts."""
        self._throttled_seconds = (tabled * self._throttled[: len(by_tokens)]).sum(axis=1).tolist()

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        if self._surfaces is None:
            return self._time_each(shape, steps)
        prompts = shape.prompts
        if not prompts:
            return KernelTimer.decode(self, shape.num_tokens, shape.total_computed, list, steps, shape.num_sampled)
        count, computed = shape.num_sequences - len(prompts), shape.total_computed - sum([each for _, each in prompts])
        return KernelTimer.compute(self, prompts, shape.num_sampled - count, count, computed, list)

    def decode(
        self, count: int, computed: int, contexts: Contexts, steps: int, sampled: int | None = None
    ) -> StepEstimate:
        if self._surfaces is None:
            return self._time_each(GroupShape(count, computed, contexts), steps)
        rows, host, dense = self._decoding(count, count if sampled is None else sampled)
        attention = self._surfaces[0](count, computed + count, steps)
        each = attention[0] if len(attention) == 1 else [sum(kernels) for kernels in zip(*attention, strict=True)]
        return estimated(([*map(dense.__add__, each)], attention, host, rows, 0.0, 0.0, 0.0))

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        if self._surfaces is None or not prefills or min(prefills)[0] == 1:
            if self._surfaces is None or max(prefills, default=(2, 0))[0] > 1 or self.rows_a_sequence > 1:
                return self(GroupShape(count, computed, contexts, prefills, num_first))
            total, together = computed + sum([each for _, each in prefills]), count + len(prefills)
            return KernelTimer.decode(self, together, total, list, 1, count + num_first)
        time_decoding, time_prompts = self._surfaces
        attention, tokens = time_prompts(prefills), count
        for new, _ in prefills:
            tokens += new
        if count:
            # Both in one launch, except where each form has a kernel of its own, which the other does not use.
            keys = computed + count
            decodes = chain.from_iterable(time_decoding(count, keys))
            padded = [each.seconds(count, keys) for each in self._padded] if self._is_padded else self._not_padded
            attention = [*map(fuse_prefill_decode, attention, decodes, self._attention_launches, padded)]
        return self._put_together(tokens, len(prefills) + count, len(prefills), count + num_first, attention)

    def _put_together(
        self, tokens: int, sequences: int, prompts: int, sampled: int, attention: list[float]
    ) -> StepEstimate:
        launch, padded = self._prompting(tokens)
        attending, target, share = sum(attention), 0.0, 0.0
        seconds = self._token_seconds[padded] + self._row_seconds[sampled] + attending
        throttled = self._throttled_seconds[padded] + attending
        if seconds < self._limited_below[padded]:
            peak, most, free = self._limit
            target = most * tensor_load(peak, self._products[padded], seconds, free)
            share = target * throttle_fraction(seconds) if target else 0.0
            seconds += share * throttled
        host = self._host.cost(launch, sequences, tokens, prompts)
        if self._waited_share:
            host = host.waiting(self._waited_share * seconds)
        rows, longer = (padded, sampled, *self._no_adapters), 1.0 + share
        return estimated(([seconds], [[longer * each] for each in attention], host, rows, share, target, throttled))

    @property
    def _tables(self) -> tuple[Table, ...]:
        """By tokens, by sampled rows, and the time added by adapters, if any."""
        more = () if self._adapter_table is None else (self._adapter_table,)
        return self._token_table, self._row_table, *more

    def kernel_seconds(
        self, rows: Sequence[Mapping[int, float]], varying: Sequence[float], slowed: Mapping[int, float]
    ) -> Table:
        """Seconds of each kernel over many steps, from row counts and the varying parts of the estimates."""
        parts = [weighted_sum(counts, table) for counts, table in zip(rows, self._tables, strict=True)]
        parts[0] += weighted_sum(slowed, self._token_table) * self._throttled[: parts[0].size]
        return np.concatenate([*parts, varying])

    def step_kernels(self, rows: Sequence[Table], varying: Table, slowed: Table) -> Table:
        by_tokens = self._token_table[rows[0]]
        by_tokens = by_tokens + by_tokens * np.outer(slowed, self._throttled[: by_tokens.shape[1]])
        others = [table[row] for table, row in zip(self._tables[1:], rows[1:], strict=True)]
        return np.concatenate([by_tokens, *others, varying], axis=1)

    def row_seconds(self, table: int, rows: Table) -> Table:
        return np.asarray(self._tables[table][rows])

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        """The kernels of these rows, one per column, with launches per step; the trailing gaps are not included."""
        if table == 2:  # adapter kernels run where there are tokens with any
            calls = lora_calls(self._config, self._layout, np.maximum(rows, 1))
            return [(call, call.count * (rows > 0)) for call in calls]
        calls = (
            self._by_rows(np.maximum(rows, 1)) if table else self._by_tokens(np.maximum(self.computed_tokens(rows), 1))
        )
        return [(call, call.count) for call in calls]

    def slowed_seconds(self, rows: Table, slowed: Table) -> Table:
        """Total seconds of the first table's kernels, with GEMMs slowed by these shares."""
        each = self.row_seconds(0, rows)
        return np.asarray((each + each * np.outer(slowed, self._throttled[: each.shape[1]])).sum(axis=1))

    def limit_felt(self, rows: Table, slowed: Table, seconds: Table) -> Table:
        """How far the power limit was in effect in steps of these rows, from 0 to 1; decode steps repeat until then."""
        if power_limits(self._gpu).always:  # even reading memory exceeds the limit
            return np.ones(rows.shape)
        peak, most, free = self._limit
        products = np.array(self._products)[self.computed_tokens(rows)]
        heavy = np.clip((products / np.maximum(seconds, 1e-12) / peak - free) / (FULL_SHARE - free), 0.0, 1.0)
        told = np.where(most * heavy > 0, slowed / np.maximum(most * heavy, 1e-12), 0.0)
        alone = np.array([throttle_fraction(each) for each in seconds.tolist()])
        return np.where(rows >= self._decoding_row, 1.0, np.clip(np.maximum(told, alone), 0.0, 1.0))

    def sequence_calls(self, queries: Table, keys: Table) -> list[tuple[int, Call, Quantity]]:
        """Attention of one batch: each kernel's column after the tables, the kernel, and seconds of one launch."""
        calls = self._by_sequence(queries, keys)
        return [(self._attention_names[call.name], call, self._predictor.seconds(call.op, self._gpu)) for call in calls]

    def computed_tokens(self, rows: Table) -> Table:
        """Tokens computed by steps, including padding, by their rows of the first table."""
        return np.asarray(rows % self._decoding_row)

    @property
    def adapted(self) -> GroupTimer | None:
        """The timer for steps with an adapter; None without adapter slots."""
        if self._adapter_table is None:
            return None
        return ChangedTimer(self, lambda estimate, _: self.with_adapters(estimate))

    def with_adapters(self, estimate: StepEstimate) -> StepEstimate:
        """A step with an adapter: its kernels run for all tokens, including padding."""
        assert self._adapter_table is not None
        padded = estimate.rows[0] % self._decoding_row
        more, has_prompts = float(self._adapter_table[padded].sum()), estimate.rows[0] < self._decoding_row
        return estimate._replace(
            gpu_seconds=[seconds + more for seconds in estimate.gpu_seconds],
            host=estimate.host.waiting(self._waited_share * more) if has_prompts else estimate.host,
            rows=(*estimate.rows[:2], padded, *estimate.rows[3:]),
        )

    def _by_tokens(self, tokens: Size) -> list[Call]:
        return token_calls(self._config, self._layout, tokens)

    def _by_rows(self, rows: Size) -> list[Call]:
        return head_calls(self._config, self._layout, rows)

    def _by_sequence(self, queries: Table, keys: Table, sequences: Table | int = 1) -> list[Call]:
        return attention_calls(self._config, self._layout, queries, keys, sequences)

    def _look_at_decoding(self, tokens: int, sampled: int) -> tuple[tuple[int, ...], HostCost, float]:
        """What steps of this many decoding sequences share: rows of tables, host, and seconds by the tables."""
        launch, padded = self._graphs.launch(tokens, is_decode=True)
        row = self._decoding_row + padded
        seconds = self._token_seconds[row] + self._row_seconds[sampled]
        return (row, sampled, *self._no_adapters), self._host.cost(launch, tokens, tokens, 0), seconds

    def _time_each(self, shape: StepShape, steps: int) -> StepEstimate:
        queries, keys = np.array(shape.new_tokens), np.array(shape.new_tokens) + shape.computed
        if shape.prompts:
            (attention,) = self._time_sequences(queries, keys).tolist()
            prompts = len(shape.prompts)
            return self._put_together(shape.num_tokens, shape.num_sequences, prompts, shape.num_sampled, attention)
        most_batches = 32  # Batches timed at once when every sequence is timed individually
        keys = keys + np.arange(min(steps, most_batches))[:, None]
        times = self._time_sequences(queries[None, :], keys)
        rows, host, dense = self._decoding(shape.num_tokens, shape.num_sampled)
        return StepEstimate([dense + sum(kernels) for kernels in times.tolist()], times.T.tolist(), host, rows)

    def _time_sequences(self, queries: Table, keys: Table, sequences: Table | int = 1) -> Table:
        rows = keys.shape[0] if keys.ndim > 1 else 1
        return self._time_calls(self._by_sequence(queries, keys, sequences), rows)

    def _time_calls(self, calls: list[Call], rows: int) -> Table:
        seconds = np.zeros((rows, len(self._attention_names)))
        for call in calls:
            column = self._attention_names[call.name]
            seconds[:, column] += exposed_seconds(call, grid_seconds(self._predictor, call.op, self._gpu))
        return seconds

    def _overlapped(self, table: Table, calls: list[Call], sizes: Table) -> Table:
        for names in self._config.edits.overlap:
            places = [place for place, call in enumerate(calls) if call.name in names]
            share = overlapped_share([calls[place] for place in places], self._predictor, self._gpu)
            table[:, places] *= np.interp(np.arange(len(table)), sizes, share)[:, None]
        return table

    def _time_table(self, calls: list[Call], sizes: Table, most: int) -> Table:
        """Seconds of each kernel (columns) for each size up to ``most`` (rows), over all launches of the step."""
        table = np.empty((most + 1, len(calls)))
        for column, call in enumerate(calls):
            # A single size yields a scalar, not an array.
            seconds = np.broadcast_to(
                exposed_seconds(call, grid_seconds(self._predictor, call.op, self._gpu)), np.shape(sizes)
            )
            table[:, column] = np.interp(np.arange(most + 1), sizes, seconds)
        return table


class ImageCost:
    """Seconds of the image encoder on GPU and host, by the images of a step; its kernels are launched one by one, and
    while they are, the language model's wait. Constants are of Qwen3-VL-8B under vLLM 0.33, by the logs of its engine.
    """

    def __init__(self, deployment: TimedDeployment, part: VisionPart, kernel_seconds: float) -> None:
        """``kernel_seconds``: of the host, for each kernel."""
        self._part, self._kernel_seconds, self._deployment = part, kernel_seconds, deployment
        self._known: dict[tuple[tuple[int, int, int], ...], tuple[float, float]] = {}

    def __call__(self, images: Sequence[Image]) -> tuple[float, float]:
        grids = tuple(sorted(image.grid for image in images))
        if grids not in self._known:
            self._known[grids] = self._time(grids)
        return self._known[grids]

    def _time(self, grids: tuple[tuple[int, int, int], ...]) -> tuple[float, float]:
        part, gpu, predictor = self._part, self._deployment.gpu, self._deployment.predictor
        assert part.images is not None
        tensor = self._deployment.layout.tensor if part.split else 1
        base = self._deployment.model.weights.base
        calls = encoder_calls(part.images, part.layers, part.hidden, tensor, grids, base)
        seconds = sum(float(np.ravel(exposed_seconds(call, predictor.seconds(call.op, gpu)))[0]) for call in calls)
        beside, slower = 200, 1.12  # Launches for positions, angles and patches; kernels than by themselves
        launching = self._kernel_seconds * (beside + sum(call.count for call in calls))
        return max(slower * seconds, launching), launching


def encoder_of(deployment: TimedDeployment, kernel_seconds: float, most_tokens: int | None = None) -> Encoder | None:
    """The image encoder, if it is known; a step encodes ``most_tokens`` or the largest image (None: any number)."""
    part = deployment.model.vision
    if part is None or part.images is None:
        return None
    from infercast.serve.scheduler.encoder import Encoder  # noqa: PLC0415 - most models have no encoder

    most = NEVER if most_tokens is None else max(most_tokens, part.images.most_embeds)
    # By the log of its server: decoding, resizing, scaling, hashing, and on to the engine's process
    request_seconds, pixel_seconds = 6e-3, 21e-9
    return Encoder(ImageCost(deployment, part, kernel_seconds), most, request_seconds, pixel_seconds)


class DraftingTimer(KernelTimer):
    """A timer of steps that verify and draft, with a table of passes by number of drafts and sequences."""

    def __init__(self, deployment: TimedDeployment) -> None:
        drafting, layout, settings = deployment.drafting, deployment.layout, deployment.settings
        assert drafting is not None
        self._drafting, self._draft = drafting, drafting.draft
        in_last_stage = replace(layout, pipeline=1)
        self._draft_layout = replace(in_last_stage, tensor=1, data=1) if drafting.tensor == 1 else in_last_stage
        self._passes = deployment.draft_passes
        self.rows_a_sequence, self._most_tokens = drafting.width, settings.max_num_batched_tokens
        self._most_sequences, self._longest = settings.max_num_seqs, settings.max_model_len
        super().__init__(deployment)
        by_sequence = len(self._attention_names)
        names, self._draft_table = self._table_of_drafts()
        self.kernels = (*self.kernels[: len(self.kernels) - by_sequence], *names, *self.kernels[-by_sequence:])
        self._draft_seconds: list[float] = self._draft_table.sum(axis=1).tolist()
        longest = self._longest
        self._surfaces = (
            DecodeSurface(weakly(self._time_sequences), self._most_sequences, longest),
            PromptSurface(weakly(self._time_sequences), max(settings.max_num_batched_tokens, 1), longest),
        )
        self._verifying = cache(weakly(self._surface_of_width))
        self._single = DecodeSurface(weakly(self._time_single), self._most_sequences, longest)
        self._settled = cache(weakly(self._look_at_step))

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        if not isinstance(shape, DraftShape):
            estimate = super().__call__(shape, steps)
            return estimate._replace(rows=(*estimate.rows, 0))
        attention = self._attention(shape)
        passes = min(self._drafting.passes, shape.num_next) if shape.num_drafting else 0
        # The drafter runs for every sequence in the step; for unfinished prompts the result is not used.
        number = shape.num_sequences
        if passes > 1:
            again = self._single.next_step(number, shape.total_computed + shape.num_tokens)
            attention = [each + (passes - 1) * more for each, more in zip(attention, again, strict=True)]
        row = passes * (self._most_sequences + 1) + number
        drafts = self._draft_seconds[row]
        if shape.prompts:
            whole = self._put_together(
                shape.num_tokens, number, len(shape.prompts), shape.num_sampled, attention, shape.num_verifying
            )
            launch, _ = self._prompting(shape.num_tokens)
            host = whole.host.plus(self._passes.cost(launch, passes, number, has_prompts=True))
            return whole._replace(gpu_seconds=[whole.gpu_seconds[0] + drafts], host=host, rows=(*whole.rows, row))
        of_tokens, host, dense = self._settled(shape.num_tokens, shape.num_sampled, number, shape.is_decode, passes)
        seconds = dense + sum(attention) + drafts
        rows = (of_tokens, shape.num_sampled, *self._no_adapters, row)
        return StepEstimate([seconds], [[each] for each in attention], host, rows)

    def decode(
        self, count: int, computed: int, contexts: Contexts, steps: int, sampled: int | None = None
    ) -> StepEstimate:
        return self(self._group(count, computed, ()))

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        return self(self._group(count, computed, prefills))

    def _group(self, count: int, computed: int, prefills: Prompts) -> DraftShape:
        width, drafts = self._drafting.width, self._drafting.num_drafts
        room = self._most_tokens - sum([each for each, _ in prefills])
        computed, count = computed // max(count, 1), max(0, min(count, room // width))
        new = [width] * count + [each for each, _ in prefills]
        before = [computed] * count + [each for _, each in prefills]
        return DraftShape(new, before, width * count + len(prefills), count, drafts * count, width, len(new), drafts)

    def _attention(self, shape: DraftShape) -> list[float]:
        assert self._surfaces is not None
        of_single, of_prompts = self._surfaces
        verifying, prompts = shape.num_verifying, shape.prompts
        found = of_prompts(prompts) if prompts else None
        if verifying:
            computed = sum(shape.computed[:verifying])
            each = self._time_verifying(verifying, shape.num_drafts, computed, of_single)
            found = (
                each
                if found is None
                else [*map(fuse_prefill_decode, found, each, self._attention_launches, repeat(0.0))]
            )
        assert found is not None
        return found

    def _time_verifying(self, count: int, num_drafts: int, computed: int, of_single: DecodeSurface) -> list[float]:
        """Sequences with drafts, mixed with those without."""
        most = self._drafting.num_drafts
        if not num_drafts:
            return of_single.next_step(count, computed + count)
        with_drafts = min(count, -(-num_drafts // most))
        if self._drafting.by_batch:
            with_drafts = count
        width = 1 + max(1, round(num_drafts / with_drafts))
        share = with_drafts / count
        seconds = self._verifying(width).next_step(with_drafts, int(share * computed) + with_drafts * width)
        if with_drafts == count:
            return seconds
        others = of_single.next_step(count - with_drafts, computed - int(share * computed) + count - with_drafts)
        return [*map(fuse_prefill_decode, seconds, others, self._attention_launches, repeat(0.0))]

    def _put_together(
        self, tokens: int, sequences: int, prompts: int, sampled: int, attention: list[float], verifying: int = 0
    ) -> StepEstimate:
        """A step with prefill; for the host, verified drafts cost no more than one token per sequence."""
        whole = super()._put_together(tokens, sequences, prompts, sampled, attention)
        launch, _ = self._prompting(tokens)
        plain = self._host.cost(launch, sequences, tokens - verifying * self._drafting.num_drafts, prompts)
        return whole._replace(host=plain.waiting(self._waited_share * whole.gpu_seconds[0]))

    def _look_at_step(
        self, tokens: int, sampled: int, sequences: int, uniform: bool, passes: int
    ) -> tuple[int, HostCost, float]:
        """What steps without prefill have in common: token row, host cost, and seconds from the tables."""
        launch, padded = self._graphs.launch(tokens, uniform)
        row = self._decoding_row + padded
        host = self._host.cost(launch, sequences, sequences, 0)
        host = host.plus(self._passes.cost(launch, passes, sequences, has_prompts=False))
        return row, host, self._token_seconds[row] + self._row_seconds[sampled]

    def _by_tokens(self, tokens: Size) -> list[Call]:
        """The target's kernels, and those of the first draft pass."""
        calls = super()._by_tokens(tokens)
        if self._draft is None:
            return calls
        return [*calls, *self._draft.combining_calls(tokens), *self._draft.pass_calls(self._draft_layout, tokens)]

    def _by_rows(self, rows: Size) -> list[Call]:
        return [*super()._by_rows(rows), Call("rejection", rejection(rows, self._config.vocabulary))]

    def _by_sequence(self, queries: Table, keys: Table, sequences: Table | int = 1) -> list[Call]:
        calls = super()._by_sequence(queries, keys, sequences)
        if self._draft is None:
            return calls
        return [*calls, *self._draft.attention_calls(self._draft_layout, queries, keys, sequences)]

    def _surface_of_width(self, width: int) -> DecodeSurface:
        """Attention of sequences that verify ``width`` tokens each, and of the first draft pass over them."""
        return DecodeSurface(partial(weakly(self._time_width), width), self._most_sequences, self._longest)

    def _time_width(self, width: int, _: Table, keys: Table, sequences: Table | int = 1) -> Table:
        calls = verify_calls(self._config, self._layout, width, keys, sequences)
        if self._draft is not None:
            calls += self._draft.verify_calls(self._draft_layout, width, keys, sequences)
        return self._time_calls(calls, keys.shape[0])

    def _time_single(self, queries: Table, keys: Table, sequences: Table | int = 1) -> Table:
        calls = [] if self._draft is None else self._draft.attention_calls(self._draft_layout, queries, keys, sequences)
        return self._time_calls(calls, keys.shape[0])

    def _table_of_drafts(self) -> tuple[tuple[tuple[str, str], ...], Table]:
        most, draft = self._most_sequences, self._draft
        if draft is None:
            return (), np.zeros((most + 1, 0))
        layout, graphs, drafting = self._draft_layout, self._passes, self._drafting
        counts = np.arange(most + 1)
        padded = np.array([graphs.padded(count) for count in counts.tolist()])
        first = padded * drafting.width if drafting.heads_all else counts
        padded *= drafting.branches
        sizes = sparse_sizes(int(max(padded.max(), first.max())), ())
        heads, calls = draft.head_calls(layout, sizes), draft.pass_calls(layout, sizes)
        head = self._time_table(heads, sizes, int(sizes[-1]))
        later = self._time_table(calls, sizes, int(sizes[-1]))[padded]
        rows = [np.zeros((most + 1, len(heads) + len(calls) + 1))]
        products = np.array([isinstance(call.op, Gemm) for call in heads])
        for passes in range(1, drafting.num_drafts + 1):
            verifies = products & (passes == drafting.num_drafts)
            of_heads = np.where(verifies, head[first], head[counts]) + (passes - 1) * head[padded]
            gaps = np.full(most + 1, passes * graphs.gap_seconds)
            rows.append(np.column_stack([of_heads, (passes - 1) * later, gaps]))
        named = ((call.name, call.op.family) for call in (*heads, *calls))
        return (*named, DRAFT_GAPS), np.vstack(rows)

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        """The kernels of these rows; those of the last table run once per pass, or per later pass."""
        if table < len(super()._tables):
            return super().row_calls(table, rows)
        if self._draft is None:
            return []
        passes, count = np.divmod(rows, self._most_sequences + 1)
        sizes = np.maximum(count, 1)
        heads = self._draft.head_calls(self._draft_layout, sizes)
        calls = self._draft.pass_calls(self._draft_layout, sizes * self._drafting.branches)
        later = np.maximum(passes - 1, 0)
        return [*((call, call.count * passes) for call in heads), *((call, call.count * later) for call in calls)]

    @property
    def _tables(self) -> tuple[Table, ...]:
        return *super()._tables, self._draft_table


# Corrections of estimates by a user's own measurements.


class Factor(NamedTuple):
    value: float
    spread: float  # Standard deviation: of the factor's logarithm, or of the seconds


@dataclass(frozen=True, slots=True)
class Corrections:
    """What is known better than the estimates; None: nothing."""

    host: Factor | None = None  # On all work of the engine's thread, and on request and token paths
    prompts: Factor | None = None  # On GPU time of steps with prefill ...
    decodes: Factor | None = None  # ... and of decode-only steps.
    path: Factor | None = None  # Added seconds of a request's path to the engine: API server, network
    title: str = ""
    notes: tuple[str, ...] = ()

    def corrected(self, host: Costs) -> Costs:
        if self.host is not None and self.host.value != 1.0:
            speed = 1.0 / self.host.value
            host = host.sped_up(speed, f"{host.title}, {speed:.2f} times as fast by calibration")
        if self.path is not None and self.path.value:
            host = replace(host, request_path=max(host.request_path + self.path.value, 0.0))
        return host

    def __str__(self) -> str:
        named = (("host", self.host), ("steps with prompts", self.prompts), ("decode steps", self.decodes))
        parts = [f"{name} x {factor.value:.3f}" for name, factor in named if factor is not None]
        parts += [] if self.path is None else [f"{1e3 * self.path.value:+.1f} ms before the engine"]
        return f"{self.title}: {', '.join(parts)}"

    @property
    def changes_steps(self) -> bool:
        return any(each is not None and each.value != 1.0 for each in (self.prompts, self.decodes))


class CorrectedTimer(KernelTimer):
    def __init__(self, timer: KernelTimer, corrections: Corrections) -> None:
        # Delegates everything; it has no tables of its own.
        self._own = timer
        self.kernels = timer.kernels
        self.rows_a_sequence = timer.rows_a_sequence
        self._decoding_row, self._adapter_table = timer._decoding_row, timer._adapter_table
        self._factors = [1.0 if each is None else each.value for each in (corrections.prompts, corrections.decodes)]

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        return self._longer(self._own(shape, steps))

    def decode(
        self, count: int, computed: int, contexts: Contexts, steps: int, sampled: int | None = None
    ) -> StepEstimate:
        return self._longer(self._own.decode(count, computed, contexts, steps, sampled))

    def compute(self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        return self._longer(self._own.compute(prefills, num_first, count, computed, contexts))

    def kernel_seconds(
        self, rows: Sequence[Mapping[int, float]], varying: Sequence[float], slowed: Mapping[int, float]
    ) -> Table:
        """Seconds of each kernel over many steps; the steps of one phase are all, or nearly all, of one kind."""
        counts = rows[0] if rows else {}
        decodes = sum(count for row, count in counts.items() if row >= self._decoding_row)
        share = decodes / max(sum(counts.values()), 1e-30)
        factor = (1 - share) * self._factors[0] + share * self._factors[1]
        return factor * self._own.kernel_seconds(rows, [each / factor for each in varying], slowed)

    def step_kernels(self, rows: Sequence[Table], varying: Table, slowed: Table) -> Table:
        factors = self._factors_of(rows[0])[:, None]
        return np.asarray(factors * self._own.step_kernels(rows, varying / factors, slowed))

    def row_seconds(self, table: int, rows: Table) -> Table:
        each = self._own.row_seconds(table, rows)
        return each if table else each * self._factors_of(rows)[:, None]

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        return self._own.row_calls(table, rows)

    def slowed_seconds(self, rows: Table, slowed: Table) -> Table:
        return np.asarray(self._factors_of(rows) * self._own.slowed_seconds(rows, slowed))

    def limit_felt(self, rows: Table, slowed: Table, seconds: Table) -> Table:
        return self._own.limit_felt(rows, slowed, seconds)

    def sequence_calls(self, queries: Table, keys: Table) -> list[tuple[int, Call, Quantity]]:
        factor = self._factors[not np.any(queries > 1)]
        calls = self._own.sequence_calls(queries, keys)
        return [(column, call, factor * np.asarray(each)) for column, call, each in calls]

    def with_adapters(self, estimate: StepEstimate) -> StepEstimate:
        """A step with an adapter, its kernels scaled as well."""
        factor, plain = self._factors[estimate.rows[0] >= self._decoding_row], estimate.gpu_seconds
        found = self._own.with_adapters(estimate)
        pairs = zip(plain, found.gpu_seconds, strict=True)
        return found._replace(gpu_seconds=[before + factor * (after - before) for before, after in pairs])

    def _factors_of(self, rows: Table) -> Table:
        return np.where(rows >= self._decoding_row, self._factors[1], self._factors[0])

    def _longer(self, estimate: StepEstimate) -> StepEstimate:
        factor = self._factors[estimate.rows[0] >= self._decoding_row]
        return estimate._replace(
            gpu_seconds=[factor * seconds for seconds in estimate.gpu_seconds],
            varying=[[factor * seconds for seconds in kernel] for kernel in estimate.varying],
            throttled=factor * estimate.throttled,
        )
