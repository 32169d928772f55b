"""What one per cent of each number of the hardware brings (elasticities), and chips that a budget pays (design).

An elasticity is a central difference of two simulations of the same requests, a step below and above what there is;
of a number that cannot grow, such as a power limit at the board's own, the difference to the simulation as asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import inf, log
from typing import Any, NamedTuple, Unpack

import numpy as np

from infercast.engines.base import Deployment
from infercast.errors import InputError, UnknownNameError, require
from infercast.forecast import deploy
from infercast.forecast.cost import Tariff
from infercast.forecast.energy import Facility
from infercast.forecast.own_kernel import value_of
from infercast.forecast.progress import share_of_time, stage_progress, time_budget
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import forecast_of, most_requests_per_second, serve_system
from infercast.forecast.slo import Slo, parse_slo
from infercast.forecast.sweep import MOST_VALUES, POWER, Point, Tell, changed_points, point_of, values_of
from infercast.forecast.system import system_of
from infercast.hardware.gpu import FORMATS, PROPERTIES, Gpu, changed_gpu, factor_of
from infercast.lazy_classes import dataclass, replace
from infercast.shown import ResultMixin
from infercast.units import GIB, GIGA, MIB


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
    with stage_progress(tell) as say, time_budget(time_limit):
        at = _Deployed.of(deployment, gpu, workload, slo, price, facility, router, options, say)
        steps = [*_steps(at.found, step)]
        points = iter(at.changed([text for each in steps for text in each.changes]))
        rows = [_elasticity(each, next(points), next(points) if each.high != 1.0 else at.base) for each in steps]
    assert at.base.forecast is not None
    return Elasticities(at.base.forecast, tuple(rows), step)


class _Deployed(NamedTuple):
    """What was asked, with as many requests as it takes to be precise, and what becomes of them."""

    found: Deployment
    base: Point
    changed: Callable[[Sequence[str]], list[Point]]  # The same after changes, in the words of ``--what-if``

    @staticmethod
    def of(
        deployment: deploy.Deployable, gpu: deploy.GpuSource | None, workload: deploy.Servable, slo: Slo | str | None,
        price: Tariff | float | None, facility: Facility | None, router: str | None, options: Any, say: Tell,
    ) -> _Deployed:  # fmt: skip
        promise = parse_slo(slo) if isinstance(slo, str) else slo
        asked = deploy.resolve_call(deployment, gpu, deploy.deploy_options(options))
        decide = partial(replace, tariff=Tariff.of(price), facility=facility or Facility())
        say("as asked")
        found = asked()
        system = system_of(found, router if found.layout.data > 1 else None)
        requests = deploy.resolve_workload(workload, deploy.load_options(options), found.settings.max_model_len)
        with share_of_time(0.06):
            settled = serve_system(system, requests, slo=promise)
        same = replace(settled.workload, open_ended=False)
        base = point_of("", None, decide(forecast_of(system, serve_system(system, same))), promise)
        changed = partial(changed_points, workload=same, slo=promise, decide=decide, router=router, tell=say)
        return _Deployed(found, base, partial(changed, asked))


class Chip(NamedTuple):
    changes: str  # In the words of ``--what-if``
    cost: float  # By the formula: 1 for the chip as it is, if its shares add up to that
    is_best: bool  # Whether none of the same cost or less serves more
    point: Point

    @property
    def serves(self) -> float:
        """Requests a second at most, or of a closed loop output tokens; 0 where it does not fit or misses the SLO."""
        found = results_of(self.point) if self.point.holds in (None, True) else {}
        return found.get("requests_per_s_at_most") or found.get("output_tokens_per_s") or 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Design(ResultMixin):
    """Chips that a budget pays, by what they cost; the last of the best serves most."""

    gpu: Gpu
    formula: str
    chips: tuple[Chip, ...]

    def _words(self) -> str:
        return f"{len(self.chips)} chips like {self.gpu.name} by {self.formula}"

    def document(self) -> dict[str, Any]:
        rows = [
            {
                **{"chip": each.changes, "cost": each.cost, "best": "yes" if each.is_best else None},
                **{name.replace("_mean", "_mean_seconds"): value for name, value in results_of(each.point).items()},
            }
            for each in self.chips
        ]
        return {"base": self.gpu.name, "cost": self.formula, "chips": rows}

    def toml(self) -> str:
        """The best chip as a file that ``--gpu`` takes."""
        best = [each for each in self.chips if each.is_best][-1]
        other = changed_gpu(self.gpu, deploy.parse_changes(best.changes).properties)
        fields = {
            "sms": ("sms", 1), "boost_clock": ("boost_clock_mhz", 1e6), "dram_bytes": ("dram_gib", GIB),
            "dram_bandwidth": ("dram_gb_per_s", GIGA), "l2_bytes": ("l2_mib", MIB),
            "nvlink_bandwidth": ("nvlink_gb_per_s", GIGA), "pcie_bandwidth": ("pcie_gb_per_s", GIGA),
        }  # fmt: skip
        lines = [f'base = "{self.gpu.name}"', f'title = "{self.gpu.title} with {best.changes}"']
        for name, (field, unit) in fields.items():
            if (value := getattr(other, name)) != getattr(self.gpu, name):
                lines.append(f"{field} = {value / unit:.10g}" if unit != 1 else f"{field} = {value}")
        without = {"special_rate", "l2_bandwidth", "network_bandwidth"} & deploy.parse_changes(
            best.changes
        ).properties.keys()
        lines += [f"# {name} has no field" for name in sorted(without)]
        before = self.gpu.tensor_flops
        rates = {name: rate for name, rate in other.tensor_flops.items() if name != "fp32" and rate != before[name]}
        lines += ["[tensor_tflops]"] if rates else []
        return "\n".join([*lines, *(f"{name} = {rate / 1e12:.10g}" for name, rate in rates.items())]) + "\n"


def design(
    deployment: deploy.Deployable, gpu: deploy.GpuSource | None = None, workload: deploy.Servable = None, *,
    vary: Mapping[str, str], cost: str, budget: float = inf, slo: Slo | str | None = None,
    price: Tariff | float | None = None, facility: Facility | None = None, router: str | None = None,
    tell: Tell | bool | None = None, time_limit: float | None = None, **options: Unpack[deploy.RunOptions],
) -> Design:  # fmt: skip
    """Chips with all combinations of numbers (``{"sms": "0.5x:1.5x:5", ...}``) that cost no more than ``budget``, by a
    formula over shares of what the chip has, such as ``0.6*sms + 0.4*dram_bandwidth``.
    """
    if strange := [name for name in vary if name not in PROPERTIES]:
        raise UnknownNameError("GPU property", strange[0], PROPERTIES)
    texts = {name: values_of(text, "vary") for name, text in vary.items()}
    tried = [*product(*texts.values())]
    require(1 <= len(tried) <= MOST_VALUES and texts, "vary", f"make 1 to {MOST_VALUES} chips", len(tried))
    with stage_progress(tell) as say, time_budget(time_limit):
        at = _Deployed.of(deployment, gpu, workload, slo, price, facility, router, options, say)
        now = {name: _number_of(at.found.gpu, name) for name in texts}
        sizes = {
            name: np.array([factor_of(name, values[place], now[name]) for values in tried])
            for place, name in enumerate(texts)
        }
        costs = value_of(cost, sizes, "cost")
        paid = [place for place in np.argsort(costs, kind="stable").tolist() if costs[place] <= budget]
        if not paid:
            raise InputError(f"no chip costs {budget:g} or less; the cheapest of {len(tried)} costs {costs.min():g}")
        words = [",".join(map("=".join, zip(texts, values, strict=True))) for values in tried]
        chips, most = list[Chip](), 0.0
        for place, point in zip(paid, at.changed([words[place] for place in paid]), strict=True):
            chip = Chip(words[place], float(costs[place]), is_best=False, point=point)
            chips.append(chip._replace(is_best=chip.serves > most))
            most = max(most, chip.serves)
    if not most:
        raise InputError("no chip that the budget pays serves these requests within the SLO")
    return Design(at.found.gpu, cost, tuple(chips))


def _number_of(gpu: Gpu, name: str) -> float:
    dtype = name.removesuffix("_flops")
    return gpu.dense_flops("bf16" if dtype == "tensor" else dtype) if name != dtype else float(getattr(gpu, name))


def _steps(found: Deployment, step: float) -> Iterator[HardwareStep]:
    gpu, alone = found.gpu, found.layout.gpus == 1
    for name in PROPERTIES:
        dtype = name.removesuffix("_flops")
        if name == "tensor_flops" or (dtype in FORMATS[1:] and dtype not in gpu.tensor_flops):
            continue
        now = _number_of(gpu, name)
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
