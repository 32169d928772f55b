"""Elasticities: what one per cent of each number of the hardware brings to latency, throughput, energy and cost.

Each is a central difference of two simulations of the same requests, a step below and above what the deployment has;
of a number that cannot grow, such as a power limit at the board's own, the difference to the simulation as asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import log
from typing import Any, Unpack

from infercast.engines.base import Deployment
from infercast.errors import require
from infercast.forecast import deploy
from infercast.forecast.cost import Tariff
from infercast.forecast.energy import Facility
from infercast.forecast.progress import share_of_time, stage_progress, time_budget
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import forecast_of, most_requests_per_second, serve_system
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.sweep import POWER, Point, Tell, changed_points, point_of
from infercast.forecast.system import system_of
from infercast.hardware.gpu import FORMATS, PROPERTIES
from infercast.lazy_classes import NamedTuple, dataclass, replace
from infercast.shown import ResultMixin


class HardwareStep(NamedTuple):
    """A number of the hardware, and two factors of it; the second is 1 where it cannot grow."""

    name: str
    now: float  # In SI units; how many times as fast of the host
    low: float
    high: float

    @property
    def changes(self) -> Iterator[str]:
        absolute = self.name in ("sms", POWER)
        for factor in (self.low, self.high):
            if factor != 1.0:
                yield f"{self.name}={self.now * factor!r}" if absolute else f"{self.name}={factor!r}x"


@dataclass(frozen=True, slots=True)
class Elasticity:
    step: HardwareStep
    brings: Mapping[str, float | None]  # By the names of `results_of`; None where there is no such result

    @property
    def most(self) -> float:
        return max(abs(each or 0.0) for each in self.brings.values())


@dataclass(frozen=True, slots=True, repr=False)
class Elasticities(ResultMixin):
    """Those of all numbers of one deployment's hardware."""

    forecast: Forecast  # As asked, of the same requests
    rows: tuple[Elasticity, ...]
    step: float

    def _words(self) -> str:
        return f"{self.forecast.title}, per cent that one per cent of each number brings"

    def document(self) -> dict[str, Any]:
        """The numbers that bring most come first."""
        rows = sorted(self.rows, key=lambda each: -each.most)
        return {
            "deployment": self.forecast.title, "workload": self.forecast.workload.description, "step_share": self.step,
            "elasticities": [
                {
                    "number": row.step.name,
                    "now": row.step.now,
                    **{f"{key}_pct": each for key, each in row.brings.items()},
                }
                for row in rows
            ],
        }  # fmt: skip


def elasticities(
    deployment: deploy.Deployable, gpu: deploy.GpuSource | None = None, workload: deploy.Servable = None, *,
    step: float = 0.1, slo: Slo | str | None = None, price: Tariff | float | None = None,
    facility: Facility | None = None, router: str | None = None, tell: Tell | bool | None = None,
    time_limit: float | None = None, **options: Unpack[deploy.RunOptions],
) -> Elasticities:  # fmt: skip
    """What one per cent of each number brings, by simulations of a share ``step`` (small ones are noisy) off it."""
    require(0.001 <= step <= 0.25, "step", "be a share from 0.001 to 0.25", step)
    promise = parse_slo(slo) if isinstance(slo, str) else slo
    asked = deploy.resolve_call(deployment, gpu, deploy.deploy_options(options))
    decide = partial(replace, tariff=Tariff.of(price), facility=facility or Facility())
    with stage_progress(tell) as say, time_budget(time_limit):
        say("as asked")
        found = asked()
        system = system_of(found, router if found.layout.data > 1 else None)
        requests = deploy.resolve_workload(workload, deploy.load_options(options), found.settings.max_model_len)
        with share_of_time(0.06):
            settled = serve_system(system, requests, slo=promise)
        same = replace(settled.workload, open_ended=False)
        base = point_of("", None, decide(forecast_of(system, serve_system(system, same))), promise)
        steps = [*_steps(found, step)]
        changes = [text for each in steps for text in each.changes]
        points = iter(changed_points(asked, changes, same, promise, decide, router, say))
        rows = [_elasticity(each, next(points), next(points) if each.high != 1.0 else base) for each in steps]
    assert base.forecast is not None
    return Elasticities(base.forecast, tuple(rows), step)


def _steps(found: Deployment, step: float) -> Iterator[HardwareStep]:
    gpu, alone = found.gpu, found.layout.gpus == 1
    for name in PROPERTIES:
        dtype = name.removesuffix("_flops")
        if name == "tensor_flops" or (dtype in FORMATS[1:] and dtype not in gpu.tensor_flops):
            continue
        now = gpu.dense_flops(dtype) if dtype in FORMATS else float(getattr(gpu, name))
        if now <= 0.0 or (alone and name in ("nvlink_bandwidth", "network_bandwidth")):
            continue
        # Multiprocessors are whole.
        low, high = ((round(gpu.sms * each) / gpu.sms if name == "sms" else each) for each in (1 - step, 1 + step))
        yield HardwareStep(name, now, low, high)
    yield HardwareStep("host_speed", 1.0, 1.0 - step, 1.0 + step)
    yield HardwareStep(POWER, gpu.board_limit, 1.0 - step, min(1.0 + step, gpu.tdp / gpu.board_limit))


def results_of(point: Point) -> dict[str, float | None]:
    """Results with an elasticity: means of all requests, so that they follow the hardware without jumps."""
    run = point.forecast
    if run is None:
        return {}
    return {
        "ttft_mean": run.ttft.mean,
        "tpot_mean": run.tpot.mean if run.tpot else None,
        "output_tokens_per_s": run.output_tokens_per_second,
        "requests_per_s_at_most": most_requests_per_second(run.system, run.workload) if run.workload.rate else None,
        "joules_per_output_token": run.energy.joules_per_output_token if run.energy else None,
        "usd_per_million_output_tokens": point.per_million_output_tokens,
    }


def _elasticity(step: HardwareStep, less: Point, more: Point) -> Elasticity:
    low, high, apart = results_of(less), results_of(more), log(step.high / step.low)
    brings = {
        name: log(after / before) / apart if (before := low.get(name)) and after else None
        for name, after in high.items()
    }
    return Elasticity(step, brings)
