"""A plan, or all parallel layouts of a model on some GPUs, as tables, plain data and CSV."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from infercast.forecast.cost import Tariff
from infercast.forecast.intervals import LEVEL
from infercast.forecast.layouts import LayoutCost, Layouts, comparison_notes, ranked
from infercast.forecast.plan.candidate import Candidate, Figures, PowerDraw, Row, Stage
from infercast.forecast.plan.question import Plan
from infercast.forecast.result import Forecast
from infercast.forecast.slo import NAMES
from infercast.report import quantities
from infercast.report.caveats import FORECASTS, SENTENCES, brief_doubts
from infercast.report.deployment import flag_words, repository_of
from infercast.report.diagnosis import counted_dict, counted_rows
from infercast.report.files import csv_lines
from infercast.report.quantities import declared
from infercast.report.terminal import (
    Facts,
    Field,
    FittingTable,
    Grid,
    Paragraph,
    RenderableType,
    Section,
    at,
    cells,
    columns,
    named_first,
    record,
    styled,
)
from infercast.units import (
    MILLI,
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


def brief_plan(plan: Plan) -> list[RenderableType]:
    """One screen: the winner with its command, three rivals, other odds, why it wins and what would change it."""
    parts, winner = _begin(plan, brief=True), plan.winner
    if winner is not None and winner.figures is not None:
        others = (plan.runner_up, *plan.front, *(row for row in plan.rows if row.stage is Stage.SIMULATED))
        rivals = {row.candidate: row for row in others if row is not None and row.candidate != winner.candidate}
        if rivals:
            parts.append(Section("rivals", Grid(*cells(RIVAL_FIELDS, [*rivals.values()][:RIVALS]), notes_at=(0,))))
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
    """What to ask for where there is no answer."""
    if plan.nearest:
        return "ask for what the nearest candidate keeps, or allow more GPUs (--max-gpus) or other kinds (--gpu)"
    return "allow more GPUs (--max-gpus), other kinds (--gpu) or a looser --slo"


def _short(text: object) -> str:
    """Names of candidates without the formats that a checkpoint has anyway."""
    return str(text).replace("(as published, ", "(").replace(" (as published)", "")


def _begin(plan: Plan, *, brief: bool) -> list[RenderableType]:
    """The question, and the winner or why there is none."""
    question = plan.question
    sure = f", with odds of {format_odds(question.least_odds)} or more" if question.least_odds else ""
    asked, promised = f"{question.model}: {question.workload.description}", f"{question.slo}{sure}"
    short = (
        f"{quantities.LENGTHS.sub('', asked).partition(';')[0]}\n{promised}, on up to {format_gpus(question.max_gpus)}"
    )
    parts: list[RenderableType] = [Paragraph(short, WIDEST) if brief else styled(f"{asked}; {promised}")]
    if plan.cut:
        parts.append(Paragraph(plan.cut, WIDEST))
    if plan.winner is None:
        parts.append(Section("no answer", Paragraph(plan.why, WIDEST)))
        return [*parts, *(Section("nearest", Paragraph(each.sentence, WIDEST)) for each in plan.nearest)]
    rows = _winner(plan.winner)
    if brief:
        from infercast.report.manifests import command_lines, pools_of  # noqa: PLC0415 - other forms need none of it

        pools = pools_of(plan.winner.candidate)
        left_out = ("GPUs", "energy", "power", "options")  # rows that a screen goes without
        rows = [row for row in rows if not row[0].endswith(left_out)]
        rows += named_first("run it", command_lines(pools, repository_of(question.model)))
    return [*parts, Section(f"winner: {question.goal.says}", Facts(rows))]


def _render_odds(plan: Plan) -> list[RenderableType]:
    rows = [(f"{format_odds(odds)} or more", *(field.cell(row) for field in ODDS_FIELDS)) for odds, row in plan.by_odds]
    titles = [field.title or "" for field in ODDS_FIELDS]
    return [Section("the winner by odds", Grid(("asked for", *titles), rows, text_columns=2))] if rows else []


def render_plan(plan: Plan) -> list[RenderableType]:
    question, parts = plan.question, _begin(plan, brief=False)
    if plan.winner is not None:
        spent = "energy" if question.goal.rough else "cost"
        if len(plan.front) > 1:
            parts.append(
                Section(f"nothing beats these in {spent}, TTFT and TPOT together", Grid(*cells(FRONT, plan.front)))
            )
        parts += _render_odds(plan)
        sentences = [plan.why, *plan.changes]
        parts.append(Section("why, and what would change it", Paragraph("\n".join(sentences), WIDEST)))
    stages = (Stage.JUDGED, Stage.SIMULATED)
    others = [row for row in plan.rows if row.stage in stages and row not in plan.front][:SHOWN]
    if others:
        parts.append(Section("others that were simulated", Grid(*cells(OTHERS, others), notes_at=(4,))))
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
    ends = "" if band is None else f" (80 %: {quantities.format_interval(band.low.p99, band.high.p99)})"
    return f"p50 {format_seconds(values.p50)}, p95 {format_seconds(values.p95)}, p99 {format_seconds(values.p99)}{ends}"


FRONT, RIVAL_FIELDS, ODDS_FIELDS, OTHERS = (
    declared(
        f"plan_{table}", short=_short, p99_ends=lambda band: quantities.format_interval(band.low.p99, band.high.p99)
    )
    for table in ("front", "rivals", "odds", "others")
)


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
    return quantities.document(
        "plan",
        plan,
        row=lambda row: None if row is None else row_dict(row),
        rows=lambda rows: [row_dict(row) for row in rows],
        by_odds=lambda plan: [{"odds": odds, "deployment": str(row.candidate), **row_dict(row)}
                              for odds, row in plan.by_odds],
        nearest=lambda plan: [{"sentence": each.sentence, **row_dict(each.row)} for each in plan.nearest],
        simulated=lambda plan: [row_dict(row) for row in plan.rows if row.stage is Stage.SIMULATED],
        stages=lambda plan: {stage.value: plan.count(stage) for stage in Stage},
    )  # fmt: skip


def row_dict(row: Row) -> dict[str, Any]:
    candidate: dict[str, Callable[..., Any]] = {"options": Candidate.options, "settings": dict}
    found = quantities.document("plan_row", row, **candidate)
    found = {**quantities.document("candidate", row.candidate, **candidate), **found}
    return found if row.figures is None else found | _figures_dict(row.figures)


def _figures_dict(figures: Figures) -> dict[str, Any]:
    found = quantities.document(
        "plan_figures", figures, drawn=lambda drawn: None if drawn is None else _drawn_dict(drawn)
    )
    return {**found, **quantities.interval_fields(figures.intervals)}


def _drawn_dict(drawn: PowerDraw) -> dict[str, Any]:
    found = asdict(drawn)
    ends = [drawn.joules_per_output_token * found.pop(end) for end in ("low", "high")]
    return {**found, "joules_per_output_token_interval": ends}


CANDIDATE_COLUMNS = declared(
    "candidates",
    weights=lambda row: row.candidate.quantization or "as published",
    settings=lambda row: " ".join(f"{name}={value}" for name, value in row.candidate.settings),
)
FIGURE_COLUMNS = declared("figures")
LATENCIES = ("ttft", "tpot", "end_to_end")


def candidates_csv(plan: Plan) -> Iterator[str]:
    latencies = [f"{name}_{which}_ms" for name in LATENCIES for which in NAMES]
    candidate, figures = ([each.key for each in fields] for fields in (CANDIDATE_COLUMNS, FIGURE_COLUMNS))
    names = ["rank", "on_front", *candidate, *latencies, *figures, "reason"]
    yield from csv_lines(names, (_csv_row(plan, rank, row) for rank, row in enumerate(plan.rows, start=1)))


def _csv_row(plan: Plan, rank: int, row: Row) -> list[object]:
    found: list[object] = [rank, any(row.candidate == each.candidate for each in plan.front)]
    found += [each.of(row) for each in CANDIDATE_COLUMNS]
    for name in LATENCIES:
        values = at(f"figures.{name}.values")(row)
        found += [None] * len(NAMES) if values is None else [each / MILLI for each in values]
    found += [each.of(row) for each in FIGURE_COLUMNS]
    return [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in (*found, row.reason)]


LAYOUT_FIELDS = (
    *declared(
        "layouts",
        kind=lambda cost: None if cost.problem else cost.kind,
        level=lambda cost: LEVEL,
        mean=lambda values: format_seconds(values.mean),
        ends=lambda ends: None if ends is None else list(ends),
        rates=lambda cost: None if cost.problem else cost.output_tokens_per_second_interval,
    ),
    *(Field(each.key, each.data) for each in (*quantities.PROMISES, *quantities.COSTS, *quantities.ENERGIES)),
    *declared("layouts_decided", basis=SENTENCES["in_a_word"].__getitem__),
)


def render_layouts(layouts: Layouts) -> list[RenderableType]:
    """A table for each kind of GPU, best layouts first, and what cannot be used in one line each."""
    parts: list[RenderableType] = [styled(f"{layouts.model}: {layouts.workload.description}; latencies are means")]
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
        parts.append(
            Section(title, FittingTable(columns(LAYOUT_FIELDS), shown) if shown else styled("nothing can serve this"))
        )
        if shown:
            priced = own[0].gpu.name if shown[0].price is None else shown[0].price.description
            words = (layouts.tariff or Tariff()).unknown(priced) if shown[0].price is None else f"price: {priced}"
            parts.append(styled(f"  {words}", style="dim"))
        saturated = [
            f"{cost.layout} ({cost.layout.gpus}, {cost.saturation.capacity:,.1f}/s)" for cost in own if cost.saturation
        ]
        if saturated:
            parts.append(styled(f"  cannot keep up with the arrivals: {', '.join(saturated)}", style="dim"))
        refused = [cost for cost in own if cost.problem]
        if refused:
            told = ", ".join(f"{cost.layout} ({cost.layout.gpus})" for cost in refused)
            parts.append(styled(f"  does not fit: {told}: {refused[0].problem}", style="dim"))
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
    flags = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in
                     (("tensor_parallel_size", best.layout.tensor), ("pipeline_parallel_size", best.layout.pipeline),
                      ("data_parallel_size", best.layout.data)) if size > 1)  # fmt: skip
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
