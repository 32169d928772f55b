"""Turns, sessions and classes of a workload, for people and for programs."""

from __future__ import annotations

from typing import Any

from infercast.forecast.by_part import ClassRun, SessionsRun
from infercast.forecast.result import Forecast
from infercast.report.quantities import milliseconds
from infercast.units import format_percent, format_seconds

TURN_COLUMNS = ["turn", "requests", "prompt tokens", "found in cache", "TTFT p50", "TTFT p95", "end to end p50"]
CLASS_COLUMNS = [
    "class",
    "priority",
    "requests",
    "TTFT p50",
    "TTFT p95",
    "TPOT p50",
    "end to end p95",
    "SLO",
    "attained",
]


def session_rows(sessions: SessionsRun) -> list[tuple[str, str]]:
    """Facts of all sessions."""
    time = sessions.time
    return [
        ("sessions", f"{sessions.count:,}, {sessions.turns_each:.1f} turns each on average"),
        (
            "session time",
            f"p50 {format_seconds(time.p50)}, p95 {format_seconds(time.p95)}; "
            f"{format_percent(sessions.waiting_share)} of it waiting for answers",
        ),
        ("prefix cache", f"{format_percent(sessions.hit_share)} of the sessions' prompt tokens found"),
    ]


def turn_cells(sessions: SessionsRun) -> list[list[str]]:
    """A row for each turn."""
    return [
        [
            each.name,
            f"{each.requests:,}",
            f"{each.input_tokens:,.0f}",
            format_percent(each.hit_share),
            format_seconds(each.ttft.p50),
            format_seconds(each.ttft.p95),
            format_seconds(each.end_to_end.p50),
        ]
        for each in sessions.turns
    ]


def class_cells(classes: tuple[ClassRun, ...]) -> list[list[str]]:
    """A row for each class."""
    return [
        [
            each.name,
            f"{each.priority}",
            f"{each.requests:,}",
            format_seconds(each.ttft.p50),
            format_seconds(each.ttft.p95),
            "-" if each.tpot is None else format_seconds(each.tpot.p50),
            format_seconds(each.end_to_end.p95),
            ", ".join(f"{name} < {format_seconds(seconds)}" for name, seconds in each.limits) or "-",
            "-" if each.attainment is None else format_percent(each.attainment),
        ]
        for each in classes
    ]


def part_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data; keys are there only where a workload has such parts."""
    fields: dict[str, Any] = {}
    if (sessions := forecast.sessions) is not None:
        fields["sessions"] = {
            "count": sessions.count,
            "turns_each": sessions.turns_each,
            "time_ms": milliseconds(sessions.time),
            "waiting_share": sessions.waiting_share,
            "prefix_hit_rate": sessions.hit_share,
            "turns": [
                {
                    "turn": each.first,
                    "and_later": each.last is None,
                    "requests": each.requests,
                    "input_tokens": each.input_tokens,
                    "prefix_hit_rate": each.hit_share,
                    "ttft_ms": milliseconds(each.ttft),
                    "end_to_end_ms": milliseconds(each.end_to_end),
                }
                for each in sessions.turns
            ],
        }
    if classes := forecast.classes:
        fields["classes"] = [
            {
                "class": each.name,
                "priority": each.priority,
                "requests": each.requests,
                "limits_s": dict(each.limits),
                "slo_attainment": each.attainment,
                "ttft_ms": milliseconds(each.ttft),
                "tpot_ms": milliseconds(each.tpot),
                "end_to_end_ms": milliseconds(each.end_to_end),
            }
            for each in classes
        ]
    return fields
