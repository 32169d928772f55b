"""One way to put a model on some GPUs: what it holds, what users see of it, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf

from infercast.forecast.cost import Cost
from infercast.forecast.energy import Energy
from infercast.forecast.latency import Percentiles
from infercast.forecast.money import GpuPrice, Tariff
from infercast.forecast.saturation import Saturation
from infercast.forecast.verdict import Verdict
from infercast.forecast.wall import Wall
from infercast.hardware import Gpu
from infercast.models.layout import ParallelLayout
from infercast.predict.estimate import kind_of
from infercast.serve import Workload
from infercast.shown import Answer, Shown
from infercast.units import format_seconds


@dataclass(frozen=True, slots=True, repr=False)
class LayoutCost(Shown):
    """One layout on one kind of GPU; times in seconds."""

    gpu: Gpu
    layout: ParallelLayout
    weights: float = 0.0
    """Bytes per GPU."""
    kv_tokens: int = 0
    """Tokens that the caches of all replicas hold together."""
    running: float = 0.0
    """Sequences that run at once on all replicas, on average."""
    ttft: Percentiles | None = None
    """Time to first token, in seconds; None where nothing was simulated."""
    tpot: Percentiles | None = None
    """Time per output token, in seconds; None where no request has a second token, or nothing was simulated."""
    output_tokens_per_second: float = 0.0
    """Output tokens per second of all GPUs together."""
    saturation: Saturation | None = None
    ttft_width: float = 0.0
    """Logarithm of the upper end of its 80 % interval, as a factor of the mean ..."""
    tpot_width: float = 0.0
    """... the factor of TPOT and, upside down, of throughput."""
    problem: str = ""
    """Why it cannot be done."""
    gain: float = inf
    """Logarithm of the factor by which times can be shorter."""
    source: str = ""
    """What the weakest of the estimates that count rests on: one of `SOURCES`."""
    verdict: Verdict | None = None
    """How it does by an SLO, where there is one and the layout keeps up."""
    price: GpuPrice | None = None
    cost: Cost | None = None
    """None where no price is known."""
    energy: Energy | None = None
    """What its GPUs draw; None where that is not known or nothing was simulated ..."""
    wall: Wall | None = None
    """... and the same with servers and building."""

    def _words(self) -> str:
        what = f"{self.layout.gpus} x {self.gpu.name}, {self.layout}"
        if self.problem or self.ttft is None:
            return f"{what}: {self.problem or 'cannot keep up'}"
        return f"{what}: TTFT {format_seconds(self.ttft.mean)}, {self.output_tokens_per_second:,.0f} output tokens/s"

    @property
    def kind(self) -> str:
        """``estimate``, or ``bound``: the least that hardware allows, not to be ranked beside an estimate."""
        return kind_of(self.source)

    @property
    def output_tokens_per_second_a_gpu(self) -> float:
        """What one GPU contributes."""
        return self.output_tokens_per_second / self.layout.gpus

    @property
    def ttft_interval(self) -> tuple[float, float] | None:
        """80 % interval of the mean TTFT."""
        return None if self.ttft is None else self._around(self.ttft.mean, self.ttft_width)

    @property
    def tpot_interval(self) -> tuple[float, float] | None:
        """80 % interval of the mean TPOT."""
        return None if self.tpot is None else self._around(self.tpot.mean, self.tpot_width)

    @property
    def output_tokens_per_second_interval(self) -> tuple[float, float]:
        """80 % interval of the throughput."""
        rate = self.output_tokens_per_second
        return rate * exp(-self.tpot_width), rate * exp(min(self.tpot_width, self.gain))

    def _around(self, seconds: float, width: float) -> tuple[float, float]:
        """The interval of a time: nothing is below what the hardware allows."""
        return seconds * exp(-min(width, self.gain)), seconds * exp(width)


class Layouts(Answer, tuple[LayoutCost, ...]):
    """Layouts that were compared, in the order of the question; a tuple that can show itself."""

    model: str
    workload: Workload
    tariff: Tariff

    @staticmethod
    def of(costs: Iterable[LayoutCost], model: str, workload: Workload, tariff: Tariff) -> Layouts:
        """The layouts with what they were compared for."""
        found = Layouts(costs)
        found.model, found.workload, found.tariff = model, workload, tariff
        return found

    def _words(self) -> str:
        fitting = sum(not each.problem for each in self)
        return f"{self.model}, {len(self)} layouts, {fitting} of which fit"
