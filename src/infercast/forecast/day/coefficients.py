"""What an autoscaler asks of a replica, as one row of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from infercast.forecast.day.day import DayPlan
from infercast.forecast.simulate import simulate_system
from infercast.forecast.system import system_of
from infercast.serve import Workload
from infercast.units import MILLI

ALONE = 100
"""Requests that are served one at a time, for the time of a prompt."""


def autoscaler_row(plan: DayPlan) -> dict[str, Any]:
    """Coefficients of service times in milliseconds, and the largest loads.

    ``alpha`` and ``beta``: time per output token = alpha + beta x sequences in the batch. ``gamma`` and ``delta``: time
    to first token = gamma + delta x prompt tokens, of a request that is alone. These are the four that llm-d's workload
    variant autoscaler takes. The others are what a request takes of a replica that is kept full.
    """
    alpha, beta = _decoding(plan)
    gamma, delta = _prompts(plan)
    deployment, curve, service = plan.deployment, plan.curve, plan.service
    return {
        "model": deployment.model.name,
        "accelerator": deployment.gpu.name,
        "accelerator_count": deployment.layout.gpus,
        "engine": deployment.engine.name,
        "weights": deployment.model.weights.name,
        "alpha_ms": alpha / MILLI,
        "beta_ms_per_sequence": beta / MILLI,
        "gamma_ms": gamma / MILLI,
        "delta_ms_per_input_token": delta / MILLI,
        "max_batch_size": deployment.settings.max_num_seqs,
        "fixed_ms_per_request": service.fixed / MILLI,
        "ms_per_input_token": service.per_input / MILLI,
        "ms_per_output_token": service.per_output / MILLI,
        "at_batch": round(curve.levels[-1].in_system, 1),
        "slo": str(plan.slo),
        "max_requests_per_s": curve.full_rate,
        "max_requests_per_s_at_slo": curve.rate_at(plan.most_kept),
        "max_requests_in_replica_at_slo": plan.most_kept,
        "mean_input_tokens": float(plan.traffic.inputs.mean()),
        "mean_output_tokens": float(plan.traffic.outputs.mean()),
        "start_up_s": plan.start.seconds,
    }


def _decoding(plan: DayPlan) -> tuple[float, float]:
    """A line through the mean time per output token at each load up to where the SLO holds, or the first three."""
    levels = [level for level in plan.curve.levels if level.forecast.tpot is not None]
    if len(levels) < 2:
        return 0.0, 0.0
    used = [level for place, level in enumerate(levels) if place < 3 or level.in_system <= plan.most_kept]
    batches = np.array([level.in_system for level in used])
    times = np.array([level.forecast.tpot.mean for level in used if level.forecast.tpot is not None])
    return _line(batches, times)


def _prompts(plan: DayPlan) -> tuple[float, float]:
    """A line through the time to first token of requests that come one at a time, by their prompt tokens."""
    traffic = plan.traffic
    chosen = np.linspace(0, traffic.arrivals.size - 1, min(ALONE, traffic.arrivals.size)).astype(np.int64)
    alone = Workload(traffic.workload(chosen, np.zeros(chosen.size)).requests, concurrency=1)
    served = simulate_system(system_of(plan.deployment), alone).clients
    return _line(traffic.inputs[chosen] - served.num_cached, served.ttft)


def _line(places: Any, seconds: Any) -> tuple[float, float]:
    """The least squares of relative errors, with neither number below nothing."""
    if np.ptp(places) == 0:
        return float(seconds.mean()), 0.0
    rows = np.stack([np.ones(places.size), places], axis=1) / seconds[:, None]
    fixed, slope = np.linalg.lstsq(rows, np.ones(places.size), rcond=None)[0].tolist()
    if fixed < 0:
        return 0.0, float((seconds / places).mean())
    return (fixed, slope) if slope >= 0 else (float(seconds.mean()), 0.0)
