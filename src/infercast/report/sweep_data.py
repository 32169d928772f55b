"""A sweep, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infercast.forecast.sweep.points import Edge, Point, Sweep
from infercast.report.caveats import caveats_of
from infercast.report.files import csv_lines
from infercast.report.quantities import ENERGIES, milliseconds
from infercast.units import MILLI

LATENCIES = ("ttft", "tpot", "inter_token", "end_to_end")


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "title": sweep.title,
        "workload": sweep.workload,
        "axis": sweep.axis.name,
        "slo": None if sweep.slo is None else str(sweep.slo),
        "usd_per_gpu_hour": None if sweep.price is None else sweep.price.per_hour,
        "light_ttft_p50_ms": None if sweep.light_ttft is None else sweep.light_ttft / MILLI,
        "knee": _edge_dict(sweep.knee),
        "slo_holds_up_to": _edge_dict(sweep.promise),
        "saturation_requests_per_s": sweep.capacity,
        "caveats": caveats_of(point.forecast for point in sweep.simulated if point.forecast is not None),
        "points": [_point_dict(point) for point in sweep.points],
    }


def _edge_dict(edge: Edge | None) -> dict[str, Any] | None:
    return None if edge is None else {"value": edge.value, "reached": edge.reached}


def _point_dict(point: Point) -> dict[str, Any]:
    run = point.forecast
    found: dict[str, Any] = {"value": point.label if point.number is None else point.number}
    found |= {"fits": run is not None, "problem": point.problem or None}
    found |= {"state": None if run is None else run.state.word, "gpus": None if run is None else run.gpus}
    for field in LATENCIES:
        found[f"{field}_ms"] = None if run is None else milliseconds(getattr(run, field))
    return found | {
        "output_tokens_per_s": None if run is None else run.output_tokens_per_second,
        "requests_per_s": None if run is None else run.requests_per_second,
        "goodput_requests_per_s": point.goodput,
        "slo_attainment": point.attainment,
        "slo_holds": point.holds,
        "slo_headroom": point.headroom,
        "usd_per_hour": point.per_hour,
        "usd_per_million_output_tokens": point.per_million_output_tokens,
        **{each.key: None if run is None else each.data(run) for each in ENERGIES},
    }


def sweep_rows(sweep: Sweep) -> Iterator[str]:
    """The same as CSV: a line a value, latencies in milliseconds."""
    flat = [_flat(_point_dict(point)) for point in sweep.points]
    columns = {"value": sweep.axis.name, **{name: name for name in max(flat, key=len) if name != "value"}}
    yield from csv_lines(columns.values(), ([row.get(name) for name in columns] for row in flat))


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            rows |= {f"{name.removesuffix('_ms')}_{which}_ms": each for which, each in value.items()}
        elif not (value is None and name.endswith("_ms")):
            rows[name] = value
    return rows
