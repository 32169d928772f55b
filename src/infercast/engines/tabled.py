"""What the tables of a timer hold, for those who look back at the steps of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from infercast.engines.kernel_tables import Table, weighted
from infercast.hardware import Gpu
from infercast.ops import Call
from infercast.ops.op import Quantity, Size
from infercast.predict.adjust.power import FULL_SHARE, felt, limits_of
from infercast.predict.roofline import Predictor


class Tabled(ABC):
    """Kernels of steps by rows of tables: by tokens, by sampled rows, and what an engine has beside these."""

    _gpu: Gpu
    _predictor: Predictor
    _token_table: Table
    _throttled: Sequence[bool]
    """Which kernels lose by the power limit."""
    _attention_names: Mapping[str, int]
    _decoding_row: int
    """Rows of the first table from here on are of steps that only decode."""
    _products: Sequence[float]
    """Operations of products, by the tokens of a step."""
    _limit: tuple[float, float, float]
    """Peak of the tensor cores, the most that products lose, and the share of the peak from which on they do."""

    @property
    @abstractmethod
    def _tables(self) -> tuple[Table, ...]:
        """By tokens, by sampled rows, and what there is beside."""

    @abstractmethod
    def _by_tokens(self, tokens: Size) -> list[Call]:
        """Kernels that depend on the tokens of a step alone."""

    @abstractmethod
    def _by_rows(self, rows: Size) -> list[Call]:
        """Those that depend on the rows of the head."""

    @abstractmethod
    def _by_sequence(self, queries: Table, keys: Table, sequences: Table | int = 1) -> list[Call]:
        """Those that depend on its sequences."""

    def kernel_seconds(
        self, rows: Sequence[Mapping[int, float]], varying: Sequence[float], slowed: Mapping[int, float]
    ) -> Table:
        """Seconds of each kernel over many steps: how often each row was run, and what estimates hold beside."""
        parts = [weighted(counts, table) for counts, table in zip(rows, self._tables, strict=True)]
        parts[0] += weighted(slowed, self._token_table) * self._throttled[: parts[0].size]
        return np.concatenate([*parts, varying])

    def step_kernels(self, rows: Sequence[Table], varying: Table, slowed: Table) -> Table:
        """Seconds of each kernel (columns) in each of many steps (rows), from what their estimates hold."""
        by_tokens = self._token_table[rows[0]]
        by_tokens = by_tokens + by_tokens * np.outer(slowed, self._throttled[: by_tokens.shape[1]])
        others = [table[row] for table, row in zip(self._tables[1:], rows[1:], strict=True)]
        return np.concatenate([by_tokens, *others, varying], axis=1)

    def row_seconds(self, table: int, rows: Table) -> Table:
        """Seconds of each kernel (columns) in steps of some rows of a table."""
        return np.asarray(self._tables[table][rows])

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        """The kernels of these rows, one a column, and how often a step launches each; gaps at the end are none."""
        calls = (
            self._by_rows(np.maximum(rows, 1)) if table else self._by_tokens(np.maximum(self.computed_tokens(rows), 1))
        )
        return [(call, call.count) for call in calls]

    def slowed_seconds(self, rows: Table, slowed: Table) -> Table:
        """Seconds of the kernels of the first table together, with products slowed by these shares."""
        each = self.row_seconds(0, rows)
        return np.asarray((each + each * np.outer(slowed, self._throttled[: each.shape[1]])).sum(axis=1))

    def limit_felt(self, rows: Table, slowed: Table, seconds: Table) -> Table:
        """How far the power limit had come to bind in steps of these rows of the first table, from 0 to 1.

        Steps that decode follow each other until it does. Of others their slowing tells, or how long they take.
        """
        if limits_of(self._gpu).always:  # even reading memory is above the limit
            return np.ones(rows.shape)
        peak, most, free = self._limit
        products = np.array(self._products)[self.computed_tokens(rows)]
        heavy = np.clip((products / np.maximum(seconds, 1e-12) / peak - free) / (FULL_SHARE - free), 0.0, 1.0)
        told = np.where(most * heavy > 0, slowed / np.maximum(most * heavy, 1e-12), 0.0)
        alone = np.array([felt(each) for each in seconds.tolist()])
        return np.where(rows >= self._decoding_row, 1.0, np.clip(np.maximum(told, alone), 0.0, 1.0))

    def sequence_calls(self, queries: Table, keys: Table) -> list[tuple[int, Call, Quantity]]:
        """Attention of one batch: the column of each kernel after the tables, the kernel, and seconds of one launch."""
        calls = self._by_sequence(queries, keys)
        return [(self._attention_names[call.name], call, self._predictor.seconds(call.op, self._gpu)) for call in calls]

    def computed_tokens(self, rows: Table) -> Table:
        """Tokens that steps computed, padding with them, by their rows of the first table."""
        return np.asarray(rows % self._decoding_row)
