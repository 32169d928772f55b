"""What the charts of the page are drawn from: distributions, load over time, memory and kernels on the roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.forecast.explain.overview import load_curves
from infercast.forecast.explain.rooflines import StepRoofline, step_rooflines
from infercast.forecast.explain.watched import Watched
from infercast.forecast.pools import PoolRun
from infercast.units import MILLI

QUANTILES = np.linspace(0.0, 1.0, 201)
MOST_POINTS = 120
DIGITS = 5
"""Of numbers that are only drawn."""


def charts_of(run: Watched) -> dict[str, Any]:
    """Everything that is drawn of a run."""
    forecast = run.forecast
    served = forecast.clients
    return {
        "distributions": {
            "ttft_ms": _distribution(served.ttft),
            "tpot_ms": _distribution(served.tpot),
            "end_to_end_ms": _distribution(served.last_token - served.sent_at),
        },
        "timeline": _timeline(run),
        "rooflines": [_pool_rooflines(pool) for pool in forecast.pools],
    }


def _distribution(seconds: npt.NDArray[Any]) -> list[float] | None:
    """Milliseconds at 0, 0.5, ... 100 % of all requests; None where no request has such a latency."""
    known = seconds[np.isfinite(seconds)]
    return _short(np.quantile(known, QUANTILES) / MILLI) if known.size else None


def _timeline(run: Watched) -> dict[str, Any]:
    curves = load_curves(run, MOST_POINTS)
    return {
        "seconds": _short(curves.times),
        "running": _short(curves.running),
        "waiting": _short(curves.waiting),
        "output_tokens_per_s": _short(curves.output_tokens),
        "kv_usage": _short(curves.kv_usage),
    }


def _pool_rooflines(pool: PoolRun) -> dict[str, Any]:
    return {"pool": pool.role, "phases": [_phase(each) for each in step_rooflines(pool)]}


def _phase(step: StepRoofline) -> dict[str, Any]:
    """A step of average size; ``share`` is that of its kernels in the time of all such steps."""
    return {
        "phase": step.phase,
        "prompts": step.num_prompts,
        "prompt_tokens": step.prompt_tokens,
        "decodes": step.num_decodes,
        "context": step.context,
        "share": step.share,
        "dram_bytes_per_s": step.bandwidth,
        "peaks_flops_per_s": step.peaks,
        "kernels": [
            {
                "name": point.name,
                "family": point.family,
                "dtype": point.dtype,
                "share": point.share,
                "flops_per_byte": point.intensity,
                "flops_per_s": point.flops_per_second,
                "limit_flops_per_s": point.limit,
            }
            for point in step.points
        ],
    }


def _short(values: Any) -> list[float]:
    """Numbers with few digits: they are drawn, and travel."""
    return [float(f"{value:.{DIGITS}g}") for value in np.asarray(values).tolist()]
