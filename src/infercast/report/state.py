"""How a deployment copes with its load and what it waits for, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infercast.engines.deployment import Deployment
from infercast.forecast.explain.phases import Phase, host_bound_share
from infercast.forecast.intervals.uncertainty import borrowed_share
from infercast.forecast.result import Forecast
from infercast.forecast.saturation import State
from infercast.forecast.steady import SteadyState
from infercast.units import format_percent

HOST_BOUND = 0.3
"""A GPU that waits for its host for more of its step time than this is bound by it."""
MATTERS = 0.05
"""Steps of one kind that take less of all step time than this are not worth a word."""
BORROWED = 0.1
TITLES = {"prefill": "steps with prompt tokens", "decode": "steps of decoding only"}
TAKING_IN = "steps that take in prompts"
"""What the first of these are on a decode pool."""
BORROWED_TIMES = (
    "What the host spends on some kinds of layers (latent, recurrent, sparse, packed experts) was seen in one or two "
    "other models only (Caveats say in which); intervals are wider for it."
)


def state_rows(state: State, steady: SteadyState) -> list[tuple[str, str]]:
    """How the deployment copes, and when it was in a steady state."""
    return [("state", state.sentence), ("steady state", steady.sentence)]


def state_fields(state: State, steady: SteadyState, steady_only: bool) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "state": state.word,
        "capacity_requests_per_s": state.capacity,
        "saturated": state.saturation is not None,
        "saturation_requests_per_s": state.capacity if state.saturation else None,
        "steady_state": {
            "reached": steady.reached,
            "from_s": steady.begin if steady.reached else None,
            "to_s": steady.end if steady.reached else None,
            "requests": steady.num_requests if steady.reached else 0,
            "requests_needed": steady.num_needed,
        },
        "stopped": steady.stopped,
        "steady_only": steady_only,
    }


def host_rows(deployment: Deployment, phases: Sequence[Phase]) -> list[tuple[str, str]]:
    """A warning where the GPU waits for its host much of the time; stages of a pipeline wait for each other, too."""
    much = [] if deployment.layout.pipeline > 1 else _bound_by_host(phases)
    if not much:
        return []
    steps = " and ".join(
        f"{format_percent(host_bound_share([phase]))} of the time of {TITLES[phase.name]}" for phase in much
    )
    words = f"the GPU waits for its CPU in {steps}; a faster CPU would help (--host NAME, see `infercast hosts`)"
    rows = [("host", f"bound by the host: {words}")]
    if borrowed_share(deployment) > BORROWED:
        rows.append(("", BORROWED_TIMES))
    return rows


def _bound_by_host(phases: Sequence[Phase]) -> list[Phase]:
    """Kinds of steps that take a part of the run worth a word, in which the GPU waits for its host."""
    whole = sum(phase.seconds for phase in phases)
    return [phase for phase in phases if phase.seconds > MATTERS * whole and host_bound_share([phase]) > HOST_BOUND]


def host_fields(forecast: Forecast) -> dict[str, Any]:
    """The same as plain data."""
    pools = (pool for pool in forecast.pools if pool.deployment.layout.pipeline == 1)
    return {
        "host_bound_share": host_bound_share(forecast.phases),
        "host_bound": any(_bound_by_host(pool.phases) for pool in pools),
    }
