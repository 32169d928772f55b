"""Candidates as deployments, and their step timers, each made once in a process.

A step timer is the costly part of a deployment. Candidates that differ in replicas share one. For a quick estimate, so
do those that differ in settings of the scheduler, and it is a rough one: steps of more tokens than it knows take as
long as several. What is simulated has a timer of its own, so that a row is what `simulate` says of the same thing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from infercast.engines.deployment import Deployment
from infercast.engines.registry import engine_named
from infercast.engines.settings import changed
from infercast.engines.timer import KernelTimer
from infercast.forecast.calibration.record import Calibration
from infercast.forecast.deploy import deploy, layout_arguments
from infercast.forecast.plan.axes import device_of, model_of
from infercast.forecast.plan.candidate import Candidate
from infercast.predict.default import make_predictor
from infercast.predict.roofline import Predictor

ROUGH_TOKENS = 4096
"""Tokens of the largest step that a quick estimate asks for."""


class Site(NamedTuple):
    """What all candidates of a question have in common."""

    model: str
    network: str | None
    pcie_topology: str | None
    api_server: bool
    predictor: str
    calibration: Calibration | None = None


@lru_cache(maxsize=16)
def _predictor(name: str, family: str) -> Predictor:
    return make_predictor(name, family)


@lru_cache(maxsize=4096)
def deployed(site: Site, unit: Candidate) -> Deployment:
    """One replica; raises what `deploy` raises where it does not fit or would not start."""
    engine = engine_named(unit.engine)
    sizes, settings = layout_arguments(engine, unit.layout)
    config = model_of(site.model, unit.quantization, unit.kv_cache_dtype, unit.engine)
    assert config is not None
    return deploy(
        config,
        device_of(unit.gpu, site.network),
        engine.settings({**settings, **dict(unit.settings)}),
        **sizes,
        pcie_topology=site.pcie_topology,
        power_limit_w=unit.power_limit,
        api_server=site.api_server,
        predictor=_predictor(site.predictor, engine.family),
        calibration=site.calibration,
    )


@lru_cache(maxsize=32)
def own_timer(site: Site, unit: Candidate) -> KernelTimer:
    """The step timer of a candidate, with steps as large as its settings allow and no larger."""
    return deployed(site, unit).timer()


def rough_timer(site: Site, units: tuple[Candidate, ...]) -> KernelTimer:
    """One timer for units that differ in settings alone, with steps of up to `ROUGH_TOKENS` tokens."""
    found = [deployed(site, unit) for unit in units]
    sequences = max(each.settings.max_num_seqs for each in found)
    tokens_name, sequences_name, _ = found[0].engine.bounds
    bounds = {sequences_name: sequences, tokens_name: max(ROUGH_TOKENS, sequences)}
    return replace(found[0], settings=changed(found[0].settings, **bounds)).timer()
