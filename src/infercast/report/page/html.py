"""A run as one page: no script, no network; opens in any browser, in light and dark, and prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from infercast.forecast.explain.overview import Overview, SlowRequest
from infercast.forecast.explain.phases import Phase
from infercast.forecast.explain.rooflines import StepRoofline
from infercast.forecast.intervals.intervals import Band
from infercast.forecast.latency import NAMES, Percentiles
from infercast.forecast.saturation import OVERLOADED
from infercast.report.caveats import caveats
from infercast.report.intervals import format_interval, format_rates
from infercast.report.page import charts
from infercast.report.page.roofline_chart import PHASE_TITLES, roofline_chart
from infercast.report.serving import deployment_facts
from infercast.report.state import TITLES
from infercast.units import format_percent, format_rate, format_seconds

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded from anywhere, and a browser sees to it."""
LEAST_SHARE = 0.001
"""Kernels below this share of a step are left out of tables."""


def report_page(overview: Overview, version: str, command: str = "") -> str:
    """The whole page; ``command`` is what it was made by."""
    forecast = overview.forecast
    deployment = forecast.deployment
    title = f"{deployment.model.name} on {deployment.layout.gpus} x {deployment.gpu.title}"
    style = resources.files("infercast").joinpath("report/page.css").read_text(encoding="utf-8")
    about = f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated"
    sections = [
        _section("latency", "Latency", _latency(overview)),
        _section("load", "Load", _load(overview)),
        _section("kernels", "Where time goes", _kernels(overview)),
        _section("roofline", "How close kernels come to what the GPU can do", _roofline(overview.rooflines)),
        *([_section("slowest", "The slowest first tokens", _slowest(overview.slowest))] if overview.slowest else []),
        _section("sources", "What was simulated, and what it rests on", _sources(overview)),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)} - infercast</title>",
            f"<style>\n{style}</style></head><body>",
            f'<header><h1>{escape(title)}</h1><p class="lead">{escape(about)}</p>',
            _warning(overview),
            _cards(overview),
            "</header><main>",
            *sections,
            f"</main><footer>A forecast by infercast {escape(version)}; nothing on this page was measured.",
            f"<p>Made by <code>{escape(command)}</code></p></footer>" if command else "</footer>",
            "</body></html>\n",
        ]
    )


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}</section>'


def _warning(overview: Overview) -> str:
    state = overview.forecast.state
    return f'<p class="warning">{escape(state.sentence)}</p>' if state.word == OVERLOADED else ""


def _cards(overview: Overview) -> str:
    """The numbers that most people came for."""
    forecast, intervals = overview.forecast, overview.intervals
    cards = [
        ("TTFT p50", format_seconds(forecast.ttft.p50), _ends(intervals.ttft, "p50")),
        ("TTFT p99", format_seconds(forecast.ttft.p99), _ends(intervals.ttft, "p99")),
    ]
    if forecast.tpot is not None and intervals.tpot is not None:
        cards.append(("TPOT p50", format_seconds(forecast.tpot.p50), _ends(intervals.tpot, "p50")))
    tokens, requests = forecast.output_tokens_per_second, forecast.requests_per_second
    cards += [
        ("output tokens/s", f"{tokens:,.0f}", format_rates(intervals.output_tokens_per_second)),
        ("requests/s", f"{requests:,.2f}", format_rates(intervals.requests_per_second)),
    ]
    parts = [
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="interval">{escape(interval)}</div></div>'
        for name, value, interval in cards
    ]
    return f'<div class="cards">{"".join(parts)}</div><p class="note">Below each number its 80 % interval.</p>'


def _ends(band: Band, name: str) -> str:
    return format_interval(getattr(band.low, name), getattr(band.high, name))


def _latency(overview: Overview) -> str:
    forecast, intervals = overview.forecast, overview.intervals
    latencies: list[tuple[str, Percentiles | None, Band | None]] = [
        ("time to first token (TTFT)", forecast.ttft, intervals.ttft),
        ("time per output token (TPOT)", forecast.tpot, intervals.tpot),
        ("inter-token latency", forecast.inter_token, intervals.inter_token),
        ("end to end", forecast.end_to_end, intervals.end_to_end),
    ]
    rows = []
    for title, values, band in latencies:
        cells = ["-"] * len(NAMES)
        if values is not None and band is not None:
            cells = [
                f"{escape(format_seconds(getattr(values, name)))}<small>{escape(_ends(band, name))}</small>"
                for name in NAMES
            ]
        rows.append([escape(title), *cells])
    note = '<p class="note">Grey bands are the 80 % intervals of the percentiles.</p>'
    return charts.latency_chart(overview) + note + _table(["", *NAMES], rows)


def _load(overview: Overview) -> str:
    forecast = overview.forecast
    words = [
        f"{forecast.state.sentence.capitalize()}. Steady state: {forecast.steady.sentence}.",
        f"{forecast.running.mean:,.1f} sequences run on average, {forecast.running.peak:,.0f} at most; "
        f"{forecast.waiting.mean:,.1f} requests wait on average, {forecast.waiting.peak:,.0f} at most.",
        f"The KV cache is {format_percent(forecast.kv_usage.mean)} full on average, "
        f"{format_percent(forecast.kv_usage.peak)} at most.",
    ]
    if forecast.prefix_hit_rate > 0:
        words.append(f"{format_percent(forecast.prefix_hit_rate)} of prompt tokens were in the prefix cache.")
    if forecast.num_preemptions:
        words.append(f"The KV cache ran full: {forecast.num_preemptions:,} preemptions.")
    return f"<p>{escape(' '.join(words))}</p>" + charts.load_chart(overview)


def _kernels(overview: Overview) -> str:
    breakdown = overview.breakdown
    chart = _note_on_engines(overview) if breakdown is None else charts.composition_chart(breakdown)
    return chart + "".join(_phase(phase) for phase in overview.forecast.phases)


def _note_on_engines(overview: Overview) -> str:
    """Whose steps are shown where there are several engines or stages."""
    deployment = overview.forecast.deployment
    layout = deployment.layout
    engine = "the replica that took most steps" if layout.data > 1 else "the pipeline"
    stages = "; times are those of all stages together, which overlap" if layout.pipeline > 1 else ""
    waits = "; an idle GPU may wait for the other replicas, too" if deployment.shares_experts else ""
    return f'<p class="note">{escape(f"Steps of {engine}{stages}{waits}.")}</p>'


def _phase(phase: Phase) -> str:
    rows = [
        [
            escape(family.family),
            format_percent(family.seconds / phase.whole),
            format_seconds(family.seconds / phase.steps),
            escape(family.bound),
            escape(family.source),
            escape(", ".join(name for name, _ in family.kernels[:4])),
        ]
        for family in phase.families
        if family.seconds >= LEAST_SHARE * phase.whole
    ]
    if (idle := phase.host_bound_seconds) >= LEAST_SHARE * phase.whole:
        rows.append(
            [
                "GPU idle",
                format_percent(idle / phase.whole),
                format_seconds(idle / phase.steps),
                phase.waits_for,
                "",
                "",
            ]
        )
    title = f"{phase.steps:,} {TITLES[phase.name]}, {format_seconds(phase.seconds / phase.steps)} each"
    columns = ["family", "share", "per step", "bound by", "source", "largest kernels"]
    return f"<h3>{escape(title)}</h3>" + _table(columns, rows, words=(0, 3, 4, 5))


def _roofline(rooflines: Sequence[StepRoofline]) -> str:
    parts = [roofline_chart(rooflines)]
    parts.append(
        '<p class="note">Larger marks take more of the step. The roof is what the GPU could do at best: its memory '
        "bandwidth times the operations per byte, or its peak rate; what is still in its cache may beat it. Kernels "
        "that only move data are not shown.</p>"
    )
    for roofline in rooflines:
        rows = [
            [
                escape(point.name),
                format_percent(point.share),
                f"{point.intensity:,.1f}",
                format_rate(point.flops_per_second, "FLOP/s"),
                format_rate(point.limit, "FLOP/s"),
                format_percent(point.flops_per_second / point.limit),
            ]
            for point in roofline.points[:6]
        ]
        title = f"{PHASE_TITLES[roofline.phase]}: {_step_words(roofline)}"
        columns = ["kernel", "share", "operations per byte", "reaches", "roof", "of the roof"]
        parts.append(f"<h3>{escape(title)}</h3>" + _table(columns, rows))
    return "".join(parts)


def _step_words(roofline: StepRoofline) -> str:
    """What is in a step."""
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
            f"{each.number:,}",
            format_seconds(each.sent_at),
            f"{each.num_input:,}" + (f"<small>{each.num_cached:,} cached</small>" if each.num_cached else ""),
            format_seconds(each.ttft),
            escape(_reasons(each)),
        ]
        for each in slowest
    ]
    columns = ["request", "sent at", "prompt tokens", "TTFT", "where it went"]
    return charts.slowest_chart(slowest) + _table(columns, rows, words=(4,))


def _reasons(request: SlowRequest) -> str:
    """The largest parts of a first token's time, in words."""
    shares = sorted(((seconds / request.ttft, name) for name, seconds in request.parts.items()), reverse=True)
    return ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares[:4] if share >= 0.01)


def _sources(overview: Overview) -> str:
    rows = [*deployment_facts(overview.forecast.deployment), ("workload", overview.forecast.workload.description)]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in caveats(overview.forecast))
    return f"<dl>{facts}</dl><h3>Caveats</h3><ul>{items}</ul>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: tuple[int, ...] = (0,)) -> str:
    """A table of cells that are HTML already; the columns in ``words`` hold text."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["words" if position in words else "number" for position in range(len(row))]
        return "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, row, strict=True))

    head, body = cells("th", columns), "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
