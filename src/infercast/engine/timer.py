"""The time of one step: kernels priced once for every step size, attention priced for each batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.engine.graphs import Graphs, Launch
from infercast.engine.host import Host
from infercast.engine.step import StepEstimate, StepShape
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, head_calls, token_calls
from infercast.models.spec import ModelConfig
from infercast.ops import Call
from infercast.predict.roofline import Predictor

Table = npt.NDArray[Any]

STRETCH = 16
"""Steps of an unchanged decoding batch that are priced together."""


class KernelTimer:
    """A step timer made of priced kernels.

    Kernels that depend on the number of tokens alone are priced at once for every number a run can meet, and those
    of the head for every number of sampled rows: two tables whose rows are looked up. Only attention, which depends
    on the length of each sequence, is priced step by step.
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
    ) -> None:
        self._config, self._layout, self._gpu, self._predictor = config, layout, gpu, predictor
        self._graphs, self._host = graphs, host
        max_tokens = max(max_tokens, *graphs.sizes, 1)
        # Row i of a table is the step of i tokens (or i sampled rows); row 0 is never used.
        by_tokens = token_calls(config, layout, np.arange(max_tokens + 1))
        by_rows = head_calls(config, layout, np.arange(max_rows + 1))
        self._token_table = self._price_table(by_tokens, max_tokens + 1)
        self._row_table = self._price_table(by_rows, max_rows + 1)
        both = np.array([1, 2])  # one decoding sequence and one prompt: every attention kernel the model has
        by_sequence = {call.name: call.op.family for call in attention_calls(config, layout, both, both)}
        self._attention_columns = {name: column for column, name in enumerate(by_sequence)}
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in by_tokens),
            *by_sequence.items(),
            *((call.name, call.op.family) for call in by_rows),
        )
        """(name, family) of each kernel, in the order of ``kernel_seconds``."""
        self._stretch_keys, self._stretch_done = np.empty(0), STRETCH
        self._stretch = np.empty((0, 0))
        self._host_seconds = {launch: host.step_seconds(launch, config.layers) for launch in Launch}

    def __call__(self, shape: StepShape) -> StepEstimate:
        """The time of one step, as its GPU or its host takes longer."""
        num_tokens, is_decode = shape.num_tokens, shape.is_decode
        launch = self._graphs.launch(num_tokens, is_decode)
        padded = num_tokens if launch is Launch.EAGER else self._graphs.padded(num_tokens)
        attention = self._attention_ahead(shape) if is_decode else self._price_attention(shape)
        kernels = np.concatenate((self._token_table[padded], attention, self._row_table[shape.num_sampled]))
        gpu_seconds = float(kernels.sum())
        host_seconds = self._host_seconds[launch]
        return StepEstimate(max(gpu_seconds, host_seconds), gpu_seconds, host_seconds, kernels)

    def _attention_ahead(self, shape: StepShape) -> Table:
        """Attention of a decoding batch, priced for its next steps too: it most often goes on unchanged."""
        keys = np.array(shape.computed) + 1
        done = self._stretch_done
        first = self._stretch_keys
        if done == STRETCH or keys.size != first.size or not np.array_equal(keys, first + done):
            self._stretch_keys, done = keys, 0
            ones = np.ones((1, keys.size), dtype=keys.dtype)
            self._stretch = self._price_sequences(ones, keys + np.arange(STRETCH)[:, None])
        self._stretch_done = done + 1
        row: Table = self._stretch[done]
        return row

    def _price_attention(self, shape: StepShape) -> Table:
        """Attention of a batch with prompts in it."""
        queries = np.array(shape.new_tokens)
        row: Table = self._price_sequences(queries, queries + shape.computed)[0]
        return row

    def _price_sequences(self, queries: Table, keys: Table) -> Table:
        """Seconds of each attention kernel (columns), for one batch or an array of batches (rows)."""
        rows = keys.shape[0] if keys.ndim > 1 else 1
        seconds = np.zeros((rows, len(self._attention_columns)))
        for call in attention_calls(self._config, self._layout, queries, keys):
            price = self._predictor.price(call.op, self._gpu)
            seconds[:, self._attention_columns[call.name]] += call.count * np.asarray(price.seconds)
        return seconds

    def _price_table(self, calls: list[Call], rows: int) -> Table:
        """Seconds of each kernel (columns) for each size (rows), every launch of the step together."""
        table = np.empty((rows, len(calls)))
        for column, call in enumerate(calls):
            table[:, column] = call.count * np.asarray(self._predictor.price(call.op, self._gpu).seconds)
        return table
