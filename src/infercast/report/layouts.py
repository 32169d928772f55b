"""Layouts side by side, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from infercast.forecast.intervals.intervals import LEVEL
from infercast.forecast.latency import Percentiles
from infercast.forecast.layout_cost import LayoutCost, Layouts
from infercast.forecast.layouts import comparison_notes, ranked
from infercast.forecast.money import Tariff
from infercast.report.caveats import FORECASTS
from infercast.report.fitting import Column, FittingTable
from infercast.report.intervals import format_interval, format_rates
from infercast.report.layout import paragraph, section, styled
from infercast.report.quantities import COSTS, ENERGIES, PROMISES, milliseconds
from infercast.serve import Workload
from infercast.units import (
    MILLI,
    format_bytes,
    format_dollars,
    format_joules,
    format_odds,
    format_percent,
    format_seconds,
    format_watts,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


def _are_judged(costs: Sequence[LayoutCost]) -> bool:
    return any(cost.verdict is not None for cost in costs)


def _are_priced(costs: Sequence[LayoutCost]) -> bool:
    return any(cost.cost is not None for cost in costs)


def _of_verdict(cost: LayoutCost, name: str, write: Callable[[float], str]) -> str:
    return "-" if cost.verdict is None else write(getattr(cost.verdict, name))


def _are_metered(costs: Sequence[LayoutCost]) -> bool:
    return any(cost.energy is not None for cost in costs)


def _drawn(cost: LayoutCost, name: str, write: Callable[[float], str]) -> str:
    return "-" if cost.energy is None else write(getattr(cost.energy, name))


def _dollars(cost: LayoutCost, name: str) -> str:
    return "-" if cost.cost is None else format_dollars(getattr(cost.cost, name))


BASIS = {
    "measured": "measured", "few-shot": "few points", "sibling": "sibling", "unseen": "other GPUs",
    "physics": "physics", "published": "published", "typical": "rough", "roofline": "bound",
}  # fmt: skip
"""What the weakest estimate of a row rests on, in a word or two."""
COLUMNS = (
    Column("layout", lambda cost: str(cost.layout)),
    Column("GPUs", lambda cost: f"{cost.layout.gpus}"),
    Column("weights/GPU", lambda cost: format_bytes(cost.weights), 3),
    Column("KV tokens", lambda cost: f"{cost.kv_tokens:,}", 2),
    Column("running", lambda cost: f"{cost.running:,.1f}", 4),
    Column("TTFT", lambda cost: _mean(cost.ttft)),
    Column("80 %", lambda cost: _interval(cost.ttft_interval), 6),
    Column("TPOT", lambda cost: _mean(cost.tpot)),
    Column("80 %", lambda cost: _interval(cost.tpot_interval), 5),
    Column("tokens/s", lambda cost: f"{cost.output_tokens_per_second:,.0f}"),
    Column("80 %", lambda cost: format_rates(cost.output_tokens_per_second_interval), 1),
    Column("per GPU", lambda cost: f"{cost.output_tokens_per_second_a_gpu:,.0f}"),
    Column("SLO kept", lambda cost: _of_verdict(cost, "attainment", format_percent), matters=_are_judged),
    Column("odds", lambda cost: _of_verdict(cost, "odds", format_odds), matters=_are_judged),
    Column("$/h", lambda cost: _dollars(cost, "per_hour"), 3, _are_priced),
    Column("$/M output", lambda cost: _dollars(cost, "per_million_output_tokens"), 2, _are_priced),
    Column("W/GPU", lambda cost: _drawn(cost, "mean_watts", format_watts), 4, _are_metered),
    Column("J/output", lambda cost: _drawn(cost, "joules_per_output_token", format_joules), 2, _are_metered),
    Column("basis", lambda cost: BASIS[cost.source], 1),
)
ROUGH = {
    "published": "published: not measured here; estimates rest on published rows of kernels and published runs",
    "typical": "rough: no kernel of this vendor was measured; estimates are the roofline at typical efficiencies",
    "roofline": "bound: the least that the hardware allows; engines take longer, so do not rank it beside estimates",
}


def render_layouts(
    model: str, workload: Workload, costs: Sequence[LayoutCost], tariff: Tariff | None = None
) -> list[RenderableType]:
    """A table for each kind of GPU, best layouts first, and what cannot be used in one line each."""
    parts: list[RenderableType] = [styled(f"{model}: {workload.description}; latencies are means")]
    slo = next((cost.verdict.slo for cost in costs if cost.verdict is not None), None)
    if slo is not None:
        parts.append(styled(f"SLO {slo}: first what keeps it; the share of requests that keep it, and the odds of it"))
    for name in dict.fromkeys(cost.gpu.name for cost in estimates_first(costs)):
        own = ranked(cost for cost in costs if cost.gpu.name == name)
        shown = [cost for cost in own if not cost.problem and cost.saturation is None]
        title = own[0].gpu.title + (" (lower bounds: the best case)" if _are_bounds(shown) else "")
        parts.append(section(title, FittingTable(COLUMNS, shown) if shown else styled("nothing can serve this")))
        if shown:
            priced = own[0].gpu.name if shown[0].price is None else shown[0].price.description
            words = (tariff or Tariff()).unknown(priced) if shown[0].price is None else f"price: {priced}"
            parts.append(styled(f"  {words}", style="dim"))
        saturated = [
            f"{cost.layout} ({cost.layout.gpus}, {cost.saturation.capacity:,.1f}/s)" for cost in own if cost.saturation
        ]
        if saturated:
            parts.append(styled(f"  cannot keep up with the arrivals: {', '.join(saturated)}", style="dim"))
        refused = [f"{cost.layout} ({cost.layout.gpus})" for cost in own if cost.problem]
        if refused:
            parts.append(styled(f"  does not fit: {', '.join(refused)}", style="dim"))
    parts += [paragraph(note, style="dim") for note in (*notes(costs), FORECASTS)]
    return parts


def render_found(layouts: Layouts) -> list[RenderableType]:
    """The same for a notebook."""
    return render_layouts(layouts.model, layouts.workload, layouts, layouts.tariff)


def layouts_dict(layouts: Layouts) -> dict[str, Any]:
    """The same as plain data of one document."""
    return {"model": layouts.model, "workload": layouts.workload.description, "layouts": layouts_list(layouts)}


def estimates_first(costs: Iterable[LayoutCost]) -> list[LayoutCost]:
    """In the order of the question, but GPUs of which only bounds are known come last."""
    return sorted(costs, key=lambda cost: cost.kind == "bound")


def notes(costs: Sequence[LayoutCost]) -> list[str]:
    """What to know before comparing these rows."""
    sources = {cost.source for cost in costs if not cost.problem}
    return [*(text for source, text in ROUGH.items() if source in sources), *comparison_notes(costs)]


def _are_bounds(costs: Sequence[LayoutCost]) -> bool:
    return any(cost.kind == "bound" for cost in costs)


def _mean(latency: Percentiles | None) -> str:
    return "-" if latency is None else format_seconds(latency.mean)


def _interval(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else format_interval(*ends)


def layouts_list(costs: Iterable[LayoutCost]) -> list[dict[str, Any]]:
    """The same as plain data, in the order of the question."""
    return [
        {
            "gpu": cost.gpu.name,
            "gpus": cost.layout.gpus,
            "tensor_parallel_size": cost.layout.tensor,
            "pipeline_parallel_size": cost.layout.pipeline,
            "data_parallel_size": cost.layout.data,
            "enable_expert_parallel": cost.layout.experts,
            "fits": not cost.problem,
            "problem": cost.problem or None,
            "kind": None if cost.problem else cost.kind,
            "source": cost.source or None,
            "saturated": cost.saturation is not None,
            "saturation_requests_per_s": cost.saturation.capacity if cost.saturation else None,
            "weight_bytes": cost.weights or None,
            "kv_tokens": cost.kv_tokens or None,
            "running": cost.running or None,
            "interval_level": LEVEL,
            "ttft_ms": milliseconds(cost.ttft),
            "ttft_ms_mean_interval": _ends(cost.ttft_interval, MILLI),
            "tpot_ms": milliseconds(cost.tpot),
            "tpot_ms_mean_interval": _ends(cost.tpot_interval, MILLI),
            "output_tokens_per_s": cost.output_tokens_per_second or None,
            "output_tokens_per_s_interval": (
                None if cost.problem else _ends(cost.output_tokens_per_second_interval, 1.0)
            ),
            "output_tokens_per_s_a_gpu": cost.output_tokens_per_second_a_gpu or None,
            **_decision(cost),
        }
        for cost in costs
    ]


def _decision(cost: LayoutCost) -> dict[str, Any]:
    """What a forecast says of an SLO, of money and of energy, under the same keys."""
    price = cost.price
    return {
        "slo_holds": None if cost.verdict is None else cost.verdict.holds,
        **{each.key: each.data(cost) for each in (*PROMISES, *COSTS, *ENERGIES)},
        "usd_per_gpu_hour": None if price is None else price.per_hour,
        "price_by": None if price is None else price.whose,
    }


def _ends(interval: tuple[float, float] | None, scale: float) -> list[float] | None:
    """[low, high], or nothing where there is nothing."""
    return None if interval is None else [end / scale for end in interval]
