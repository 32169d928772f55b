"""The time of one step: kernels timed once for every step size, attention timed for each batch."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from infercast.engines.kernel_tables import Table, products_of, sequence_kernels, thinned, together
from infercast.engines.padding import NOT_PADDED, padded_in
from infercast.engines.surface import DecodeSurface, PromptSurface
from infercast.engines.tabled import Tabled
from infercast.models.lower import DRAFT_PREFIX, attention_calls, head_calls, lora_calls, token_calls
from infercast.ops import Call
from infercast.ops.op import Size
from infercast.predict.adjust.beside import felt_seconds
from infercast.predict.adjust.power import (
    THROTTLED,
    felt,
    heaviness,
    limits_of,
    longest_limited,
    most_lost,
    throttle_decoding,
)
from infercast.serve.step import Contexts, GroupShape, HostCost, Prompts, StepEstimate, StepShape

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment

GAPS = ("between kernels", "gaps")
"""What the GPU idles between the kernels of a step goes with them ..."""
DRAFT_GAPS = (f"{DRAFT_PREFIX}{GAPS[0]}", GAPS[1])
"""... and between those that draft."""
MOST_BATCHES = 32
"""Batches that are timed at once where every sequence has its say."""


class KernelTimer(Tabled):
    """A step timer made of timed kernels.

    Kernels that depend on the number of tokens alone are timed at once for every number a run can meet, and those
    of the head for every number of sampled rows: two tables whose rows are looked up. Only attention, which depends
    on the length of each sequence, is timed as the run goes on.
    """

    rows_a_sequence = 1
    """Rows that the head computes for a sequence, at most."""

    def __init__(self, deployment: Deployment) -> None:
        config, layout, gpu, predictor = deployment.model, deployment.layout, deployment.gpu, deployment.predictor
        self._config, self._layout, self._gpu, self._predictor = config, layout, gpu, predictor
        self._graphs, self._host = deployment.graphs, deployment.host_model
        settings, sizes = deployment.settings, self._graphs.sizes
        max_sequences, max_tokens = settings.max_num_seqs, max(settings.max_num_batched_tokens, *sizes, 1)
        max_rows = max_sequences * self.rows_a_sequence
        # Row i of a table is the step of i tokens, or i sampled rows; a step that samples nothing still runs the head.
        token_sizes, row_sizes = np.arange(1, max_tokens + 1), np.arange(1, max_rows + 1)
        if not predictor.is_cheap:
            token_sizes, row_sizes = thinned(max_tokens, sizes), thinned(max_rows, ())
        by_tokens = self._by_tokens(token_sizes)
        by_rows = self._by_rows(row_sizes)
        of_adapters = lora_calls(config, layout, token_sizes)
        by_sequence, launches = sequence_kernels(self._by_sequence)
        self._attention_names = {name: column for column, name in enumerate(by_sequence)}
        self._attention_launches = [launches[name] for name in by_sequence]
        found = padded_in(config, layout, gpu)
        self._padded = [found.get(name, NOT_PADDED) for name in by_sequence]
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in (*by_tokens, *by_rows)),
            GAPS,
            *((call.name, call.op.family) for call in of_adapters),
            *by_sequence.items(),
        )
        """(name, family) of each kernel: those of the tables, then attention."""
        # The power limit: how many products a step of each size does, and which kernels lose by too many.
        products = np.interp(
            np.arange(max_tokens + 1), token_sizes, np.broadcast_to(products_of(by_tokens), token_sizes.shape)
        )
        self._throttled = [family in THROTTLED for _, family in self.kernels]
        tabled = self._time_table(by_tokens, token_sizes, max_tokens)
        longer = throttle_decoding(gpu, products, tabled.sum(axis=1)) - 1.0
        decoding = tabled * (1.0 + np.outer(longer, self._throttled[: len(by_tokens)]))
        self._token_table, self._decoding_row = np.vstack([tabled, decoding]), len(tabled)
        """Steps with prompts, then steps that only decode, whose clock has settled."""
        head = self._time_table(by_rows, row_sizes, max_rows)
        self._row_table = np.column_stack([head, np.full(len(head), self._host.gap_seconds)])
        self._token_seconds: list[float] = self._token_table.sum(axis=1).tolist()
        self._row_seconds: list[float] = self._row_table.sum(axis=1).tolist()
        # LoRA adapters: what they add to a step of so many tokens; nothing in the first row, of steps without any.
        self._adapter_table = self._time_table(of_adapters, token_sizes, max_tokens) if of_adapters else None
        if self._adapter_table is not None:
            self._adapter_table[0] = 0.0
        self._no_adapters = () if self._adapter_table is None else (0,)
        self._surfaces = None
        if not predictor.is_cheap:
            decode = DecodeSurface(self._time_sequences, max_sequences, settings.max_model_len)
            self._surfaces = decode, PromptSurface(self._time_sequences, max_tokens, settings.max_model_len)
        self._decoding = cache(self._look_at_decoding)
        self._prompting = cache(partial(self._graphs.launch, is_decode=False))
        self._products, self._limited_below = products.tolist(), longest_limited(gpu, products).tolist()
        self._limit = gpu.dense_flops("bf16"), most_lost(gpu), limits_of(gpu).free
        self._throttled_seconds = (tabled * self._throttled[: len(by_tokens)]).sum(axis=1).tolist()

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What steps in a row cost."""
        if self._surfaces is None:
            return self._time_each(shape, steps)
        prompts = shape.prompts
        if not prompts:
            return self._decode(shape.num_tokens, shape.num_sampled, shape.total_computed, steps)
        num_decodes = shape.num_sequences - len(prompts)
        computed = shape.total_computed - sum([before for _, before in prompts])
        return self._compute_prompts(prompts, num_decodes, computed, shape.num_sampled)

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """The same for a decoding batch that is known by its sums."""
        if self._surfaces is None:
            return self._time_each(GroupShape(count, computed, contexts), steps)
        return self._decode(count, count, computed, steps)

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """The same for such a batch with others beside it."""
        if self._surfaces is None or not beside or min(beside)[0] == 1:
            return self(GroupShape(count, computed, contexts, beside, num_first))
        return self._compute_prompts(beside, count, computed, count + num_first)

    def _decode(self, tokens: int, sampled: int, computed: int, steps: int = 1) -> StepEstimate:
        """Steps of so many sequences that compute a token each."""
        assert self._surfaces is not None
        row, host, dense = self._decoding(tokens, sampled)
        attention = self._surfaces[0](tokens, computed + tokens, steps)
        each = attention[0] if len(attention) == 1 else [sum(kernels) for kernels in zip(*attention, strict=True)]
        return StepEstimate([dense + seconds for seconds in each], attention, host, (row, sampled, *self._no_adapters))

    def _compute_prompts(self, prompts: Prompts, num_decodes: int, computed: int, sampled: int) -> StepEstimate:
        """A step of prompts, (new, computed) tokens of each, beside sequences that have computed so many together."""
        assert self._surfaces is not None
        time_decoding, time_prompts = self._surfaces
        attention, tokens = time_prompts(prompts), num_decodes
        for new, _ in prompts:
            tokens += new
        if num_decodes:
            # Both in one launch, except where each form has a kernel of its own, which the other does not use.
            beside = [column[0] for column in time_decoding(num_decodes, computed + num_decodes)]
            padded = [each.seconds(num_decodes, computed + num_decodes) for each in self._padded]
            attention = [*map(together, attention, beside, self._attention_launches, padded)]
        return self._put_together(tokens, len(prompts) + num_decodes, len(prompts), sampled, attention)

    def _put_together(
        self, tokens: int, sequences: int, prompts: int, sampled: int, attention: list[float]
    ) -> StepEstimate:
        """A step with prompts, whose attention kernels are timed."""
        launch, padded = self._prompting(tokens)
        seconds = self._token_seconds[padded] + self._row_seconds[sampled] + sum(attention)
        host = self._host.cost(launch, sequences, tokens, prompts)
        target = share = 0.0
        throttled = self._throttled_seconds[padded] + sum(attention)
        if seconds < self._limited_below[padded]:
            peak, most, free = self._limit
            target = most * heaviness(peak, self._products[padded], seconds, free)
            share = target * felt(seconds)
            attention = [(1.0 + share) * each for each in attention]
            seconds += share * throttled
        kernels = [[each] for each in attention]
        host = host.waiting(self._host.waited_share * seconds)
        return StepEstimate([seconds], kernels, host, (padded, sampled, *self._no_adapters), share, target, throttled)

    @property
    def _tables(self) -> tuple[Table, ...]:
        """By tokens, by sampled rows, and what adapters add where there are any."""
        more = () if self._adapter_table is None else (self._adapter_table,)
        return self._token_table, self._row_table, *more

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        """The kernels of these rows; those of adapters are run where there are tokens of any."""
        if table < 2:
            return super().row_calls(table, rows)
        calls = lora_calls(self._config, self._layout, np.maximum(rows, 1))
        return [(call, call.count * (rows > 0)) for call in calls]

    @property
    def adapted(self) -> Adapted | None:
        """The same steps where a sequence has an adapter; None without room for any."""
        return None if self._adapter_table is None else Adapted(self)

    def with_adapters(self, estimate: StepEstimate) -> StepEstimate:
        """A step in which a sequence has an adapter: its kernels run for all tokens, padding among them."""
        assert self._adapter_table is not None
        padded = estimate.rows[0] % self._decoding_row
        more, has_prompts = float(self._adapter_table[padded].sum()), estimate.rows[0] < self._decoding_row
        return estimate._replace(
            gpu_seconds=[seconds + more for seconds in estimate.gpu_seconds],
            host=estimate.host.waiting(self._host.waited_share * more) if has_prompts else estimate.host,
            rows=(*estimate.rows[:2], padded),
        )

    def _by_tokens(self, tokens: Size) -> list[Call]:
        """Kernels that depend on the tokens of a step alone."""
        return token_calls(self._config, self._layout, tokens)

    def _by_rows(self, rows: Size) -> list[Call]:
        """Those that depend on the rows of the head."""
        return head_calls(self._config, self._layout, rows)

    def _by_sequence(self, queries: Table, keys: Table, sequences: Table | int = 1) -> list[Call]:
        """Those that depend on its sequences."""
        return attention_calls(self._config, self._layout, queries, keys, sequences)

    def _look_at_decoding(self, tokens: int, sampled: int) -> tuple[int, HostCost, float]:
        """What steps of so many decoding sequences have in common: row of tokens, host, and seconds by the tables."""
        launch, padded = self._graphs.launch(tokens, is_decode=True)
        row = self._decoding_row + padded
        return row, self._host.cost(launch, tokens, tokens, 0), self._token_seconds[row] + self._row_seconds[sampled]

    def _time_each(self, shape: StepShape, steps: int) -> StepEstimate:
        """Steps whose attention is timed for the length of each sequence."""
        queries, keys = np.array(shape.new_tokens), np.array(shape.new_tokens) + shape.computed
        if shape.prompts:
            (attention,) = self._time_sequences(queries, keys).tolist()
            prompts = len(shape.prompts)
            return self._put_together(shape.num_tokens, shape.num_sequences, prompts, shape.num_sampled, attention)
        keys = keys + np.arange(min(steps, MOST_BATCHES))[:, None]
        times = self._time_sequences(queries[None, :], keys)
        row, host, dense = self._decoding(shape.num_tokens, shape.num_sampled)
        seconds = [dense + sum(kernels) for kernels in times.tolist()]
        return StepEstimate(seconds, times.T.tolist(), host, (row, shape.num_sampled, *self._no_adapters))

    def _time_sequences(self, queries: Table, keys: Table, sequences: Table | int = 1) -> Table:
        """Seconds of each attention kernel (columns), for one batch or an array of batches (rows)."""
        rows = keys.shape[0] if keys.ndim > 1 else 1
        return self._time_calls(self._by_sequence(queries, keys, sequences), rows)

    def _time_calls(self, calls: list[Call], rows: int) -> Table:
        """Seconds of attention kernels, each in its column."""
        seconds = np.zeros((rows, len(self._attention_names)))
        for call in calls:
            column = self._attention_names[call.name]
            seconds[:, column] += felt_seconds(call, self._predictor.seconds(call.op, self._gpu))
        return seconds

    def _time_table(self, calls: list[Call], sizes: Table, most: int) -> Table:
        """Seconds of each kernel (columns) for each size up to ``most`` (rows), every launch of the step together."""
        table = np.empty((most + 1, len(calls)))
        for column, call in enumerate(calls):
            # One size alone has one number, and not an array of them.
            seconds = np.broadcast_to(felt_seconds(call, self._predictor.seconds(call.op, self._gpu)), np.shape(sizes))
            table[:, column] = np.interp(np.arange(most + 1), sizes, seconds)
        return table


class Adapted:
    """Another timer's steps, each with the kernels of LoRA adapters."""

    def __init__(self, timer: KernelTimer) -> None:
        self._timer = timer

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What steps in a row cost."""
        return self._timer.with_adapters(self._timer(shape, steps))

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """The same for a decoding batch that is known by its sums."""
        return self._timer.with_adapters(self._timer.decode(count, computed, contexts, steps))

    def compute(self, beside: Prompts, num_first: int, count: int, computed: int, contexts: Contexts) -> StepEstimate:
        """The same for such a batch with others beside it."""
        return self._timer.with_adapters(self._timer.compute(beside, num_first, count, computed, contexts))
