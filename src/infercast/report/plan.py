"""A plan, for people and for programs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.power import Drawn
from infercast.forecast.plan.result import Figures, Plan, Row, Stage
from infercast.report.caveats import FORECASTS
from infercast.report.intervals import format_interval, interval_fields
from infercast.report.layout import facts, grid, paragraph, section, styled
from infercast.report.quantities import milliseconds
from infercast.units import format_dollars, format_joules, format_percent, format_seconds, format_watts

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
