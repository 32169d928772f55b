"""A simulated run in other forms: a line, plain data, a row per request."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infercast.engines.deployment import Deployment
from infercast.errors import InputError
from infercast.serve import Record, Workload
from infercast.serve.fleet.served import Served
from infercast.units import MILLI, format_seconds

if TYPE_CHECKING:
    import pandas

    from infercast.forecast.fleet import FleetForecast
    from infercast.forecast.serving import Forecast

# Which function writes a result down. It belongs to the layer above, where imports do not point; so it goes by name.
WRITERS = {"Forecast": ("serving", "forecast_dict"), "FleetForecast": ("fleet", "fleet_dict")}


def check_run(deployment: Any, workload: Any) -> None:
    """Raise InputError, with what to do, unless these are a deployment and a workload."""
    if not isinstance(deployment, Deployment):
        raise InputError(
            f"a simulation needs a deployment, not {_short(deployment)}; infercast.deploy(model, gpu) makes one"
        )
    if not isinstance(workload, Workload):
        raise InputError(
            f"a simulation needs a workload, not {_short(workload)}; infercast.synthetic_workload, read_trace and "
            "workload_from_requests make one"
        )


def one_line(forecast: Forecast | FleetForecast) -> str:
    """What was simulated and its main results."""
    deployment, tpot = forecast.deployment, forecast.tpot
    each = "" if tpot is None else f", TPOT p50 {format_seconds(tpot.p50)}"
    return (
        f"<{type(forecast).__name__}: {deployment.model.name} on {deployment.layout.gpus} x {deployment.gpu.name}, "
        f"{len(forecast.workload.requests):,} requests: TTFT p50 {format_seconds(forecast.ttft.p50)}{each}, "
        f"{forecast.output_tokens_per_second:,.0f} output tokens/s>"
    )


def plain_data(forecast: Forecast | FleetForecast, *, intervals: bool) -> dict[str, Any]:
    """What ``infercast simulate --json`` prints."""
    from infercast.forecast.intervals.intervals import forecast_intervals  # noqa: PLC0415 - it imports what imports this

    module, name = WRITERS[type(forecast).__name__]
    write = getattr(import_module(f"infercast.report.{module}"), name)
    written: dict[str, Any] = write(forecast, forecast_intervals(forecast) if intervals else None)
    return written


def request_columns(workload: Workload, served: Record | Served) -> dict[str, npt.NDArray[Any]]:
    """One value per request, in order of arrival; TPOT is not a number for an answer of one token."""
    num_output = np.array([request.num_output for request in workload.requests])
    tpot = np.full(num_output.size, np.nan)
    tpot[num_output > 1] = served.tpot
    columns: dict[str, npt.NDArray[Any]] = {
        "sent_s": served.sent_at,
        "input_tokens": np.array([request.num_input for request in workload.requests]),
        "cached_tokens": served.num_cached,
        "output_tokens": num_output,
        "ttft_ms": served.ttft / MILLI,
        "tpot_ms": tpot / MILLI,
        "end_to_end_ms": served.end_to_end / MILLI,
    }
    return {**columns, "replica": served.engine} if isinstance(served, Served) else columns


def data_frame(columns: dict[str, npt.NDArray[Any]]) -> pandas.DataFrame:
    """The columns as a table of pandas, which is not one of our dependencies."""
    try:
        import pandas  # noqa: PLC0415 - most who simulate do without
    except ImportError:
        raise InputError("to_dataframe needs pandas: pip install pandas; per_request() gives arrays without") from None
    return pandas.DataFrame(columns)


def _short(value: Any) -> str:
    """A value and its type, in a few words."""
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
