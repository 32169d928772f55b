"""Charts of a run's load, of its steps and of its slowest requests, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.forecast.explain.breakdown import Breakdown
from infercast.forecast.explain.overview import Overview, SlowRequest
from infercast.forecast.explain.step_log import KINDS
from infercast.report.page.canvas import draw, room
from infercast.report.page.stack import Part, Stack
from infercast.report.page.svg import GRID, SERIES, Tips
from infercast.units import MILLI

COLOURS = {
    "gemm": SERIES[0], "attention": SERIES[1], "moe": SERIES[2], "lm_head": SERIES[3], "norm": SERIES[4],
    "activation": SERIES[5], "collective": SERIES[6], "kv_write": SERIES[7], "rope": SERIES[8],
}  # fmt: skip
OTHERS, HOST = SERIES[9], GRID
KIND_TITLES = {"prefill": "prompts alone", "mixed": "prompts beside decoding", "decode": "decoding alone"}
PART_COLOURS = (
    SERIES[4], SERIES[1], SERIES[3], HOST, SERIES[0], SERIES[6], SERIES[8], GRID, OTHERS,
    SERIES[2], SERIES[5], SERIES[7], SERIES[3], OTHERS,
)  # fmt: skip
"""Of the parts of the time to first token; the second line is of a link and a decode pool."""


def load_chart(overview: Overview) -> str:
    """Requests in the system, tokens and KV cache over time."""
    load = overview.load

    def paint(figure: Any, tips: Tips) -> None:
        del tips
        panels = figure.subplots(3, 1, sharex=True, gridspec_kw=room(figure, left=0.6, hspace=0.42))
        requests, tokens, cache = panels
        requests.plot(load.times, load.running, color=SERIES[0], lw=1.3, label="running")
        requests.plot(load.times, load.waiting, color=SERIES[1], lw=1.3, label="waiting")
        requests.set(title="requests", ylim=(0, None))
        requests.legend(
            loc="lower right", ncols=2, bbox_to_anchor=(1.0, 0.98), borderaxespad=0, handlelength=1.2, columnspacing=1
        )
        tokens.fill_between(load.times, load.output_tokens, color=SERIES[2], alpha=0.35, lw=0)
        tokens.plot(load.times, load.output_tokens, color=SERIES[2], lw=1.1)
        tokens.set(title="output tokens per second", ylim=(0, None))
        tokens.yaxis.set_major_formatter("{x:,g}")
        cache.fill_between(load.times, [100 * use for use in load.kv_usage], color=SERIES[3], alpha=0.35, lw=0)
        cache.plot(load.times, [100 * use for use in load.kv_usage], color=SERIES[3], lw=1.1)
        peak = 100 * max(load.kv_usage)
        cache.set(title="KV cache in use, % of its blocks", xlabel="seconds after the first request was sent")
        cache.set_ylim(0, min(100.0, 1.25 * peak) if peak else 1.0)
        cache.set_xlim(0, overview.forecast.duration)

    return draw("load", "Running and waiting requests, output tokens and KV cache use over time", 5.0, paint)


def composition_chart(breakdown: Breakdown) -> str:
    """What steps of each kind are made of, by kernel family."""
    kinds = [kind for kind in KINDS if breakdown.steps[kind]]
    families: dict[str, dict[str, float]] = {}
    for each in breakdown.kernels:
        of_family = families.setdefault(each.family, dict.fromkeys(KINDS, 0.0))
        for kind in KINDS:
            of_family[kind] += each.seconds[kind]
    host = breakdown.host.name
    rows = [*families.items(), (host, breakdown.host.seconds)]
    totals = {kind: sum(seconds[kind] for _, seconds in rows) for kind in kinds}
    parts = [
        Part(name, HOST if name == host else COLOURS.get(name, OTHERS), [100 * of[k] / totals[k] for k in kinds])
        for name, of in rows
    ]
    labels = [f"{KIND_TITLES[kind]}\n{_count(breakdown.steps[kind], 'step')}" for kind in kinds]
    stack = Stack(labels, parts, "%", "% of the time of these steps", 0.5, 1.75)
    return stack.chart("composition", "Kernel families in steps of prompts and of decoding")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def slowest_chart(slowest: Sequence[SlowRequest]) -> str:
    """Where the slowest first tokens spent their time."""
    parts = [
        Part(name, PART_COLOURS[number % len(PART_COLOURS)], [max(0.0, each.parts[name]) / MILLI for each in slowest])
        for number, name in enumerate(slowest[0].parts)
    ]
    labels = [f"request {each.number:,}" for each in slowest]
    stack = Stack(labels, parts, "ms", "ms to the first token", 0.27, 1.0)
    return stack.chart("slowest", "Parts of the time to first token of the slowest requests")
