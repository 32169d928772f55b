"""Where GPU time goes: kernels of one step, time breakdown of a run, and the diagnosis of slow kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from infercast.engines.base import Deployment
from infercast.forecast.deploy import estimate_notes
from infercast.forecast.estimate import KernelPower
from infercast.forecast.explain.breakdown import Breakdown, KernelPart, Range, RequestParts
from infercast.forecast.explain.diagnose import Diagnosis, Finding, Gap, Saving
from infercast.forecast.explain.overview import SlowRequest, slowest_requests
from infercast.forecast.explain.step_log import KINDS
from infercast.forecast.kernels import KernelCost, StepCost
from infercast.forecast.slo import NAMES
from infercast.forecast.tune import experts_of, is_tunable
from infercast.report.caveats import caveat_section, caveats
from infercast.report.deployment import deployment_dict, deployment_facts, workload_dict
from infercast.report.forecast import latency_cells
from infercast.report.quantities import LATENCIES, milliseconds
from infercast.report.terminal import (
    Facts,
    Field,
    Grid,
    Printable,
    Renderers,
    Section,
    at,
    cells,
    in_ms,
    in_us,
    pick,
    record,
)
from infercast.units import (
    MICRO,
    MILLI,
    format_joules,
    format_many,
    format_percent,
    format_rate,
    format_seconds,
    format_watts,
)

STEP_TIMES = {
    "gpu_us": "gpu.seconds", "gpu_low_us": "gpu.low", "gpu_high_us": "gpu.high", "gap_us": "gap_seconds",
    "host_us": "host_seconds", "step_us": "seconds",
}  # fmt: skip
PLACES = {"prefill": "prompts", "decode": "decoding"}
CEILING = "the latency that one in ten measured kernels of the shape beats, over GPUs and engines (docs/diagnose.md)"


BY_PLACE = "What a token is made of, by its place in the answer"


GAP_FIELDS: tuple[Field[Gap], ...] = (
    Field("phase", lambda gap: gap.phase, "steps of", PLACES.__getitem__),
    Field("tokens", lambda gap: gap.tokens, "tokens", "{:,}".format),
    Field("us", lambda gap: gap.seconds, "forecast", format_seconds, data=in_us),
    Field("ceiling_us", lambda gap: gap.ceiling, "best", format_seconds, data=in_us),
    Field(
        "limit_us", lambda gap: gap.limit, "hard limit",
        lambda seconds: format_seconds(seconds) if seconds >= 0.1 * MICRO else "< 0.1 us", data=in_us,
    ),
    Field("attained", lambda gap: gap.attained, "reaches", format_percent),
    Field("share_of_gpu_time", lambda gap: gap.share, "GPU time", format_percent),
    Field("lost_share_of_gpu_time", lambda gap: gap.loss, "lost", format_percent),
)  # fmt: skip


def render_step(deployment: Deployment, cost: StepCost, question: str, *, explain: bool = False) -> list[Printable]:
    parts = [Section("Deployment", Facts(deployment_facts(deployment))), *render_cost(cost, question)]
    if notes := estimate_notes(deployment):
        parts.append(Section("Notes", Facts((f"{number}", note) for number, note in enumerate(notes, start=1))))
    if explain:
        parts.append(Section("What one launch is made of", Facts(_explained(kernel) for kernel in _ranked(cost))))
    return parts


def render_cost(cost: StepCost, question: str = "") -> list[Printable]:
    padded = f", padded to {cost.padded_tokens:,}" if cost.padded_tokens != cost.num_tokens else ""
    gpu = cost.gpu
    seconds, low, high = (format_seconds(float(each)) for each in (gpu.seconds, gpu.low, gpu.high))
    summary = [
        *([("step", question)] if question else []),
        ("tokens", f"{cost.num_tokens:,}{padded}, launched as {cost.launch}"),
        ("all kernels", f"{seconds} (80 % interval {low} to {high})"),
        ("rest on", _sources(cost)),
        ("between them", f"{format_seconds(cost.gap_seconds)} beyond what their estimates include"),
        ("host time", f"{format_seconds(cost.host_seconds)}, hidden where the GPU takes longer"),
        ("step time", format_seconds(cost.seconds)),
        ("step energy", f"{format_joules(cost.joules)} per GPU, {format_watts(cost.watts)} ({cost.board.source})"),
    ]
    kernels = cells(_kernel_fields(cost), _ranked(cost))
    return [Section("Step", Facts(summary)), Section("Kernels", Grid(*kernels, text_columns=2, notes_at=(6,)))]


def _sources(cost: StepCost) -> str:
    shares: dict[str, float] = {}
    for kernel in cost.kernels:
        shares[kernel.estimate.source] = shares.get(kernel.estimate.source, 0.0) + kernel.seconds
    ranked = sorted(shares.items(), key=lambda each: -each[1])
    return ", ".join(f"{source} {format_percent(each / sum(shares.values()))}" for source, each in ranked)


def _explained(kernel: KernelCost) -> tuple[str, str]:
    """The terms of one estimate, largest first; factors last."""
    seconds = sorted(((value, name) for name, value in kernel.terms.items() if "factor" not in name), reverse=True)
    factors = [(name, value) for name, value in kernel.terms.items() if "factor" in name]
    words = [f"{name} {format_seconds(value)}" for value, name in seconds if value > 0]
    return kernel.name, ", ".join([*words, *(f"{name} {value:.2f}" for name, value in factors)])


def step_dict(deployment: Deployment, cost: StepCost) -> dict[str, Any]:
    found = cost_dict(cost)
    kernels = found.pop("kernels")
    notes = estimate_notes(deployment)
    return {"deployment": deployment_dict(deployment), **found, "notes": notes, "kernels": kernels}


def cost_dict(cost: StepCost) -> dict[str, Any]:
    fields = _kernel_fields(cost)
    return {
        **pick(cost, "num_tokens padded_tokens launch joules watts kind"),
        **{key: float(at(path)(cost)) / MICRO for key, path in STEP_TIMES.items()},
        **pick(cost, power_source="board.source", source="gpu.source"),
        "kernels": [record(fields, kernel) for kernel in _ranked(cost)],
    }


def _ranked(cost: StepCost) -> list[KernelCost]:
    return sorted(cost.kernels, key=lambda kernel: -kernel.seconds)


def _kernel_fields(cost: StepCost) -> tuple[Field[KernelCost], ...]:
    board, gpu_seconds = cost.board, float(cost.gpu.seconds)
    return (
        Field("name", lambda kernel: kernel.name, "kernel"), Field("family", lambda kernel: kernel.family, "family"),
        Field("launches", lambda kernel: kernel.count, "launches", "{:,}".format),
        Field("us", lambda kernel: float(kernel.estimate.seconds), "one", format_seconds, data=in_us),
        Field("low_us", lambda kernel: float(kernel.estimate.low), data=in_us),
        Field("high_us", lambda kernel: float(kernel.estimate.high), data=in_us),
        Field("total_us", lambda kernel: kernel.seconds, "all", format_seconds, data=in_us),
        Field("", lambda kernel: kernel.seconds / gpu_seconds, "share", format_percent),
        Field("source", lambda kernel: kernel.estimate.source),
        Field("bound", lambda kernel: kernel.estimate.bound, "bound by", data=str),
        Field("achieved", lambda kernel: kernel.achieved), Field("limit", lambda kernel: kernel.limit),
        Field("unit", lambda kernel: kernel.unit),
        Field("", lambda kernel: format_rate(kernel.achieved, kernel.unit), "reaches"),
        Field("", lambda kernel: format_rate(kernel.limit, kernel.unit), "limit"),
        Field("watts", lambda kernel: kernel.watts(board), "power", format_watts),
        Field("joules", lambda kernel: kernel.joules(board) / kernel.count),
        Field("total_joules", lambda kernel: kernel.joules(board), "energy", format_joules),
        Field("terms", lambda kernel: kernel.terms),
    )  # fmt: skip


def power_facts(power: KernelPower) -> list[tuple[str, str]]:
    limited = ", the board's limit: without a pause launches take longer" if power.is_limited else ""
    interval = f"80 % interval {format_watts(power.low)} to {format_watts(power.high)}, {power.source}"
    each = "" if power.joules_per_flop is None else f", {1e12 * power.joules_per_flop:.3g} pJ per FLOP"
    found = [
        ("board power", f"{format_watts(power.watts)}{limited} ({interval})"),
        ("energy", f"{format_joules(power.joules)} per launch{each}"),
    ]
    if power.meter_watts is not None and power.meter_low is not None and power.meter_high is not None:
        read = f"80 % interval {format_watts(power.meter_low)} to {format_watts(power.meter_high)}"
        found.append(("a meter shows", f"{format_watts(power.meter_watts)} over at most 3,000 launches ({read})"))
    return found


def power_dict(power: KernelPower) -> dict[str, Any]:
    ends = {"low_watts": "low", "high_watts": "high", "meter_low_watts": "meter_low", "meter_high_watts": "meter_high"}
    return pick(power, "watts joules joules_per_flop source meter_watts", **ends, limited="is_limited")


def render_breakdown(breakdown: Breakdown) -> list[Printable]:
    several = f", on {breakdown.side_by_side:,} replicas and stages" if breakdown.side_by_side > 1 else ""
    title = f"Where every second of the {format_seconds(breakdown.duration)} goes{several}"
    parts: list[Printable] = [
        Section(title, _run_table(breakdown)),
        Section("Where the time to first token goes, per request", _parts_table(breakdown.first_tokens)),
        Section("The slowest first tokens", _slowest_table(breakdown)),
    ]
    if breakdown.later_tokens is not None:
        parts.append(Section("Where the time per output token goes", _parts_table(breakdown.later_tokens)))
    if breakdown.composition:
        parts.append(Section(BY_PLACE, Grid(*composition_cells(breakdown.composition))))
    return parts


def render_parts(breakdown: Breakdown) -> list[Printable]:
    """The same for a screen or a notebook, by families and without the requests that it is of."""
    parts = [_run_table(breakdown, families=True), Section("TTFT, per request", _parts_table(breakdown.first_tokens))]
    if breakdown.later_tokens is not None:
        parts.append(Section("TPOT", _parts_table(breakdown.later_tokens)))
    return parts


def by_family(breakdown: Breakdown) -> list[tuple[str, list[KernelPart]]]:
    ordered = sorted(breakdown.kernels, key=lambda part: part.family)
    families = [(name, list(parts)) for name, parts in groupby(ordered, key=lambda part: part.family)]
    return sorted(families, key=lambda family: -sum(part.total for part in family[1]))


def _run_table(breakdown: Breakdown, *, families: bool = False) -> Printable:
    rows = []
    for family, kernels in by_family(breakdown):
        seconds = {kind: sum(kernel.seconds[kind] for kernel in kernels) for kind in KINDS}
        rows.append(_run_row(family, seconds, breakdown.whole))
        if not families and (len(kernels) > 1 or kernels[0].name != family):
            rows += [_run_row(f"  {kernel.name}", kernel.seconds, breakdown.whole) for kernel in kernels]
    rows.append(_run_row(breakdown.host.name, breakdown.host.seconds, breakdown.whole))
    rows.append(("no request in the system", "", "", "", *_total(breakdown.idle_seconds, breakdown.whole)))
    steps = [format_many(breakdown.steps[kind], f"{kind} step") for kind in KINDS]
    least_family = 0.005  # families with a smaller share are left out on a screen
    least = 100 * least_family if families else 0.0
    shown = [row for row in rows if float(row[-1].split()[0]) >= least and row[-1] != format_percent(0.0)]
    return Grid(("", *steps, "all", "share"), shown)


def _run_row(name: str, seconds: dict[str, float], whole: float) -> tuple[str, ...]:
    cells = (format_seconds(seconds[kind]) if seconds[kind] > 0 else "-" for kind in KINDS)
    return (name, *cells, *_total(sum(seconds.values()), whole))


def _total(seconds: float, whole: float) -> tuple[str, str]:
    return (format_seconds(seconds) if seconds > 0 else "-"), format_percent(seconds / whole)


def _parts_table(parts: RequestParts) -> Printable:
    columns = [parts.mean(), parts.mean(parts.slowest)]
    totals = [sum(column.values()) for column in columns]
    rows = []
    shown_share = 0.0005  # parts below this share are left out of tables, never out of JSON
    for name in parts.parts:
        if max(column[name] / total for column, total in zip(columns, totals, strict=True)) >= shown_share:
            cells = [
                cell
                for column, total in zip(columns, totals, strict=True)
                for cell in (format_seconds(max(column[name], 0.0)), format_percent(max(column[name], 0.0) / total))
            ]
            rows.append((name, *cells))
    rows.append(("together", format_seconds(totals[0]), "", format_seconds(totals[1]), ""))
    count = parts.slowest.size
    slowest = "the slowest" if count == 1 else f"slowest {count:,}"
    return Grid(("", f"all {parts.total.size:,}", "share", slowest, "share"), rows)


def _slowest_table(breakdown: Breakdown) -> Printable:
    rows = [
        (f"{each.number:,}", format_seconds(each.sent_at), f"{each.num_input:,}", format_seconds(each.ttft),
         largest_parts(each))
        for each in slowest_requests(breakdown)[:5]
    ]  # fmt: skip
    return Grid(("request", "sent at", "prompt", "TTFT", "largest parts"), rows, text_columns=0, notes_at=(4,))


def largest_parts(request: SlowRequest) -> str:
    shares = sorted(((seconds / request.ttft, name) for name, seconds in request.parts.items()), reverse=True)
    return ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares[:4] if share >= 0.01)


def composition_cells(composition: Sequence[Range]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows: what a token takes in each range of places, and the shares of kernel families in it."""
    sums: dict[str, float] = {}
    for each in composition:
        for family, seconds in each.families.items():
            sums[family] = sums.get(family, 0.0) + seconds * each.tokens
    shown = sorted(sums, key=lambda family: -sums[family])[:5]
    rows = []
    for each in composition:
        shares = [each.families[family] / each.seconds for family in shown]
        cells = [format_percent(share) for share in (*shares, max(0.0, 1.0 - sum(shares)))]
        rows.append((f"{each.first:,} to {each.last:,}", f"{each.requests:,}", format_seconds(each.seconds), *cells))
    return ("token", "requests", "per token", *shown, "rest"), rows


def breakdown_dict(breakdown: Breakdown) -> dict[str, Any]:
    return {
        **pick(breakdown, "duration_s=duration side_by_side steps"),
        "kernels": [pick(each, "kernel=name family seconds") for each in breakdown.kernels],
        **pick(breakdown, "host_seconds=host.seconds idle_seconds"), "ttft": _parts_dict(breakdown.first_tokens),
        "tpot": _parts_dict(breakdown.later_tokens),
        "by_tokens_generated": [
            {
                **pick(each, "first last requests tokens"), "ms": in_ms(each.seconds),
                "families_ms": {name: in_ms(seconds) for name, seconds in each.families.items()},
            }
            for each in breakdown.composition
        ],
    }  # fmt: skip


def _parts_dict(parts: RequestParts | None) -> dict[str, Any] | None:
    if parts is None:
        return None

    def request(position: int) -> dict[str, Any]:
        each = {name: float(part[position]) / MILLI for name, part in parts.parts.items()}
        return {"request": int(parts.requests[position]), "ms": float(parts.total[position]) / MILLI, "parts_ms": each}

    return {
        "mean_ms": {name: seconds / MILLI for name, seconds in parts.mean().items()},
        "slowest_mean_ms": {name: seconds / MILLI for name, seconds in parts.mean(parts.slowest).items()},
        "slowest": [request(position) for position in parts.slowest.tolist()],
    }


def render_diagnosis(diagnosis: Diagnosis) -> list[Printable]:
    forecast = diagnosis.forecast
    workload = f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated"
    latencies = [(each.title, *latency_cells(getattr(forecast, each.name))) for each in LATENCIES[:2]]
    return [
        Section("What was simulated", Facts([*deployment_facts(forecast.deployment), ("workload", workload)])),
        Section("Latency", Grid(("", *NAMES), latencies)),
        Section("What would help, most first", Facts(_numbered(diagnosis))),
        Section("Kernels against the best of their shape, one launch in an average step", _gap_table(diagnosis)),
        caveat_section(caveats(forecast)),
    ]


def _numbered(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    said = 8  # findings in words; the table has all
    lines = [(str(number), _sentence(each)) for number, each in enumerate(diagnosis.findings[:said], start=1)]
    if not lines:
        lines.append(("", "Every kernel is about as good as the best of its shape."))
    else:
        lines.append(("all", f"All gaps closed together would save {_saved(diagnosis.everything)}."))
    lines.append(("host", f"A host that takes no time would save {_saved(diagnosis.host)}."))
    if command := _tune_command(diagnosis):
        lines.append(("tune", f"Launch configurations of the experts' kernel are ranked by: {command}"))
    if diagnosis.not_judged:
        words = ", ".join(diagnosis.not_judged)
        lines.append(("not judged", f"{words}: no such kernel was measured to compare with."))
    return [(name, line.replace(" %", "\N{NO-BREAK SPACE}%")) for name, line in lines]


def _sentence(finding: Finding) -> str:
    gap = finding.gaps[0]
    verb = "run" if " and " in finding.name else "runs"
    family = "" if finding.family == finding.name else f" ({finding.family})"
    near = 0.95  # a kernel that reaches so much of its ceiling is as good as there
    others = [each for each in finding.gaps[1:] if each.attained < near]
    more = "".join(f", at {each.tokens:,} tokens {100 * each.attained:.0f} %" for each in others)
    times = f"{format_seconds(gap.seconds)} against {format_seconds(gap.ceiling)}{more}"
    return (
        f"{finding.name}{family} at {gap.tokens:,} tokens {verb} at {100 * gap.attained:.0f} % of what the best "
        f"kernels of this shape reach ({times}); closing the gap saves {_saved(finding.saving)}."
    )


def _tune_command(diagnosis: Diagnosis) -> str:
    """The command that looks for a better launch of experts with a gap; empty where there are none it knows."""
    deployment = diagnosis.forecast.deployment
    layout, experts = deployment.layout, experts_of(deployment.model, deployment.layout)
    launches = deployment.engine.expert_launches
    if experts is None or not is_tunable(experts, launches) or all(each.family != "moe" for each in diagnosis.findings):
        return ""
    parallel = f" --tensor-parallel-size {layout.tensor}" if layout.tensor > 1 else ""
    spread = " --enable-expert-parallel" if layout.experts else ""
    quantised = " --quantization fp8" if experts.dtype == "fp8" else ""
    return f"infercast tune {deployment.model.name} --gpu {deployment.gpu.name}{parallel}{spread}{quantised}"


def _saved(saving: Saving) -> str:
    parts = [(saving.ttft, "of TTFT"), (saving.tpot, "of TPOT")]
    words = [f"{format_percent(share)} {what}" for share, what in parts if share >= 0.0005]
    text = " and ".join(words) or "next to nothing"
    return f"{text}, for {format_percent(saving.throughput)} more tokens/s" if saving.throughput >= 0.005 else text


def _gap_table(diagnosis: Diagnosis) -> Printable:
    rows = []
    for finding in diagnosis.findings:
        _, gaps = cells(GAP_FIELDS, finding.gaps)
        rows += [("" if number else finding.name, *gap) for number, gap in enumerate(gaps)]
    return Grid(("kernel", *cells(GAP_FIELDS, ())[0]), rows, text_columns=2)


def diagnosis_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    forecast = diagnosis.forecast
    return {
        "deployment": deployment_dict(forecast.deployment),
        "workload": workload_dict(forecast.workload),
        "ttft_ms": milliseconds(forecast.ttft),
        "tpot_ms": milliseconds(forecast.tpot),
        "output_tokens_per_s": forecast.output_tokens_per_second,
        "ceiling": CEILING,
        "findings": [
            {
                **pick(each, "family source kernel=name"), "saving": asdict(each.saving),
                "gaps": [record(GAP_FIELDS, gap) for gap in each.gaps], "sentence": _sentence(each),
            }
            for each in diagnosis.findings
        ],
        "all_gaps_closed": asdict(diagnosis.everything),
        "free_host": asdict(diagnosis.host),
        "not_judged": list(diagnosis.not_judged),
        "caveats": caveats(forecast),
    }  # fmt: skip


RENDERERS = {
    "Breakdown": Renderers(breakdown_dict, render_parts, rows="kernels"),
    "Diagnosis": Renderers(diagnosis_dict, render_diagnosis, rows="findings"),
    "StepCost": Renderers(cost_dict, render_cost, rows="kernels"),
}
