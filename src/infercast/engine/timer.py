"""The time of one step: kernels priced once for every step size, attention priced for each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.graphs import Graphs, Launch
from infercast.engine.host import Host, HostModel
from infercast.engine.launches import launch_work
from infercast.engine.step import HostCost, StepEstimate, StepShape
from infercast.engine.surface import DecodeSurface, PromptSurface
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Call
from infercast.predict.mixed import ADDED_SHARE, SHARED_SECONDS
from infercast.predict.power import (
    FREE_SECONDS,
    THROTTLED,
    free_products,
    most_lost,
    slowed,
    throttle_decoding,
    weight_of,
)
from infercast.predict.roofline import Predictor

Table = npt.NDArray[Any]

DENSE, SPACING = 128, 32
"""Where a price is costly: every size up to the first, and one in so many beyond."""
MOST_BATCHES = 32
"""Batches that are priced at once where every sequence has its say."""


class KernelTimer:
    """A step timer made of priced kernels.

    Kernels that depend on the number of tokens alone are priced at once for every number a run can meet, and those
    of the head for every number of sampled rows: two tables whose rows are looked up. Only attention, which depends
    on the length of each sequence, is priced as the run goes on.
    """

    def __init__(
        self,
        config: ModelConfig,
        layout: ParallelLayout,
        gpu: Gpu,
        predictor: Predictor,
        graphs: Graphs,
        host: Host,
        max_tokens: int,
        max_rows: int,
        max_keys: int,
    ) -> None:
        self._config, self._layout, self._gpu, self._predictor = config, layout, gpu, predictor
        self._graphs = graphs
        max_tokens = max(max_tokens, *graphs.sizes, 1)
        # Row i of a table is the step of i tokens, or i sampled rows; a step that samples nothing still runs the head.
        token_sizes, row_sizes = np.arange(1, max_tokens + 1), np.arange(1, max_rows + 1)
        if not predictor.is_cheap:
            token_sizes, row_sizes = _thinned(max_tokens, graphs.sizes), _thinned(max_rows, ())
        by_tokens = token_calls(config, layout, token_sizes)
        by_rows = head_calls(config, layout, row_sizes)
        both = np.array([1, 2])  # one decoding sequence and one prompt: every attention kernel the model has
        by_sequence = {call.name: call.op.family for call in attention_calls(config, layout, both, both)}
        self._attention_names = {name: column for column, name in enumerate(by_sequence)}
        launches = Counter[str]()
        for call in attention_calls(config, layout, both, both):
            launches[call.name] += call.count
        self._attention_launches = [launches[name] for name in by_sequence]
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in (*by_tokens, *by_rows)),
            *by_sequence.items(),
        )
        """(name, family) of each kernel: those of the tables, then attention."""
        # The power limit: how many products a step of each size does, and which kernels lose by too many.
        products = np.interp(
            np.arange(max_tokens + 1), token_sizes, np.broadcast_to(_products(by_tokens), token_sizes.shape)
        )
        self._throttled = [family in THROTTLED for _, family in self.kernels]
        tabled = self._price_table(by_tokens, token_sizes, max_tokens)
        longer = throttle_decoding(gpu, products, tabled.sum(axis=1)) - 1.0
        decoding = tabled * (1.0 + np.outer(longer, self._throttled[: len(by_tokens)]))
        self._token_table, self._decoding_row = np.vstack([tabled, decoding]), len(tabled)
        """Steps with prompts, then steps that only decode, whose clock has settled."""
        self._row_table = self._price_table(by_rows, row_sizes, max_rows)
        self._token_seconds: list[float] = self._token_table.sum(axis=1).tolist()
        self._row_seconds: list[float] = self._row_table.sum(axis=1).tolist()
        self._surfaces = None
        if not predictor.is_cheap:
            decode = DecodeSurface(self._price_sequences, max_rows, max_keys)
            self._surfaces = decode, PromptSurface(self._price_sequences, max_tokens, max_keys)
        self._host = HostModel(host, launch_work(config, layout))
        self._decoding: dict[tuple[int, int], tuple[int, HostCost, float]] = {}
        self._products, self._free_products = products.tolist(), free_products(gpu)
        self._limit = gpu.dense_flops("bf16"), most_lost(gpu)
        self._throttled_seconds = (tabled * self._throttled[: len(by_tokens)]).sum(axis=1).tolist()

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What steps in a row cost."""
        tokens, sampled = shape.num_tokens, shape.num_sampled
        limited = bool(shape.prompts)
        if limited:
            launch = self._graphs.launch(tokens, is_decode=False)
            padded = tokens if launch is Launch.EAGER else self._graphs.padded(tokens)
            host, dense = self._host.cost(launch, shape.num_sequences, tokens), self._dense(padded, sampled)
        else:
            known = self._decoding.get((tokens, sampled))
            padded, host, dense = known or self._look_at_decoding(tokens, sampled)
        attention = self._price_attention(shape, steps)
        each = attention[0] if len(attention) == 1 else [sum(kernels) for kernels in zip(*attention, strict=True)]
        gpu_seconds = [dense + seconds for seconds in each]
        if limited and self._products[padded] > self._free_products and gpu_seconds[0] > FREE_SECONDS:
            return self._throttle((padded, sampled), gpu_seconds[0], [column[0] for column in attention], host)
        return StepEstimate(gpu_seconds, attention, host, (padded, sampled))

    def kernel_seconds(
        self, rows: Sequence[Mapping[int, float]], varying: Sequence[float], slowed: Mapping[int, float]
    ) -> Table:
        """Seconds of each kernel over many steps: how often each row was run, and what estimates hold beside."""
        tables = (self._token_table, self._row_table)
        parts = [_weighted(counts, table) for counts, table in zip(rows, tables, strict=True)]
        parts[0] += _weighted(slowed, self._token_table) * self._throttled[: parts[0].size]
        return np.concatenate([*parts, varying])

    def step_kernels(self, rows: Sequence[Table], varying: Table, slowed: Table) -> Table:
        """Seconds of each kernel (columns) in each of many steps (rows), from what their estimates hold."""
        by_tokens = self._token_table[rows[0]]
        by_tokens = by_tokens + by_tokens * np.outer(slowed, self._throttled[: by_tokens.shape[1]])
        return np.concatenate([by_tokens, self._row_table[rows[1]], varying], axis=1)

    def _look_at_decoding(self, tokens: int, sampled: int) -> tuple[int, HostCost, float]:
        """What steps of so many decoding sequences have in common: row of tokens, host, and seconds by the tables."""
        launch = self._graphs.launch(tokens, is_decode=True)
        row = self._decoding_row + (tokens if launch is Launch.EAGER else self._graphs.padded(tokens))
        known = row, self._host.cost(launch, tokens, tokens), self._dense(row, sampled)
        self._decoding[tokens, sampled] = known
        return known

    def _dense(self, row: int, sampled: int) -> float:
        return self._token_seconds[row] + self._row_seconds[sampled]

    def _throttle(
        self, rows: tuple[int, int], gpu_seconds: float, attention: list[float], host: HostCost
    ) -> StepEstimate:
        """A single step that may reach the power limit."""
        share = slowed(*self._limit, self._products[rows[0]], gpu_seconds)
        same = self._throttled_seconds[rows[0]] * share
        longer = [
            seconds * share if is_slowed else 0.0
            for seconds, is_slowed in zip(attention, self._throttled[-len(attention) :], strict=True)
        ]
        varying = [[seconds + more] for seconds, more in zip(attention, longer, strict=True)]
        return StepEstimate([gpu_seconds + same + sum(longer)], varying, host, rows, share)

    def _price_attention(self, shape: StepShape, steps: int) -> list[list[float]]:
        """For each attention kernel its seconds in each of the steps."""
        if self._surfaces is None:
            queries, keys = np.array(shape.new_tokens), np.array(shape.new_tokens) + shape.computed
            if shape.is_decode:
                queries, keys = queries[None, :], keys + np.arange(min(steps, MOST_BATCHES))[:, None]
            return [column.tolist() for column in self._price_sequences(queries, keys).T]
        price_decoding, price_prompts = self._surfaces
        prompts = shape.prompts
        if not prompts:
            return price_decoding(shape.num_sequences, shape.total_computed + shape.num_sequences, steps)
        seconds = price_prompts(prompts)
        num_decodes = shape.num_sequences - len(prompts)
        if num_decodes:
            total_keys = num_decodes + shape.total_computed - sum([computed for _, computed in prompts])
            # Both in one launch, except where each form has a kernel of its own, which the other does not use.
            beside = [column[0] for column in price_decoding(num_decodes, total_keys)]
            seconds = [*map(_together, seconds, beside, self._attention_launches)]
        return [[each] for each in seconds]

    def _price_sequences(self, queries: Table, keys: Table) -> Table:
        """Seconds of each attention kernel (columns), for one batch or an array of batches (rows)."""
        rows = keys.shape[0] if keys.ndim > 1 else 1
        seconds = np.zeros((rows, len(self._attention_names)))
        for call in attention_calls(self._config, self._layout, queries, keys):
            column = self._attention_names[call.name]
            seconds[:, column] += call.count * self._predictor.seconds(call.op, self._gpu)
        return seconds

    def _price_table(self, calls: list[Call], sizes: Table, most: int) -> Table:
        """Seconds of each kernel (columns) for each size up to ``most`` (rows), every launch of the step together."""
        table = np.empty((most + 1, len(calls)))
        for column, call in enumerate(calls):
            seconds = call.count * np.asarray(self._predictor.seconds(call.op, self._gpu))
            table[:, column] = np.interp(np.arange(most + 1), sizes, seconds)
        return table


def _together(prompts: float, decodes: float, launches: int) -> float:
    """`together` for two plain numbers, which numpy is slow on."""
    longer, shorter = (prompts, decodes) if prompts > decodes else (decodes, prompts)
    return longer + ADDED_SHARE * max(shorter - SHARED_SECONDS * launches, 0.0)


def _weighted(counts: Mapping[int, float], table: Table) -> Table:
    """The sum of some rows of a table, each so many times."""
    return np.asarray(np.array([*counts.values()]) @ table[[*counts]]) if counts else np.zeros(table.shape[1])


def _products(calls: list[Call]) -> Table:
    """Operations of the matrix products of a step; narrow formats draw half."""
    throttled = (call for call in calls if call.op.family in THROTTLED)
    return np.asarray(sum(call.count * call.op.flops * weight_of(call.op.compute_dtype) for call in throttled))


def _thinned(most: int, padded_to: tuple[int, ...]) -> Table:
    """Sizes to price: those that graphs pad to (or every small one), and a regular choice beyond."""
    small = padded_to or range(1, min(most, DENSE) + 1)
    return np.array(sorted({*small, *range(small[-1], most, SPACING), most}))
