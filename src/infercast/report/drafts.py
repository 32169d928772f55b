"""Speculative decoding in a forecast, for people and for programs."""

from __future__ import annotations

from typing import Any

from infercast.engines.deployment import Deployment
from infercast.engines.speculation import Drafting
from infercast.forecast.result import Forecast
from infercast.forecast.speculation import DraftRun, drafts_of
from infercast.units import format_percent

ASSUMED = "assumed; say what you see with --acceptance"


def drafting_words(drafting: Drafting) -> str:
    """How an engine drafts, and how many drafts are taken to be accepted."""
    acceptance = drafting.acceptance
    own = f" by {drafting.draft.config.name}" if drafting.draft is not None else ""
    source = f" ({acceptance.source}{f'; {ASSUMED}' if acceptance.is_assumed else ''})"
    return f"{drafting.title}{own}, {drafting.num_drafts} a step, acceptance length {acceptance.length:.2f}{source}"


def drafting_facts(deployment: Deployment) -> list[tuple[str, str]]:
    """Rows about a deployment that drafts."""
    drafting = deployment.drafting
    if drafting is None:
        return []
    return [("drafts", drafting_words(drafting)), *([("", drafting.note)] if drafting.note else [])]


def drafting_dict(drafting: Drafting | None) -> dict[str, Any] | None:
    """The same as plain data."""
    if drafting is None:
        return None
    return {
        "method": drafting.method,
        "num_speculative_tokens": drafting.num_drafts,
        "draft": None if drafting.draft is None else drafting.draft.config.name,
        "acceptance_rates": list(drafting.acceptance.rates),
        "acceptance_length": drafting.acceptance.length,
        "acceptance_source": drafting.acceptance.source,
        "acceptance_is_assumed": drafting.acceptance.is_assumed,
        "note": drafting.note or None,
    }


def draft_rows(forecast: Forecast) -> list[tuple[str, str]]:
    """What became of drafts, for people; nothing without any."""
    found = drafts_of(forecast)
    if found is None:
        return []
    counts = found.counts
    rates = ", ".join(format_percent(rate) for rate in counts.rates_by_position)
    words = (
        f"{counts.acceptance_length:.2f} tokens a step; {counts.num_accepted:,} of {counts.num_draft_tokens:,} drafts"
    )
    return [
        ("acceptance length", words),
        ("", f"by position {rates}"),
        ("drafts", f"{found.drafted_per_second:,.0f}/s, {found.accepted_per_second:,.0f}/s of them accepted"),
        ("decode steps", ", ".join(f"{name} {format_percent(share)}" for name, share in found.parts.items())),
    ]


def draft_run_dict(found: DraftRun | None) -> dict[str, Any] | None:
    """The same as plain data, by the words of engines' metrics."""
    if found is None:
        return None
    counts = found.counts
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_tokens": counts.num_accepted,
        "num_accepted_tokens_per_pos": counts.accepted_by_position,
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "acceptance_rate_per_pos": counts.rates_by_position,
        "drafted_tokens_per_s": found.drafted_per_second,
        "accepted_tokens_per_s": found.accepted_per_second,
        "decode_gpu_shares": found.parts,
    }
