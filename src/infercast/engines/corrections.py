"""Corrections of estimates by a user's own measurements: factors with uncertainties, and a timer that applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from infercast.engines.host import Costs
from infercast.engines.tables import Table
from infercast.engines.timer import KernelTimer
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.ops import Call
from infercast.ops.op import Quantity, Size
from infercast.serve.step import Contexts, Prompts, StepEstimate, StepShape


class Factor(NamedTuple):
    """A factor on times, or added seconds."""

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
        factors = np.where(rows[0] >= self._decoding_row, self._factors[1], self._factors[0])[:, None]
        return np.asarray(factors * self._own.step_kernels(rows, varying / factors, slowed))

    def row_seconds(self, table: int, rows: Table) -> Table:
        each = self._own.row_seconds(table, rows)
        return (
            each if table else each * np.where(rows >= self._decoding_row, self._factors[1], self._factors[0])[:, None]
        )

    def row_calls(self, table: int, rows: Table) -> list[tuple[Call, Size]]:
        return self._own.row_calls(table, rows)

    def slowed_seconds(self, rows: Table, slowed: Table) -> Table:
        factors = np.where(rows >= self._decoding_row, self._factors[1], self._factors[0])
        return np.asarray(factors * self._own.slowed_seconds(rows, slowed))

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

    def _longer(self, estimate: StepEstimate) -> StepEstimate:
        factor = self._factors[estimate.rows[0] >= self._decoding_row]
        return estimate._replace(
            gpu_seconds=[factor * seconds for seconds in estimate.gpu_seconds],
            varying=[[factor * seconds for seconds in kernel] for kernel in estimate.varying],
            throttled=factor * estimate.throttled,
        )
