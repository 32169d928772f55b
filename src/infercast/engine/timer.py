"""The time of one step: kernels priced once for every step size, attention priced for each batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.graphs import Graphs, Launch
from infercast.engine.host import Host, HostModel
from infercast.engine.launches import launch_work
from infercast.engine.step import StepEstimate, StepShape
from infercast.engine.surface import DecodeSurface, PromptSurface
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Call
from infercast.predict.mixed import together
from infercast.predict.power import THROTTLED, free_products, throttle, weight_of
from infercast.predict.roofline import Predictor

Table = npt.NDArray[Any]

DENSE, SPACING = 128, 32
"""Where a price is costly: every size up to the first, and one in so many beyond."""


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
        self._token_table = self._price_table(by_tokens, token_sizes, max_tokens)
        self._row_table = self._price_table(by_rows, row_sizes, max_rows)
        both = np.array([1, 2])  # one decoding sequence and one prompt: every attention kernel the model has
        by_sequence = {call.name: call.op.family for call in attention_calls(config, layout, both, both)}
        self._attention_names = {name: column for column, name in enumerate(by_sequence)}
        launches = Counter[str]()
        for call in attention_calls(config, layout, both, both):
            launches[call.name] += call.count
        self._attention_launches = np.array([launches[name] for name in by_sequence])
        self._attention_columns = slice(len(by_tokens), len(by_tokens) + len(by_sequence))
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in by_tokens),
            *by_sequence.items(),
            *((call.name, call.op.family) for call in by_rows),
        )
        """(name, family) of each kernel, in the order of ``kernel_seconds``."""
        self._decode = self._prompts = None
        if not predictor.is_cheap:
            self._decode = DecodeSurface(self._price_sequences, max_rows, max_keys)
            self._prompts = PromptSurface(self._price_sequences, max_tokens, max_keys)
        self._host = HostModel(host, launch_work(config, layout))
        # The power limit: how many products a step of each size does, and which kernels lose by too many.
        self._products = np.interp(
            np.arange(max_tokens + 1), token_sizes, np.broadcast_to(_products(by_tokens), token_sizes.shape)
        )
        self._free_products = free_products(gpu)
        self._throttled = np.array([family in THROTTLED for _, family in self.kernels])

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """What ``steps`` steps in a row cost."""
        launch = self._graphs.launch(shape.num_tokens, shape.is_decode)
        padded = shape.num_tokens if launch is Launch.EAGER else self._graphs.padded(shape.num_tokens)
        kernels = np.empty((steps, len(self.kernels)))
        kernels[:, : self._token_table.shape[1]] = self._token_table[padded]
        kernels[:, self._attention_columns] = self._price_attention(shape, steps)
        kernels[:, self._attention_columns.stop :] = self._row_table[shape.num_sampled]
        gpu_seconds = kernels.sum(axis=1)
        if self._products[padded] > self._free_products:
            longer = throttle(self._gpu, self._products[padded], gpu_seconds)
            kernels[:, self._throttled] *= longer[:, None]
            gpu_seconds = kernels.sum(axis=1)
        host = self._host.cost(launch, len(shape.new_tokens), shape.num_tokens)
        return StepEstimate(gpu_seconds, kernels, host)

    def _price_attention(self, shape: StepShape, steps: int) -> Table:
        """Seconds of each attention kernel (columns) in each of the steps (rows)."""
        queries = np.array(shape.new_tokens)
        keys = queries + shape.computed
        ahead = np.arange(steps)
        if self._decode is None or self._prompts is None:
            if shape.is_decode:
                return self._price_sequences(queries[None, :], keys + ahead[:, None])
            return self._price_sequences(queries, keys)
        if shape.is_decode:
            return self._decode(keys.size, (keys.sum() + keys.size * ahead) / keys.size)
        prompts = queries > 1
        seconds = self._prompts(queries[prompts], keys[prompts])[None, :]
        if prompts.all():
            return seconds
        # Both in one launch, except where each form has a kernel of its own, which the other does not use.
        beside = self._decode(int(np.count_nonzero(~prompts)), np.array([keys[~prompts].mean()]))
        return np.asarray(together(seconds, beside, self._attention_launches))

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


def _products(calls: list[Call]) -> Table:
    """Operations of the matrix products of a step; narrow formats draw half."""
    throttled = (call for call in calls if call.op.family in THROTTLED)
    return np.asarray(sum(call.count * call.op.flops * weight_of(call.op.compute_dtype) for call in throttled))


def _thinned(most: int, padded_to: tuple[int, ...]) -> Table:
    """Sizes to price: those that graphs pad to (or every small one), and a regular choice beyond."""
    small = np.array(padded_to) if padded_to else np.arange(1, min(most, DENSE) + 1)
    return np.unique(np.concatenate((small, np.arange(small[-1], most, SPACING), [most])))
