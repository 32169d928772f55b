"""A plan, or all parallel layouts of a model on some GPUs, as tables and as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from infercast.forecast.cost import Tariff
from infercast.forecast.intervals import LEVEL
from infercast.forecast.layouts import LayoutCost, Layouts, comparison_notes, ranked
from infercast.forecast.plan.candidate import Candidate, Drawn, Figures, Row, Stage
from infercast.forecast.plan.question import Plan
from infercast.forecast.slo import Percentiles
from infercast.report.caveats import FORECASTS
from infercast.report.quantities import (
    COSTS,
    ENERGIES,
    PROMISES,
    format_interval,
    format_rates,
    interval_fields,
    milliseconds,
)
from infercast.report.terminal import Column, FittingTable, facts, grid, paragraph, section, styled
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


WIDEST = 100
"""Characters in a line of a sentence."""
SHOWN = 8
"""Candidates that did not win, in the table."""


def render_plan(plan: Plan) -> list[RenderableType]:
    """The winner, the front, why the runner-up lost, and what would change the decision."""
    question = plan.question
    title = f"{question.model}: {question.workload.description}; {question.slo}"
    parts: list[RenderableType] = [styled(title)]
    if plan.winner is None:
        parts.append(section("no answer", paragraph(plan.why, WIDEST)))
        parts += [section("nearest", paragraph(each.sentence, WIDEST)) for each in plan.nearest]
    else:
        parts.append(section(f"winner: {question.goal.says}", facts(_winner(plan.winner))))
        spent = "energy" if question.goal.rough else "cost"
        if len(plan.front) > 1:
            parts.append(section(f"nothing beats these in {spent}, TTFT and TPOT together", _table(plan.front)))
        sentences = [plan.why, *plan.changes]
        parts.append(section("why, and what would change it", paragraph("\n".join(sentences), WIDEST)))
    others = [row for row in plan.rows if row.stage is Stage.SIMULATED and row not in plan.front][:SHOWN]
    if others:
        parts.append(section("others that were simulated", _others(others)))
    parts.append(styled(_effort(plan), style="dim"))
    parts += [paragraph(note, WIDEST, style="dim") for note in (*plan.notes, FORECASTS)]
    return parts


def _winner(row: Row) -> list[tuple[str, str]]:
    figures = row.figures
    assert figures is not None
    rows = [("deployment", str(row.candidate)), ("GPUs", f"{row.gpus}")]
    if row.cost is not None:
        rows.append(("cost", f"{format_dollars(row.cost)} per hour"))
    rows += _drawn_rows(figures)
    rows += [("TTFT", _latency(figures, "ttft")), ("TPOT", _latency(figures, "tpot"))]
    within = f"{figures.goodput:,.2f} requests/s within the SLO"
    rows.append(("throughput", f"{figures.output_tokens_per_second:,.0f} output tokens/s, {within}"))
    if row.rate is not None:
        rows.append(("most requests/s", f"{row.rate:.3g} within the SLO"))
    if figures.odds is not None:
        rows.append(("odds", f"the SLO holds with a probability of {format_percent(figures.odds)}"))
    rows.append(("headroom", f"{figures.headroom:.2f} times, least in {figures.tightest}"))
    rows.append(("bottleneck", figures.bottleneck))
    for pool, name in zip(row.candidate.pools, ("prefill", "decode"), strict=False):
        label = "options" if row.candidate.prefill is None else f"{name} options"
        rows.append((label, _options(pool) or "none"))
    return rows


def _drawn_rows(figures: Figures) -> list[tuple[str, str]]:
    """Energy of an output token, and power."""
    drawn = figures.drawn
    if drawn is None:
        return []
    low, high = (format_joules(drawn.joules_per_output_token * end) for end in (drawn.low, drawn.high))
    boards = f"{format_joules(drawn.joules_per_output_token)} per output token by GPU boards (80 %: {low} to {high})"
    watts = f"{format_watts(drawn.wall_watts)} at the wall on average, servers {format_watts(drawn.peak_watts)} at most"
    return [
        ("energy", f"{boards}, {format_joules(drawn.wall_joules_per_output_token)} at the wall"),
        ("power", f"{format_watts(drawn.gpu_watts)} by GPU boards on average, {watts}"),
    ]


def _options(candidate: Candidate) -> str:
    """As a command line has them."""
    return " ".join(
        f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
        for name, value in candidate.options().items()
    )


def _latency(figures: Figures, name: str) -> str:
    """Median, p99 and the interval of that."""
    values, band = getattr(figures, name), None if figures.intervals is None else getattr(figures.intervals, name)
    if values is None:
        return "-"
    ends = "" if band is None else f" (80 %: {format_interval(band.low.p99, band.high.p99)})"
    return f"p50 {format_seconds(values.p50)}, p95 {format_seconds(values.p95)}, p99 {format_seconds(values.p99)}{ends}"


def _table(rows: tuple[Row, ...]) -> RenderableType:
    columns = ("deployment", "GPUs", "$/h", "J/output", "TTFT p99", "80 %", "TPOT p99", "80 %", "headroom", "odds")
    return grid(columns, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    figures = row.figures
    assert figures is not None
    cells = [str(row.candidate), f"{row.gpus}", "-" if row.cost is None else f"{row.cost:,.2f}"]
    cells.append("-" if figures.drawn is None else format_joules(figures.drawn.wall_joules_per_output_token))
    for name in ("ttft", "tpot"):
        values, band = getattr(figures, name), None if figures.intervals is None else getattr(figures.intervals, name)
        cells.append("-" if values is None else format_seconds(values.p99))
        cells.append("-" if band is None else format_interval(band.low.p99, band.high.p99))
    odds = "-" if figures.odds is None else format_percent(figures.odds)
    return [*cells, f"{figures.headroom:.2f}", odds]


def _others(rows: list[Row]) -> RenderableType:
    cells = [
        [
            str(row.candidate),
            f"{row.gpus}",
            "-" if row.cost is None else f"{row.cost:,.2f}",
            "-" if row.headroom is None else f"{row.headroom:.2f}",
            row.verdict,
        ]
        for row in rows
    ]
    return grid(("deployment", "GPUs", "$/h", "headroom", ""), cells, notes_at=(4,))


def _effort(plan: Plan) -> str:
    counts = {stage: plan.count(stage) for stage in Stage}
    return (
        f"{plan.num_candidates:,} candidates: {plan.num_unseen:,} of more GPUs or of costlier kinds than those that do "
        f"were not looked at, {counts[Stage.REFUSED]:,} do not fit, {counts[Stage.BOUND]:,} ruled out "
        f"by bounds, {counts[Stage.ESTIMATED]:,} by a quick estimate, {counts[Stage.SCREENED]:,} by a short "
        f"simulation; {counts[Stage.SIMULATED]:,} simulated in full"
    )


def plan_dict(plan: Plan) -> dict[str, Any]:
    """The same as plain data; of candidates those that were simulated, and how many came how far."""
    question = plan.question
    return {
        "model": question.model,
        "workload": question.workload.description,
        "rate": question.rate,
        "slo": str(question.slo),
        "objective": question.objective,
        "max_gpus": question.max_gpus,
        "budget_per_hour": question.budget,
        "power_budget_w": question.power_budget,
        "winner": None if plan.winner is None else row_dict(plan.winner),
        "front": [row_dict(row) for row in plan.front],
        "runner_up": None if plan.runner_up is None else row_dict(plan.runner_up),
        "why": plan.why,
        "changes": list(plan.changes),
        "nearest": [{"sentence": each.sentence, **row_dict(each.row)} for each in plan.nearest],
        "simulated": [row_dict(row) for row in plan.rows if row.stage is Stage.SIMULATED],
        "candidates": plan.num_candidates,
        "not_looked_at": plan.num_unseen,
        "stages": {stage.value: plan.count(stage) for stage in Stage},
        "notes": list(plan.notes),
    }


def row_dict(row: Row) -> dict[str, Any]:
    """One candidate and what is known of it."""
    figures = row.figures
    return {
        **_candidate_dict(row.candidate),
        "prefill": None if row.candidate.prefill is None else _candidate_dict(row.candidate.prefill),
        "total_gpus": row.gpus,
        "cost_per_hour": row.cost,
        "stage": row.stage.value,
        "reason": row.reason or None,
        "headroom": row.headroom,
        "slo_holds": row.holds,
        "most_requests_per_s": row.rate,
        **({} if figures is None else _figures_dict(figures)),
    }


def _candidate_dict(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    return {
        "engine": candidate.engine,
        "gpu": candidate.gpu,
        "replicas": candidate.replicas,
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": layout.data,
        "enable_expert_parallel": layout.experts,
        "quantization": candidate.quantization,
        "kv_cache_dtype": candidate.kv_cache_dtype,
        "settings": dict(candidate.settings),
        "power_limit_w": candidate.power_limit,
        "options": candidate.options(),
    }


def _drawn_dict(drawn: Drawn) -> dict[str, Any]:
    """What a candidate draws; its interval in joules."""
    found = asdict(drawn)
    ends = [drawn.joules_per_output_token * found.pop(end) for end in ("low", "high")]
    return {**found, "joules_per_output_token_interval": ends}


def _figures_dict(figures: Figures) -> dict[str, Any]:
    return {
        "ttft_ms": milliseconds(figures.ttft),
        "tpot_ms": milliseconds(figures.tpot),
        "end_to_end_ms": milliseconds(figures.end_to_end),
        "output_tokens_per_s": figures.output_tokens_per_second,
        "requests_per_s": figures.requests_per_second,
        "attainment": figures.attainment,
        "goodput": figures.goodput,
        "tightest": figures.tightest,
        "odds": figures.odds,
        "state": figures.state,
        "capacity_requests_per_s": figures.capacity,
        "busy": figures.busy,
        "kv_peak": figures.kv_peak,
        "bottleneck": figures.bottleneck,
        "source": figures.source,
        "beyond_budget": figures.beyond or None,
        "energy": None if figures.drawn is None else _drawn_dict(figures.drawn),
        **interval_fields(figures.intervals),
    }


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
