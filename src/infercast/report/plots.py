"""Pictures of answers for notebooks and scripts: figures of matplotlib (the extra ``report``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from math import isnan
from typing import TYPE_CHECKING, Any

from infercast.errors import InputError, missing
from infercast.report.deployment import fit_dict
from infercast.units import GIB, MICRO, MILLI, format_seconds

try:
    from matplotlib.figure import Figure
except ImportError:
    raise InputError(f"{missing('plot', 'report')} (the extra report)") from None

if TYPE_CHECKING:
    from infercast.forecast.explain.breakdown import Breakdown
    from infercast.forecast.explain.diagnose import Diagnosis
    from infercast.forecast.kernels import StepCost
    from infercast.forecast.layouts import Layouts
    from infercast.forecast.memory import Fit
    from infercast.forecast.plan.question import Plan
    from infercast.forecast.result import Forecast
    from infercast.shown import ResultMixin

WIDTH, HEIGHT = 9.0, 3.4  # inches
PERCENTILES = {"p50": "-", "p95": "--", "p99": ":"}


class Picture(Figure):
    """A figure that notebooks show by itself, whatever backend matplotlib has."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png", dpi=90)
        return image.getvalue()


def forecast_figure(forecast: Forecast) -> Picture:
    """How TTFT and TPOT are distributed over requests, with percentiles and limits of the SLO."""
    figure = Picture(figsize=(WIDTH, HEIGHT), layout="constrained")
    columns = forecast.per_request()
    limits = () if forecast.verdict is None else forecast.verdict.slo.limits
    shown = [("ttft", "time to first token")]
    if forecast.tpot is not None:
        shown.append(("tpot", "time per output token"))
    for axes, (name, title) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        values = [value for value in columns[f"{name}_ms"].tolist() if not isnan(value)]
        # Requests of one length in a closed loop may all take the same time but for rounding.
        low, high = min(values), max(values)
        axes.hist(values, bins=40, range=(low, max(high, low * 1.001)), color="tab:blue", alpha=0.6)
        for which, line in PERCENTILES.items():
            at = getattr(getattr(forecast, name), which)
            axes.axvline(at / MILLI, color="black", ls=line, lw=1.2, label=f"{which} {format_seconds(at)}")
        for limit in limits:
            if limit.quantity == name:
                axes.axvline(limit.seconds / MILLI, color="tab:red", lw=1.5, label=f"{limit}")
        axes.set(title=title, xlabel="ms", ylabel="requests")
        axes.legend()
    figure.suptitle(forecast.title)
    return figure


def step_figure(cost: StepCost) -> Picture:
    kernels = sorted(cost.kernels, key=lambda kernel: kernel.seconds)[-12:]
    figure = Picture(figsize=(WIDTH, 1.0 + 0.28 * len(kernels)), layout="constrained")
    axes = figure.subplots()
    lows, highs = (
        [kernel.count * abs(float(end) - float(kernel.estimate.seconds)) / MICRO
         for kernel, end in ((each, getattr(each.estimate, name)) for each in kernels)]
        for name in ("low", "high")
    )  # fmt: skip
    names = [f"{kernel.name} ({kernel.estimate.bound})" for kernel in kernels]
    axes.barh(names, [kernel.seconds / MICRO for kernel in kernels], xerr=[lows, highs], color="tab:blue", alpha=0.6)
    axes.set(xlabel="us in the step", title=f"{cost.num_tokens:,} tokens in {format_seconds(cost.seconds)}")
    return figure


def breakdown_figure(breakdown: Breakdown) -> Picture:
    parts = [*breakdown.kernels, breakdown.host]
    return _bars({part.name: part.total for part in parts}, "s of the run", repr(breakdown.forecast).strip("<>"))


def diagnosis_figure(diagnosis: Diagnosis) -> Picture:
    gains = {each.name: 100 * each.saving.end_to_end for each in diagnosis.findings}
    return _bars(gains, "% less end-to-end time", diagnosis.forecast.title)


def layouts_figure(layouts: Layouts) -> Picture:
    rates = {f"{each.layout} on {each.gpu.name}": each.output_tokens_per_second_a_gpu for each in layouts}
    return _bars(rates, "output tokens/s per GPU", layouts.model)


def plan_figure(plan: Plan) -> Picture:
    """What candidates that keep the SLO cost, or how many GPUs they need where a price is not known."""
    held = [row for row in plan.rows if row.holds]
    priced = all(row.cost is not None for row in held)
    costs = {str(row.candidate): (row.cost or 0.0) if priced else float(row.gpus) for row in held}
    return _bars(
        costs, "$ per hour" if priced else "GPUs", f"{plan.question.model}, {plan.question.slo}", largest=False
    )


def estimate_figure(estimate: ResultMixin) -> Picture:
    """Times with their 80 % intervals, of one kernel or along an array of shapes."""
    figure = Picture(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    document = estimate.to_dict()
    rows = document.get("shapes", [document])
    low, middle, high = ([row[end] / MICRO for row in rows] for end in ("low", "seconds", "high"))
    errors = [[up - down for down, up in zip(*ends, strict=True)] for ends in ((low, middle), (middle, high))]
    axes.errorbar(range(len(rows)), middle, yerr=errors, fmt="o", color="tab:blue", alpha=0.6)
    axes.set(xlabel="shape", ylabel="us", title=repr(estimate).strip("<>"))
    return figure


def _bars(values: Mapping[str, float], unit: str, title: str, *, largest: bool = True) -> Picture:
    ranked = sorted(values.items(), key=lambda each: each[1], reverse=largest)[:12][::-1]
    figure = Picture(figsize=(WIDTH, 1.0 + 0.28 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    axes.barh([name for name, _ in ranked], [value for _, value in ranked], color="tab:blue", alpha=0.6)
    axes.set(xlabel=unit, title=title)
    return figure


def memory_figure(fit: Fit) -> Picture:
    figure = Picture(figsize=(WIDTH, 2.2), layout="constrained")
    axes, begin = figure.subplots(), 0.0
    for name, size in fit_dict(fit)["bytes"].items():
        axes.barh([""], [size / GIB], left=begin, label=f"{name.replace('_', ' ')} {size / GIB:,.1f}")
        begin += size / GIB
    axes.axvline(fit.gpu.driver_bytes / GIB, color="black", lw=1.5, label="the GPU's memory")
    axes.set(xlabel="GiB", title=f"{fit.model.name} on {fit.gpu.name}")
    figure.legend(ncols=4, loc="outside lower center")
    return figure


PICTURES: dict[str, Callable[[Any], Picture]] = {
    "Breakdown": breakdown_figure, "Diagnosis": diagnosis_figure, "Estimate": estimate_figure, "Fit": memory_figure,
    "Forecast": forecast_figure, "Layouts": layouts_figure, "Plan": plan_figure, "StepCost": step_figure,
}  # fmt: skip
