"""A plan, or all parallel layouts of a model on some GPUs, as tables, plain data and CSV."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from infercast.forecast.cost import Tariff
from infercast.forecast.intervals import LEVEL
from infercast.forecast.layouts import UNTRIED, LayoutCost, Layouts, comparison_notes, ranked
from infercast.forecast.plan.candidate import Candidate, Figures, PowerDraw, Row, Stage
from infercast.forecast.plan.question import Plan
from infercast.forecast.result import Forecast
from infercast.forecast.slo import NAMES
from infercast.report.caveats import FORECASTS, SENTENCES, brief_doubts
from infercast.report.deployment import flag_words, layout_dict
from infercast.report.diagnosis import counted_dict, counted_rows
from infercast.report.files import csv_lines, one_level
from infercast.report.quantities import (
    COSTS,
    ENERGIES,
    LENGTHS,
    PROMISES,
    ends_ms,
    format_band,
    format_ends,
    format_rates,
    interval_fields,
    milliseconds,
)
from infercast.report.terminal import (
    Facts,
    Field,
    FittingTable,
    Grid,
    Paragraph,
    Printable,
    Renderers,
    Section,
    any_has,
    cells,
    named_first,
    pick,
    record,
    styled,
)
from infercast.units import (
    format_bytes,
    format_dollars,
    format_figure,
    format_gpus,
    format_joules,
    format_odds,
    format_percent,
    format_seconds,
    format_watts,
)

WIDEST = 100  # characters in a line of a sentence
SHOWN = 8  # candidates that did not win, in the table


RIVALS, CHANGES = 3, 4  # of these, and of what would change the answer, on one screen


def brief_plan(plan: Plan, starts: Callable[[Plan], list[str]]) -> list[Printable]:
    """One screen: the winner with what ``starts`` it, rivals, other odds, why it wins and what would change it."""
    parts, winner = _begin(plan, starts), plan.winner
    if winner is not None and winner.figures is not None:
        others = (plan.runner_up, *plan.front, *(row for row in plan.rows if row.stage is Stage.SIMULATED))
        rivals = {row.candidate: row for row in others if row is not None and row.candidate != winner.candidate}
        if rivals:
            parts.append(
                Section(
                    "rivals", Grid(*cells(_row_fields((TTFT, TPOT, ODDS)), [*rivals.values()][:RIVALS]), notes_at=(0,))
                )
            )
        parts += _render_odds(plan)
        sentences = _short("\n".join([plan.why, *plan.changes[:CHANGES]]))
        parts.append(Section("why, and what would change it", Paragraph(sentences, WIDEST - 2)))
        doubts = brief_doubts(winner.figures.source, winner.candidate.engine, winner.figures.intervals)
        told = [*named_first("note", plan.notes[:1]), *named_first("doubt", doubts)]
        parts.append(
            Facts(
                [*told, ("next", "--out DIR writes what starts the winner, for Docker and Kubernetes"), ("more", MORE)]
            )
        )
    elif winner is None:
        parts.append(Facts([("next", _next_question(plan))]))
    return parts


def _next_question(plan: Plan) -> str:
    if plan.nearest:
        return "ask for what the nearest candidate keeps, or allow more GPUs (--max-gpus) or other kinds (--gpu)"
    return "allow more GPUs (--max-gpus), other kinds (--gpu) or a looser --slo"


def _short(text: object) -> str:
    """Names of candidates without the formats that a checkpoint has anyway."""
    return str(text).replace("(as published, ", "(").replace(" (as published)", "")


def _begin(plan: Plan, starts: Callable[[Plan], list[str]] | None = None) -> list[Printable]:
    question = plan.question
    sure = f", with odds of {format_odds(question.least_odds)} or more" if question.least_odds else ""
    asked, promised = f"{question.model}: {question.workload.description}", f"{question.slo}{sure}"
    short = f"{LENGTHS.sub('', asked).partition(';')[0]}\n{promised}, on up to {format_gpus(question.max_gpus)}"
    parts: list[Printable] = [Paragraph(short, WIDEST) if starts else styled(f"{asked}; {promised}")]
    if plan.cut:
        parts.append(Paragraph(plan.cut, WIDEST))
    if plan.winner is None:
        parts.append(Section("no answer", Paragraph(plan.why, WIDEST)))
        return [*parts, *(Section("nearest", Paragraph(each.sentence, WIDEST)) for each in plan.nearest)]
    rows = _winner(plan.winner)
    if starts:
        left_out = ("GPUs", "energy", "power", "options")  # rows that a screen goes without
        rows = [row for row in rows if not row[0].endswith(left_out)]
        rows += named_first("run it", starts(plan))
    return [*parts, Section(f"winner: {question.goal.says}", Facts(rows))]


def _render_odds(plan: Plan) -> list[Printable]:
    found = plan.by_odds
    titles, rows = cells(_row_fields([ODDS]), [row for _, row in found])
    sure = [[f"{format_odds(odds)} or more", *row] for (odds, _), row in zip(found, rows, strict=True)]
    return [Section("the winner by odds", Grid(("asked for", *titles), sure, text_columns=2))] if sure else []


def render_plan(plan: Plan) -> list[Printable]:
    question, parts = plan.question, _begin(plan)
    if plan.winner is not None:
        spent = "energy" if question.goal.rough else "cost"
        if len(plan.front) > 1:
            parts.append(
                Section(
                    f"nothing beats these in {spent}, TTFT and TPOT together",
                    Grid(*cells(_row_fields(FRONT), plan.front)),
                )
            )
        parts += _render_odds(plan)
        sentences = [plan.why, *plan.changes]
        parts.append(Section("why, and what would change it", Paragraph("\n".join(sentences), WIDEST)))
    stages = (Stage.JUDGED, Stage.SIMULATED)
    others = [row for row in plan.rows if row.stage in stages and row not in plan.front][:SHOWN]
    if others:
        headroom = Field[Row]("", lambda row: row.headroom, "headroom", "{:.2f}".format)
        fields = [*_row_fields(()), headroom, Field[Row]("", lambda row: row.verdict, "")]
        parts.append(Section("others that were simulated", Grid(*cells(fields, others), notes_at=(4,))))
    parts.append(styled(_effort(plan), style="dim"))
    parts += [Paragraph(note, WIDEST, style="dim") for note in (*plan.notes, FORECASTS)]
    return parts


MORE = "--full (all that was simulated, notes), --out DIR (commands and manifests to run), --json"


def _winner(row: Row) -> list[tuple[str, str]]:
    figures = row.figures
    assert figures is not None
    rows = [("deployment", str(row.candidate)), ("GPUs", f"{row.gpus}")]
    if row.cost is not None:
        each = row.cost / 3600.0 / figures.output_tokens_per_second * 1e6
        per_token = f"{format_dollars(each)} per million output tokens"
        rows.append(("cost", f"{format_dollars(row.cost)} per hour for {format_gpus(row.gpus)}, {per_token}"))
    rows += _drawn_rows(figures)
    rows += [("TTFT", _latency(figures, "ttft")), ("TPOT", _latency(figures, "tpot"))]
    within = f"{figures.goodput:,.2f} requests/s within the SLO"
    rows.append(("throughput", f"{format_figure(figures.output_tokens_per_second)} output tokens/s, {within}"))
    if row.rate is not None:
        rows.append(("most requests/s", f"{row.rate:.3g} within the SLO"))
    if figures.odds is not None:
        rows.append(("odds", f"the SLO holds with a probability of {format_percent(figures.odds)}"))
    rows.append(("headroom", f"{figures.headroom:.2f} times, least in {figures.tightest}"))
    rows.append(("bottleneck", figures.bottleneck))
    for pool, name in zip(row.candidate.pools, ("prefill", "decode"), strict=False):
        label = "options" if row.candidate.prefill is None else f"{name} options"
        rows.append((label, shlex.join(flag_words(pool.options())) or "none"))
    return rows


def _drawn_rows(figures: Figures) -> list[tuple[str, str]]:
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


def _latency(figures: Figures, name: str) -> str:
    values, band = getattr(figures, name), None if figures.intervals is None else getattr(figures.intervals, name)
    if values is None:
        return "-"
    ends = "" if band is None else f" (80 %: {format_band(band)})"
    return f"p50 {format_seconds(values.p50)}, p95 {format_seconds(values.p95)}, p99 {format_seconds(values.p99)}{ends}"


ODDS: Field[Figures] = Field("", lambda one: one.odds, "odds", format_percent)
TTFT: Field[Figures] = Field("", lambda one: one.ttft.p99, "TTFT p99", format_seconds)
TPOT: Field[Figures] = Field("", lambda one: one.tpot.p99 if one.tpot else None, "TPOT p99", format_seconds)
FRONT: tuple[Field[Figures], ...] = (
    Field("", lambda one: one.drawn.wall_joules_per_output_token if one.drawn else None, "J/output", format_joules),
    TTFT, Field("", lambda one: one.intervals.ttft if one.intervals else None, "80 %", format_band), TPOT,
    Field("", lambda one: one.intervals.tpot if one.intervals else None, "80 %", format_band),
    Field("", lambda one: one.headroom, "headroom", "{:.2f}".format), ODDS,
)  # fmt: skip


def _row_fields(figures: Iterable[Field[Figures]]) -> list[Field[Row]]:

    def figures_of(row: Row) -> Figures | None:
        return row.figures

    return [
        Field("", lambda row: row.candidate, "deployment", _short), Field("", lambda row: row.gpus, "GPUs"),
        Field("", lambda row: row.cost, "$/h", "{:,.2f}".format), *(each.within(figures_of) for each in figures),
    ]  # fmt: skip


def _effort(plan: Plan) -> str:
    counts = {stage: plan.count(stage) for stage in Stage}
    why = "" if plan.cut else ", because fewer or cheaper GPUs suffice"
    return (
        f"{plan.num_candidates:,} candidates: {plan.num_unseen:,} not examined{why}, "
        f"{counts[Stage.REFUSED]:,} do not fit, {counts[Stage.BOUND]:,} ruled out "
        f"by bounds, {counts[Stage.ESTIMATED]:,} by a quick estimate, {counts[Stage.SCREENED]:,} by a short "
        f"simulation, {counts[Stage.JUDGED]:,} by a longer one; {counts[Stage.SIMULATED]:,} simulated in full"
    )


def plan_dict(plan: Plan) -> dict[str, Any]:
    """The same as plain data; of candidates those that were simulated, and how many came how far."""
    question = plan.question
    return {
        "workload": question.workload.description, "slo": str(question.slo),
        **pick(question, "model rate objective max_gpus budget_per_hour=budget power_budget_w=power_budget"),
        "winner": plan.winner and row_dict(plan.winner), "front": [row_dict(row) for row in plan.front],
        "runner_up": plan.runner_up and row_dict(plan.runner_up), "why": plan.why, "changes": list(plan.changes),
        "by_odds": [{"odds": odds, "deployment": str(row.candidate), **row_dict(row)} for odds, row in plan.by_odds],
        "nearest": [{"sentence": each.sentence, **row_dict(each.row)} for each in plan.nearest],
        "simulated": [row_dict(row) for row in plan.rows if row.stage is Stage.SIMULATED],
        **pick(plan, "candidates=num_candidates not_looked_at=num_unseen"), "cut": plan.cut or None,
        "stages": {stage.value: plan.count(stage) for stage in Stage}, "notes": list(plan.notes),
    }  # fmt: skip


def row_dict(row: Row) -> dict[str, Any]:
    prefill = row.candidate.prefill
    return {
        **_candidate_dict(row.candidate), "prefill": prefill and _candidate_dict(prefill),
        **pick(row, "headroom total_gpus=gpus cost_per_hour=cost stage=stage.value slo_holds=holds"),
        "reason": row.reason or None, "most_requests_per_s": row.rate,
        **(_figures_dict(row.figures) if row.figures else {}),
    }  # fmt: skip


def _candidate_dict(candidate: Candidate) -> dict[str, Any]:
    return {
        **pick(candidate, "engine gpu replicas quantization kv_cache_dtype power_limit_w=power_limit"),
        **layout_dict(candidate.layout), "settings": dict(candidate.settings), "options": candidate.options(),
    }  # fmt: skip


def _figures_dict(figures: Figures) -> dict[str, Any]:
    return {
        "ttft_ms": milliseconds(figures.ttft), "tpot_ms": milliseconds(figures.tpot),
        "end_to_end_ms": milliseconds(figures.end_to_end),
        **pick(figures, "attainment goodput tightest odds state busy kv_peak bottleneck source"),
        **pick(figures, "output_tokens_per_s=output_tokens_per_second requests_per_s=requests_per_second"),
        "capacity_requests_per_s": figures.capacity, "beyond_budget": figures.beyond or None,
        "energy": figures.drawn and _drawn_dict(figures.drawn), **interval_fields(figures.intervals),
    }  # fmt: skip


def _drawn_dict(drawn: PowerDraw) -> dict[str, Any]:
    found = asdict(drawn)
    ends = [drawn.joules_per_output_token * found.pop(end) for end in ("low", "high")]
    return {**found, "joules_per_output_token_interval": ends}


CANDIDATE_COLUMNS: dict[str, Callable[[Row], object]] = {
    "stage": lambda row: row.stage.value, "engine": lambda row: row.candidate.engine,
    "gpu": lambda row: row.candidate.gpu, "gpus": lambda row: row.gpus, "layout": lambda row: row.candidate.layout,
    "replicas": lambda row: row.candidate.replicas, "weights": lambda row: row.candidate.quantization or "as published",
    "kv_cache_dtype": lambda row: row.candidate.kv_cache_dtype,
    "settings": lambda row: " ".join(f"{name}={value}" for name, value in row.candidate.settings),
    "power_limit_w": lambda row: row.candidate.power_limit, "prefill_pool": lambda row: row.candidate.prefill,
    "dollars_per_hour": lambda row: row.cost, "headroom": lambda row: row.headroom,
    "slo_holds": lambda row: row.figures.holds if row.figures else None, "rate_within_slo": lambda row: row.rate,
}  # fmt: skip
LATENCY_COLUMNS = [f"{name}_{which}_ms" for name in ("ttft", "tpot", "end_to_end") for which in NAMES]
FIGURE_COLUMNS = (
    *("slo_odds", "attainment", "goodput", "tightest", "output_tokens_per_s", "requests_per_s"),
    *("requests_per_s_at_most", "state", "busy", "kv_peak", "bottleneck", "source"),
    *("gpu_watts", "wall_watts", "peak_watts", "joules_per_output_token", "wall_joules_per_output_token"),
    "grams_co2_per_million_output_tokens",
)
"""Of figures as plain data, two of which have another name there."""


def candidates_csv(plan: Plan) -> Iterator[str]:
    names = ["rank", "on_front", *CANDIDATE_COLUMNS, *LATENCY_COLUMNS, *FIGURE_COLUMNS, "reason"]
    yield from csv_lines(names, (_csv_row(plan, rank, row) for rank, row in enumerate(plan.rows, start=1)))


def _csv_row(plan: Plan, rank: int, row: Row) -> list[object]:
    figures = one_level(_figures_dict(row.figures)) if row.figures else {}
    figures = {**(figures.get("energy") or {}), **figures}
    figures |= {"slo_odds": figures.get("odds"), "requests_per_s_at_most": figures.get("capacity_requests_per_s")}
    found: list[object] = [rank, any(row.candidate == each.candidate for each in plan.front)]
    found += [of(row) for of in CANDIDATE_COLUMNS.values()]
    found += [figures.get(name) for name in (*LATENCY_COLUMNS, *FIGURE_COLUMNS)]
    return [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in (*found, row.reason)]


JUDGED: Callable[[Sequence[LayoutCost]], bool] = any_has(lambda one: one.verdict)
PRICED: Callable[[Sequence[LayoutCost]], bool] = any_has(lambda one: one.cost)
DRAWN: Callable[[Sequence[LayoutCost]], bool] = any_has(lambda one: one.energy)
LAYOUT_FIELDS: tuple[Field[LayoutCost], ...] = (
    Field("gpu", lambda one: one.gpu.name),
    Field("", lambda one: one.layout, "layout"),
    Field("gpus", lambda one: one.layout.gpus, "GPUs"),
    Field("tensor_parallel_size", lambda one: one.layout.tensor),
    Field("pipeline_parallel_size", lambda one: one.layout.pipeline),
    Field("data_parallel_size", lambda one: one.layout.data),
    Field("enable_expert_parallel", lambda one: one.layout.experts),
    Field("fits", lambda one: not one.problem),
    Field("problem", lambda one: one.problem or None),
    Field("kind", lambda one: None if one.problem else one.kind),
    Field("source", lambda one: one.source or None),
    Field("saturated", lambda one: one.saturation is not None),
    Field("saturation_requests_per_s", lambda one: one.saturation and one.saturation.capacity),
    Field("weight_bytes", lambda one: one.weights or None, "weights/GPU", format_bytes, 3),
    Field("kv_tokens", lambda one: one.kv_tokens or None, "KV tokens", "{:,}".format, 2),
    Field("running", lambda one: one.running or None, "running", "{:,.1f}".format, 4),
    Field("interval_level", lambda one: LEVEL),
    Field("ttft_ms", lambda one: one.ttft, "TTFT", lambda values: format_seconds(values.mean), data=milliseconds),
    Field("ttft_ms_mean_interval", lambda one: one.ttft_interval, "80 %", format_ends, 6, data=ends_ms),
    Field("tpot_ms", lambda one: one.tpot, "TPOT", lambda values: format_seconds(values.mean), data=milliseconds),
    Field("tpot_ms_mean_interval", lambda one: one.tpot_interval, "80 %", format_ends, 5, data=ends_ms),
    Field("output_tokens_per_s", lambda one: one.output_tokens_per_second or None, "tokens/s", format_figure),
    Field("output_tokens_per_s_interval", lambda one: None if one.problem else one.output_tokens_per_second_interval,
          "80 %", format_rates, 1, data=list),
    Field("output_tokens_per_s_per_gpu", lambda one: one.output_tokens_per_second_a_gpu or None, "per GPU",
          format_figure),
    Field("slo_holds", lambda one: one.verdict and one.verdict.holds),
    *(Field(each.key, each.data) for each in (*PROMISES, *COSTS, *ENERGIES)),
    Field("", lambda one: one.verdict.attainment if one.verdict else None, "SLO kept", format_percent, matters=JUDGED),
    Field("", lambda one: one.verdict.odds if one.verdict else None, "odds", format_odds, matters=JUDGED),
    Field("", lambda one: one.cost.per_hour if one.cost else None, "$/h", format_dollars, 3, matters=PRICED),
    Field("", lambda one: one.cost.per_million_output_tokens if one.cost else None, "$/M output", format_dollars, 2,
          matters=PRICED),
    Field("", lambda one: one.energy.mean_watts if one.energy else None, "W/GPU", format_watts, 4, matters=DRAWN),
    Field("", lambda one: one.energy.joules_per_output_token if one.energy else None, "J/output", format_joules, 2,
          matters=DRAWN),
    Field("usd_per_gpu_hour", lambda one: one.price and one.price.per_hour),
    Field("price_by", lambda one: one.price and one.price.whose),
    Field("", lambda one: one.source, "basis", SENTENCES["in_a_word"].__getitem__, 1),
)  # fmt: skip


def render_layouts(layouts: Layouts) -> list[Printable]:
    """A table for each kind of GPU, best layouts first, and what cannot be used in one line each."""
    parts: list[Printable] = [styled(f"{layouts.model}: {layouts.workload.description}; latencies are means")]
    slo = next((cost.verdict.slo for cost in layouts if cost.verdict is not None), None)
    if slo is not None:
        parts.append(
            styled(f"SLO {slo}: first what keeps it; the share of requests within it, and the odds that it holds")
        )
    # In the order of the question, but GPUs with bounds only come last.
    for name in dict.fromkeys(cost.gpu.name for cost in sorted(layouts, key=lambda cost: cost.kind == "bound")):
        own = ranked(cost for cost in layouts if cost.gpu.name == name)
        shown = [cost for cost in own if not cost.problem and cost.saturation is None]
        has_bounds = any(cost.kind == "bound" for cost in shown)
        title = own[0].gpu.title + (" (lower bounds: the best case)" if has_bounds else "")
        parts.append(Section(title, FittingTable(LAYOUT_FIELDS, shown) if shown else styled("nothing can serve this")))
        if shown:
            priced = own[0].gpu.name if shown[0].price is None else shown[0].price.description
            words = (layouts.tariff or Tariff()).unknown(priced) if shown[0].price is None else f"price: {priced}"
            parts.append(styled(f"  {words}", style="dim"))
        saturated = [
            f"{cost.layout} ({cost.layout.gpus}, {cost.saturation.capacity:,.1f}/s)" for cost in own if cost.saturation
        ]
        if saturated:
            parts.append(styled(f"  cannot keep up with the arrivals: {', '.join(saturated)}", style="dim"))
        for refused, words in (
            ([cost for cost in own if cost.problem and cost.problem != UNTRIED], "does not fit: {}: {}"),
            ([cost for cost in own if cost.problem == UNTRIED], "{1}: {0}"),
        ):
            if refused:
                told = ", ".join(f"{cost.layout} ({cost.layout.gpus})" for cost in refused)
                parts.append(styled(f"  {words.format(told, refused[0].problem)}", style="dim"))
    parts += [Paragraph(note, style="dim") for note in (*notes(layouts), FORECASTS)]
    return [*parts, Facts(counted_rows(*choice_of(layouts)))]


def choice_of(layouts: Layouts) -> tuple[Forecast | None, str]:
    """The run of the layout to take, if one can serve this, and why that one."""
    served = [each for each in ranked(layouts) if not each.problem and each.saturation is None]
    if not served:
        return None, "more GPUs, a smaller format (--quantization fp8) or less load: none of these can serve it"
    best = served[0]
    tokens = f"{best.output_tokens_per_second_a_gpu:,.0f} output tokens/s per GPU"
    why = "the shortest answers of the fewest GPUs"
    if best.verdict is not None:
        why = f"{'it keeps the SLO with' if best.verdict.holds else 'none keeps the SLO, and it serves'} {tokens}"
    elif best.forecast is None or best.forecast.workload.rate is None:
        why = f"the most of all, {tokens}"
    sizes = {name: size for name, size in layout_dict(best.layout).items() if name.endswith("_size") and size > 1}
    flags = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in sizes.items())
    says = f"take {best.layout} on {best.gpu.name} ({why}): `infercast simulate` with {flags or 'one GPU'} says more"
    return best.forecast, says


def layouts_dict(layouts: Layouts) -> dict[str, Any]:
    named = {"model": layouts.model, "workload": layouts.workload.description}
    return {**named, **counted_dict(*choice_of(layouts)), "layouts": layouts_list(layouts)}


def notes(costs: Sequence[LayoutCost]) -> list[str]:
    sources = {cost.source for cost in costs if not cost.problem}
    return [*(text for source, text in SENTENCES["rough"].items() if source in sources), *comparison_notes(costs)]


def layouts_list(costs: Iterable[LayoutCost]) -> list[dict[str, Any]]:
    return [record(LAYOUT_FIELDS, cost) for cost in costs]


RENDERERS = {
    "Layouts": Renderers(layouts_dict, render_layouts, rows="layouts"),
    "Plan": Renderers(plan_dict, render_plan, rows="simulated"),
}
