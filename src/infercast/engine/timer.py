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
    ) -> None:
        self._config, self._layout, self._gpu, self._predictor = config, layout, gpu, predictor
        self._graphs, self._host = graphs, host
        max_tokens = max(max_tokens, *graphs.sizes, 1)
        # Row i of a table is the step of i tokens, or i sampled rows; a step that samples nothing still runs the head.
        by_tokens = token_calls(config, layout, np.arange(max_tokens + 1))
        by_rows = head_calls(config, layout, np.arange(max_rows + 1))
        self._token_table = self._price_table(by_tokens, max_tokens + 1)
        self._row_table = self._price_table(by_rows, max_rows + 1)
        both = np.array([1, 2])  # one decoding sequence and one prompt: every attention kernel the model has
        by_sequence = {call.name: call.op.family for call in attention_calls(config, layout, both, both)}
        self._attention_names = {name: column for column, name in enumerate(by_sequence)}
        self._attention_columns = slice(len(by_tokens), len(by_tokens) + len(by_sequence))
        self.kernels: tuple[tuple[str, str], ...] = (
            *((call.name, call.op.family) for call in by_tokens),
            *by_sequence.items(),
            *((call.name, call.op.family) for call in by_rows),
        )
        """(name, family) of each kernel, in the order of ``kernel_seconds``."""
        self._host_seconds = {launch: host.step_seconds(launch, config.layers) for launch in Launch}

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """The times of ``steps`` steps in a row, each as its GPU or its host takes longer."""
        launch = self._graphs.launch(shape.num_tokens, shape.is_decode)
        padded = shape.num_tokens if launch is Launch.EAGER else self._graphs.padded(shape.num_tokens)
        kernels = np.empty((steps, len(self.kernels)))
        kernels[:, : self._token_table.shape[1]] = self._token_table[padded]
        kernels[:, self._attention_columns] = self._price_attention(shape, steps)
        kernels[:, self._attention_columns.stop :] = self._row_table[shape.num_sampled]
        gpu_seconds = kernels.sum(axis=1)
        host_seconds = self._host_seconds[launch]
        return StepEstimate(np.maximum(gpu_seconds, host_seconds), gpu_seconds, host_seconds, kernels)

    def _price_attention(self, shape: StepShape, steps: int) -> Table:
        """Seconds of each attention kernel (columns) in each of the steps (rows)."""
        queries = np.array(shape.new_tokens)
        keys = queries + shape.computed
        if shape.is_decode:
            queries, keys = queries[None, :], keys + np.arange(steps)[:, None]
        seconds = np.zeros((steps, len(self._attention_names)))
        for call in attention_calls(self._config, self._layout, queries, keys):
            column = self._attention_names[call.name]
            seconds[:, column] += call.count * self._predictor.seconds(call.op, self._gpu)
        return seconds

    def _price_table(self, calls: list[Call], rows: int) -> Table:
        """Seconds of each kernel (columns) for each size (rows), every launch of the step together."""
        table = np.empty((rows, len(calls)))
        for column, call in enumerate(calls):
            table[:, column] = call.count * self._predictor.seconds(call.op, self._gpu)
        return table
