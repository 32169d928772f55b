"""How many drafts are accepted, where results say it and nobody else does."""

from __future__ import annotations

from dataclasses import replace

from infercast.engines.acceptance import read_acceptance
from infercast.engines.deployment import Deployment
from infercast.engines.settings import changed


def with_acceptance(deployment: Deployment, length: float) -> Deployment:
    """The deployment with so many tokens a step, as far as its drafts allow; one that was told how many stays."""
    drafting = deployment.drafting
    if drafting is None or not drafting.acceptance.is_assumed:
        return deployment
    within = min(max(length, 1.0), drafting.num_drafts + 1.0)
    accepted = read_acceptance(f"length={within:.6g}", drafting.num_drafts)
    known = replace(drafting, acceptance=accepted._replace(source="measured results"))
    return replace(deployment, settings=changed(deployment.settings, drafting=known))
