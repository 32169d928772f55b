"""A run, or several saved runs, as one HTML page: no script, no network; light, dark and print."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from infercast.forecast.explain.overview import Overview, SlowRequest, StepRoofline
from infercast.forecast.run import PoolRun
from infercast.forecast.slo import NAMES
from infercast.forecast.steady import OVERLOADED
from infercast.report import forecast as told
from infercast.report import quantities
from infercast.report.caveats import TITLES, caveats, shared_first
from infercast.report.kernels import BY_PLACE, composition_cells, largest_parts
from infercast.report.page import charts, elements
from infercast.report.page.charts import PHASE_TITLES, latency_chart, numbers_chart, roofline_chart, steps_chart
from infercast.report.quantities import format_band
from infercast.report.saved_runs import Row, SavedRun, leader_sentences, rows_of, settings_of, warnings_of
from infercast.report.terminal import cells
from infercast.units import format_percent, format_rate, format_seconds

DECISIVE = (
    "slo_attainment", "slo_odds", "usd_per_hour", "usd_per_million_output_tokens", "watts_per_gpu",
    "joules_per_output_token", "wall_watts", "grams_co2_per_million_output_tokens",
)  # fmt: skip
"""Of an SLO, money and energy, what stands at the top."""
_NOTE = '<p class="note">The bar of a mark is its 80 % interval, where the saved run has one.</p>'


def report_page(overview: Overview, command: str = "") -> str:
    forecast = overview.forecast
    gpus = " and ".join(f"{pool.pool.gpus} x {pool.deployment.gpu.title}" for pool in forecast.pools)
    sources = [(escape(title), elements.facts_list(rows)) for title, rows in told.system_facts(forecast)]
    simulated = "".join(f"<h3>{title}</h3>{rows}" if len(sources) > 1 else rows for title, rows in sources)
    sections = [
        elements.PageSection("latency", "Latency", _latency(overview)), *_decision(overview),
        *elements.part_sections(overview.forecast), elements.PageSection("load", "Load", _load(overview)),
        elements.PageSection("kernels", "Where time goes", _kernels(overview)),
        elements.PageSection(
            "roofline", "How close kernels come to what the GPU can do", _rooflines(overview), "Roofline"
        ),
        elements.PageSection("slowest", "The slowest first tokens", _slowest(overview.slowest), "Slowest requests"),
        elements.PageSection("sources", "What was simulated", simulated, "Deployment"),
    ]  # fmt: skip
    state = forecast.state
    warning = f'<p class="warning">{escape(state.sentence)}</p>' if state.word == OVERLOADED else ""
    content = elements.Content(
        title=f"{forecast.deployment.model.name} on {gpus}",
        lead=f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated", sections=sections,
        caveats=caveats(forecast), top=warning + _cards(overview),
    )  # fmt: skip
    return elements.whole_page(content, command)


def _cards(overview: Overview) -> str:
    forecast, intervals = overview.forecast, overview.intervals
    shown = [
        elements.Card("TTFT p50", format_seconds(forecast.ttft.p50), format_band(intervals.ttft, "p50")),
        elements.Card("TTFT p99", format_seconds(forecast.ttft.p99), format_band(intervals.ttft, "p99")),
    ]
    if forecast.tpot is not None and intervals.tpot is not None:
        shown.append(elements.Card("TPOT p50", format_seconds(forecast.tpot.p50), format_band(intervals.tpot, "p50")))
    for quantity in quantities.RESULTS:
        if quantity.is_shown(forecast):
            ends = quantities.format_rates(getattr(intervals, quantity.interval)) if quantity.interval else ""
            shown.append(elements.Card(quantity.label, quantity.write(quantity.of(forecast)), ends))
    below = {each.key: told.price_words(forecast) for each in quantities.COSTS}
    if forecast.energy is not None:
        below["joules_per_output_token"] = told.energy_interval(forecast.energy)
    shown += [
        elements.Card(quantity.label, quantity.write(quantity.of(forecast)), below.get(quantity.key, ""))
        for quantity in (*quantities.PROMISES, *quantities.COSTS, *quantities.ENERGIES)
        if quantity.key in DECISIVE and quantity.is_shown(forecast)
    ]
    return elements.cards(shown, "Below a number its 80 % interval, or the source of the price.")


def _latency(overview: Overview) -> str:
    rows = []
    for latency, values, band in quantities.latencies_of(overview.forecast, overview.intervals):
        ends = (
            [""] * len(NAMES)
            if band is None
            else [f"<small>{escape(format_band(band, name))}</small>" for name in NAMES]
        )
        cells = [f"{escape(cell)}{end}" for cell, end in zip(told.latency_cells(values), ends, strict=True)]
        rows.append([escape(latency.title.replace("  ", "\u2003")), *cells])
    note = '<p class="note">The grey bar of a percentile is its 80 % interval.</p>'
    rests = elements.facts_list(quantities.rest_rows(overview.intervals))
    return latency_chart(overview) + note + elements.table(["", *NAMES], rows) + rests


def _decision(overview: Overview) -> list[elements.PageSection]:
    forecast, sections = overview.forecast, []
    if forecast.verdict is not None:
        limits = elements.plain_table(*cells(told.LIMIT_FIELDS, forecast.verdict.limits)) + elements.facts_list(
            told.promise_rows(forecast)
        )
        sections.append(elements.PageSection("slo", told.slo_title(forecast.verdict), limits, "SLO"))
    sections.append(elements.PageSection("cost", "Cost", elements.facts_list(told.cost_rows(forecast))))
    drawn = told.energy_rows(forecast)
    return [*sections, elements.PageSection("energy", "Energy", elements.facts_list(drawn))] if drawn else sections


def _load(overview: Overview) -> str:
    forecast = overview.forecast
    tables = [
        f"<h3>{escape(told.pool_title(pool, 'Engines'))}</h3>" + elements.plain_table(*told.engine_cells(pool.engines))
        for pool in (forecast.pools if len(forecast.engines) > 1 else ())
    ]
    return elements.facts_list(told.load_rows(forecast)) + charts.load_chart(overview) + "".join(tables)


def _kernels(overview: Overview) -> str:
    parts = [charts.composition_chart(overview.breakdown)]
    for pool in overview.forecast.pools:
        parts.append(_note_on_engines(pool))
        for phase in pool.phases:
            title = told.phase_title(pool, phase)
            parts.append(f"<h3>{escape(told.pool_title(pool, title[:1].upper() + title[1:]))}</h3>")
            parts.append(elements.plain_table(told.PHASE_COLUMNS, told.phase_cells(phase), words=(0, 3, 4, 5)))
    if overview.breakdown.composition:
        parts.append(f"<h3>{BY_PLACE}</h3>{elements.plain_table(*composition_cells(overview.breakdown.composition))}")
    return "".join(parts)


def _note_on_engines(pool: PoolRun) -> str:
    """Which steps the tables show where there are several replicas or stages."""
    staged = pool.deployment.layout.pipeline > 1
    if len(pool.records) == 1 and not staged:
        return ""
    engine = "the replica that took most steps" if len(pool.records) > 1 else "the pipeline"
    stages = "; times are those of all stages together, which overlap" if staged else ""
    waits = "; an idle GPU may wait for the other replicas, too" if pool.deployment.shares_experts else ""
    return f'<p class="note">{escape(told.pool_title(pool, f"Tables are of steps of {engine}{stages}{waits}."))}</p>'


def _rooflines(overview: Overview) -> str:
    pools = zip(overview.forecast.pools, overview.rooflines, strict=True)
    shown = [(told.pool_title(pool, PHASE_TITLES[each.phase]), each) for pool, several in pools for each in several]
    parts = [
        roofline_chart(shown),
        '<p class="note">Larger marks take more of the step. The roof is what the GPU could do at best: its memory '
        "bandwidth times the operations per byte, or its peak rate; what is still in its cache may beat it. Kernels "
        "that only move data are not shown.</p>",
    ]
    for title, roofline in shown:
        rows = [
            [
                escape(point.name), format_percent(point.share), f"{point.intensity:,.1f}",
                format_rate(point.flops_per_second, "FLOP/s"), format_rate(point.limit, "FLOP/s"),
                format_percent(point.flops_per_second / point.limit),
            ]
            for point in roofline.points[:6]
        ]  # fmt: skip
        columns = ["kernel", "share", "FLOP/byte", "reaches", "roof", "of the roof"]
        heading = f"{title[:1].upper()}{title[1:]}: {_step_words(roofline)}"
        parts.append(f"<h3>{escape(heading)}</h3>" + elements.table(columns, rows))
    return "".join(parts)


def _step_words(roofline: StepRoofline) -> str:
    prompts = "prompt" if roofline.num_prompts == 1 else "prompts"
    decodes = "sequence" if roofline.num_decodes == 1 else "sequences"
    parts = []
    if roofline.num_prompts:
        parts.append(f"{roofline.num_prompts:,} {prompts} with {roofline.prompt_tokens:,} new tokens")
    if roofline.num_decodes:
        parts.append(f"{roofline.num_decodes:,} {decodes} decoding after {roofline.context:,} tokens")
    return ", ".join(parts)


def _slowest(slowest: Sequence[SlowRequest]) -> str:
    rows = [
        [
            f"{each.number:,}", format_seconds(each.sent_at),
            f"{each.num_input:,}" + (f"<small>{each.num_cached:,} cached</small>" if each.num_cached else ""),
            format_seconds(each.ttft), escape(largest_parts(each)),
        ]
        for each in slowest
    ]  # fmt: skip
    columns = ["request", "sent at", "prompt", "TTFT", "where it went"]
    return charts.slowest_chart(slowest) + elements.table(columns, rows, words=(4,))


def several_page(runs: Sequence[SavedRun], command: str = "") -> str:
    rows = rows_of(runs)
    models = " and ".join(dict.fromkeys(run.model for run in runs))
    top = [f'<p class="warning">{escape(sentence)}</p>' for sentence in warnings_of(runs)]
    if leaders := leader_sentences(runs, rows):
        top.append(f"<h2>Which is best</h2>{elements.items(leaders)}")
    charts = [
        f"<h3>{escape(title[:1].upper() + title[1:])}</h3>{chart}"
        for kind, title in TITLES.items()
        if (chart := steps_chart(runs, kind))
    ]
    content = elements.Content(
        title=f"{models}: {len(runs)} runs compared", lead=runs[0].workload,
        sections=[
            elements.PageSection("numbers", "What matters most", numbers_chart(runs, rows) + _NOTE, "Chart"),
            elements.PageSection("headline", "Side by side", _headline(runs, rows)),
            *(
                [elements.PageSection("steps", "Where the time of a step goes", "".join(charts), "Steps")]
                if charts
                else []
            ),
            *_settings(runs),
        ],
        caveats=shared_first({run.name: run.caveats for run in runs}), top="".join(top),
    )  # fmt: skip
    return elements.whole_page(content, command)


def _headline(runs: Sequence[SavedRun], rows: Sequence[Row]) -> str:
    """Every number of every run, the best of a row in bold, with the difference from the first run."""
    lines = []
    for row in rows:
        best = row.best(runs)
        cells = [
            (f"<strong>{escape(cell)}</strong>" if place in best else escape(cell))
            + (f"<small>{escape(change)}</small>" if (change := row.change(place)) else "")
            for place, cell in enumerate(row.cells())
        ]
        lines.append([escape(row.name), *cells])
    note = f'<p class="note">Bold: the best of a row. Small: the difference from {escape(runs[0].name)}.</p>'
    return note + elements.table(["", *(escape(run.name) for run in runs)], lines)


def _settings(runs: Sequence[SavedRun]) -> list[elements.PageSection]:
    differing, same = settings_of(runs)
    names = ["", *(run.name for run in runs)]
    table = elements.plain_table(names, differing, words=tuple(range(len(names))))
    body = table if differing else "<p>Nothing that shows.</p>"
    simulated = elements.facts_list([(run.name, run.title) for run in runs])
    return [
        elements.PageSection("differs", "What differs", simulated + body),
        *(
            [elements.PageSection("same", "The same in all runs", elements.facts_list(same), "The same")]
            if same
            else []
        ),
    ]
