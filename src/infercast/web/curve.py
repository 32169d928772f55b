"""The load curve of a state: latencies and throughput along request rates, the knee, and where the SLO ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infercast.errors import InputError
from infercast.forecast.sweep.axis import MOST_VALUES, parse_numbers
from infercast.forecast.sweep.sweep import sweep_rates
from infercast.report.sweep_data import sweep_dict
from infercast.web.arguments import Asked, capacity_known, system_asked, workload_of

SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Of the rate at which a deployment is saturated, where nobody says which rates."""


def curve_of(asked: Asked, tell: Callable[[str], None]) -> tuple[Asked, dict[str, Any]]:
    """The curve, and the state with the rates that were tried."""
    state = asked.state
    if state["turns"] is not None:
        raise InputError("a load curve is along request rates; leave out turns")
    if state["arrival"] == "burst":
        raise InputError("a load curve is along request rates; arrival burst has none")
    fixed = {"concurrency": None, "session_rate": None, "num_requests": state["curve_requests"]}
    system, workload = system_asked(asked), workload_of(asked, **fixed, rate=state["rate"] or 1.0)
    if state["rates"] is None:
        most = capacity_known(asked, system, workload)()
        rates = tuple(dict.fromkeys(float(f"{share * most:.3g}") for share in SHARES))
        asked = asked._replace(state={**state, "rates": ",".join(f"{rate:g}" for rate in rates)})
    else:
        rates = tuple(dict.fromkeys(parse_numbers(state["rates"], "rates")))
    if len(rates) > MOST_VALUES:
        raise InputError(f"rates may be {MOST_VALUES} at most, not {len(rates)}")
    found = sweep_rates(system, workload, rates, slo=asked.slo, price=asked.tariff, facility=asked.facility, tell=tell)
    return asked, sweep_dict(found)
