"""Steps and kernels of two runs side by side, as rows of tables and as plain data."""

from __future__ import annotations

from typing import Any

from infercast.forecast.reasons import reasons
from infercast.forecast.side_by_side import SameStep, Side, SideBySide
from infercast.units import MICRO, format_percent, format_seconds

Names = tuple[str, str]
TITLES = {"prefill": "prompts alone", "mixed": "prompts and decoding", "decode": "decoding alone"}
STEP_COLUMNS = ("", "steps", "GPU time", "tokens", "decoding", "padding", "between tokens")
"""Tokens and decoding sequences of a step on average; shares: of GPU time, and of the time between two tokens."""


def step_title(side: Side) -> str:
    """Whose steps, and how long the GPU waits in them."""
    return f"Steps of {side.name}: the GPU waits for its host in {format_percent(side.host_bound)} of their time"


def step_rows(side: Side) -> list[tuple[str, ...]]:
    """Each kind of step of a run."""
    return [
        (
            TITLES[kind.name],
            f"{kind.steps:,}",
            format_percent(kind.share),
            f"{kind.tokens:,.0f}",
            f"{kind.decoding:,.1f}",
            format_percent(kind.padding),
            format_percent(kind.of_gaps),
        )
        for kind in side.kinds
    ]


def family_columns(both: SideBySide) -> tuple[str, ...]:
    """Of the kernels of one step."""
    return ("", *(side.name for side in both.sides), "change")


def family_rows(step: SameStep) -> list[tuple[str, ...]]:
    """Seconds of each kernel family, and of the whole step with the way it is launched."""
    rows: list[tuple[str, ...]] = [
        (name, _seconds(one), _seconds(other), _change(one, other)) for name, one, other in step.families
    ]
    before, after = step.costs
    rows.append(("the step", *(_seconds(each.seconds) for each in step.costs), _change(before.seconds, after.seconds)))
    rows.append(("launched by", before.launch, after.launch, ""))
    rows.append(("tokens computed", f"{before.padded_tokens:,}", f"{after.padded_tokens:,}", ""))
    return rows


def sides_dict(both: SideBySide) -> dict[str, Any]:
    """The same as plain data, with the sentences that explain it."""
    return {
        "reasons": reasons(both),
        "steps": [_side_dict(side) for side in both.sides],
        "same_steps": [
            {
                "step": step.title,
                "before": _step_dict(step, 0),
                "after": _step_dict(step, 1),
            }
            for step in both.steps
        ],
    }


def _side_dict(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "engine": side.deployment.engine.name,
        "kv_cache_tokens": side.kv_tokens,
        "host_bound_share": side.host_bound,
        "prefix_hit_rate": side.prefix_hit_rate,
        "kinds": [kind._asdict() for kind in side.kinds],
    }


def _step_dict(step: SameStep, number: int) -> dict[str, Any]:
    cost = step.costs[number]
    return {
        "step_us": cost.seconds / MICRO,
        "launch": cost.launch,
        "padded_tokens": cost.padded_tokens,
        "families_us": {name: seconds[number] / MICRO for name, *seconds in step.families},
    }


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds > 0 else "-"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1.0):+.1f} %" if before > 0 and after > 0 else "-"
