"""A diagnosis, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from infercast.forecast.explain.diagnose import Diagnosis, Finding, Gap, Saving
from infercast.forecast.latency import NAMES
from infercast.forecast.tune.advice import experts_of, is_tunable
from infercast.report.caveats import caveat_section, caveats
from infercast.report.deployment import deployment_dict, deployment_facts, workload_dict
from infercast.report.forecast import latency_cells
from infercast.report.layout import facts, grid, section
from infercast.report.quantities import milliseconds
from infercast.units import MICRO, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

PLACES = {"prefill": "prompts", "decode": "decoding"}
NEAR = 0.95
"""A kernel that reaches so much of its ceiling is as good as there."""
SAID = 8
"""Findings in words; the table has all."""
CEILING = "the latency that one in ten measured kernels of the shape beats, over GPUs and engines (docs/diagnose.md)"


def render_diagnosis(diagnosis: Diagnosis) -> list[RenderableType]:
    """Sentences and tables for a terminal."""
    forecast = diagnosis.forecast
    workload = f"{forecast.workload.description}; {forecast.duration:,.1f} s simulated"
    latencies = grid(
        ("", *NAMES),
        [
            ("time to first token (TTFT)", *latency_cells(forecast.ttft)),
            ("time per output token (TPOT)", *latency_cells(forecast.tpot)),
        ],
    )
    return [
        section("What was simulated", facts([*deployment_facts(forecast.deployment), ("workload", workload)])),
        section("Latency", latencies),
        section("What would help, most first", facts(_numbered(diagnosis))),
        section("Kernels against the best of their shape, one launch in an average step", _gap_table(diagnosis)),
        caveat_section(caveats(forecast)),
    ]


def _numbered(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Each finding in words, then what is left: all of them together, and the host."""
    lines = [(str(number), _sentence(each)) for number, each in enumerate(diagnosis.findings[:SAID], start=1)]
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
    others = [each for each in finding.gaps[1:] if each.attained < NEAR]
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


def _gap_table(diagnosis: Diagnosis) -> RenderableType:
    rows = [
        (
            finding.name if number == 0 else "",
            PLACES[gap.phase],
            f"{gap.tokens:,}",
            format_seconds(gap.seconds),
            format_seconds(gap.ceiling),
            format_seconds(gap.limit) if gap.limit >= 0.1 * MICRO else "< 0.1 us",
            format_percent(gap.attained),
            format_percent(gap.share),
            format_percent(gap.loss),
        )
        for finding in diagnosis.findings
        for number, gap in enumerate(finding.gaps)
    ]
    columns = ("kernel", "steps of", "tokens", "forecast", "best", "hard limit", "reaches", "GPU time", "lost")
    return grid(columns, rows, text_columns=2)


def diagnosis_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same as plain data."""
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
                "kernel": finding.name,
                "family": finding.family,
                "source": finding.source,
                "saving": asdict(finding.saving),
                "gaps": [_gap_dict(gap) for gap in finding.gaps],
                "sentence": _sentence(finding),
            }
            for finding in diagnosis.findings
        ],
        "all_gaps_closed": asdict(diagnosis.everything),
        "free_host": asdict(diagnosis.host),
        "not_judged": list(diagnosis.not_judged),
        "caveats": caveats(forecast),
    }


def _gap_dict(gap: Gap) -> dict[str, Any]:
    return {
        "phase": gap.phase,
        "tokens": gap.tokens,
        "us": gap.seconds / MICRO,
        "ceiling_us": gap.ceiling / MICRO,
        "limit_us": gap.limit / MICRO,
        "attained": gap.attained,
        "share_of_gpu_time": gap.share,
        "lost_share_of_gpu_time": gap.loss,
    }
