"""What speculative decoding did in a simulated run: drafts, those accepted, and what verifying and drafting took."""

from __future__ import annotations

from typing import NamedTuple

from infercast.engines.speculation import Drafting
from infercast.forecast.explain.phases import Phase
from infercast.forecast.result import Forecast
from infercast.models.lower import DRAFT_PREFIX
from infercast.serve.speculation import DraftCounts

VERIFYING = ("lm_head", "logits_gather", "sampling", "rejection")
"""Kernels of the target that see a row for every draft."""
TARGET, VERIFY, DRAFT = "target", "verify", "draft"


class DraftRun(NamedTuple):
    """Of all replicas that draft."""

    drafting: Drafting
    counts: DraftCounts
    drafted_per_second: float
    accepted_per_second: float
    parts: dict[str, float]
    """Shares of the GPU's time in steps without prompts: the target's layers, its head and sampling, and drafting."""


def drafts_of(forecast: Forecast) -> DraftRun | None:
    """What became of drafts; None without speculative decoding."""
    pool = forecast.pools[-1]
    drafting = pool.deployment.drafting
    if drafting is None:
        return None
    counts = DraftCounts()
    for record in pool.records:
        counts.add(record.drafts)
    seconds = forecast.duration
    return DraftRun(
        drafting,
        counts,
        counts.num_draft_tokens / seconds,
        counts.num_accepted / seconds,
        _parts(pool.phases),
    )


def _parts(phases: tuple[Phase, ...]) -> dict[str, float]:
    found = {TARGET: 0.0, VERIFY: 0.0, DRAFT: 0.0}
    for phase in phases:
        if phase.name != "decode":
            continue
        for family in phase.families:
            for kernel, seconds in family.kernels:
                part = DRAFT if kernel.startswith(DRAFT_PREFIX) else VERIFY if kernel in VERIFYING else TARGET
                found[part] += seconds
    whole = sum(found.values())
    return {name: seconds / whole for name, seconds in found.items()} if whole else {}
