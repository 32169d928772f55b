"""Predicted kernels against an engine's profile, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from infercast.report.layout import grid, section
from infercast.units import format_percent
from infercast.validate.kernels import ProfileComparison, summarise
from infercast.validate.parts import Comparison


def render_profiles(profiles: Sequence[ProfileComparison]) -> list[RenderableType]:
    """One table a profile, then medians over all."""
    parts = [_render(profile) for profile in profiles]
    summary = summarise(profiles)
    rows = [
        ("kernel families with 1 % of a profile's time or more", summary["kernel_ape_median"]),
        ("GPU busy time of a step", summary["busy_ape_median"]),
    ]
    table = grid(
        ("", "median error"), [(name, "-" if error is None else format_percent(error)) for name, error in rows]
    )
    covered = summary["kernel_time_covered"]
    note = (
        "no profile in these files"
        if covered is None
        else f"{format_percent(covered)} of the profiled time is estimated"
    )
    return [*parts, section("Kernels of profiled steps", Group(Text(f"{note}\n"), table))]


def _render(profile: ProfileComparison) -> RenderableType:
    rows = [
        _row(name if name in profile.scored else f"{name} (below 1 %)", values)
        for name, values in profile.families.items()
        if values.measured > 0
    ]
    rows.append(_row("all kernels", profile.busy))
    return section(f"{profile.file}: {profile.tag}", grid(("family", "measured ms", "predicted ms", "error"), rows))


def _row(name: str, values: Comparison) -> tuple[str, ...]:
    off = f"{100 * (values.predicted / values.measured - 1):+,.1f} %"
    return name, f"{values.measured / 1e3:,.2f}", f"{values.predicted / 1e3:,.2f}", off


def profiles_list(profiles: Sequence[ProfileComparison]) -> list[dict[str, Any]]:
    """The same as plain data; ``ape`` is a fraction."""
    return [
        {
            "file": profile.file,
            "tag": profile.tag,
            "families": {name: _pair(values) for name, values in profile.families.items()},
            "busy": _pair(profile.busy),
        }
        for profile in profiles
    ]


def _pair(values: Comparison) -> dict[str, float]:
    return {"measured_us": values.measured, "predicted_us": values.predicted, "ape": values.ape}
