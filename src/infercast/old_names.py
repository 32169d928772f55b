"""Names that were public and go with 1.0: where each is now, and calls that are written otherwise."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

HOMES = {
    name: f"infercast.{module}.{name}"
    for module, names in {
        "emulate.server": "emulator",
        "forecast.calibration": "read_calibration write_calibration",
        "forecast.command.explain": "Explained explain_command",
        "forecast.cost": "Cost GpuPrice price_of",
        "forecast.deploy": "load_model",
        "forecast.energy": "Energy FacilityEnergy",
        "forecast.estimate": "estimate_power",
        "forecast.explain.diagnose": "ProfileDiagnosis diagnose_profile",
        "forecast.intervals": "Intervals forecast_intervals",
        "forecast.kernels": "StepCost StepPredictor StepTime decode_shape estimate_step prefill_shape",
        "forecast.layouts": "LayoutCost Partition estimate_partition",
        "forecast.memory": "Fit fit_memory",
        "forecast.own_kernel": "OwnKernel fit_kernel read_kernel",
        "forecast.result": "Verdict judge",
        "forecast.slo": "Percentiles parse_slo",
        "forecast.sweep": "Savings save_energy",
        "forecast.variants": "Variants estimate_variants",
        "hardware": "Gpu gpu_names load_gpu",
        "models.library": "model_names",
        "models.spec": "ModelConfig",
        "serve": "Request Segment",
        "serve.step": "StepShape",
        "serve.workload.synthetic": "session_workload synthetic_workload workload_from_requests",
        "serve.workload.traces": "read_trace",
        "torch_modules.forecast": "ModuleForecast forecast_module",
    }.items()
    for name in names.split()
} | {
    "Wall": "infercast.forecast.energy.FacilityEnergy", "compare_layouts": "infercast.compare",
    "explain_run": "infercast.explain", "forecast_disaggregated": "infercast.simulate",
    "forecast_fleet": "infercast.simulate", "plan_day": "infercast.capacity", "price": "infercast.estimate",
    "price_step": "infercast.forecast.kernels.estimate_step",
    "price_variants": "infercast.forecast.variants.estimate_variants",
}  # fmt: skip
"""Where each is now; what was renamed is below."""


def old_name(name: str) -> Any:
    """What a name stood for, with a warning that says the new one."""
    if name not in HOMES:
        raise AttributeError(f"module 'infercast' has no attribute {name!r}")
    warnings.warn(f"infercast.{name} is {HOMES[name]} now; 1.0 drops the old name", DeprecationWarning, 3)
    module, _, new = HOMES[name].rpartition(".")
    return OTHERWISE.get(name) or getattr(import_module(module), new)


def compare_layouts(*arguments: Any, tariff: Any = None, **options: Any) -> Any:
    """`compare` takes a ``price``."""
    return _asked("compare", *arguments, price=tariff, **options)


def explain_run(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """What `explain` returns has the forecast."""
    found = _asked("explain", *arguments, **options)
    return found.forecast, found


def forecast_disaggregated(
    prefill: Any, decode: Any, workload: Any = None, *, decode_gpu: Any = None, **options: Any
) -> Any:
    """`simulate` is given the decode pool, and the other one as ``prefill``."""
    return _asked("simulate", decode, workload, gpu=decode_gpu, prefill=prefill, **options)


def _asked(verb: str, *arguments: Any, **options: Any) -> Any:
    return getattr(import_module("infercast"), verb)(*arguments, **options)


OTHERWISE = {each.__name__: each for each in (compare_layouts, explain_run, forecast_disaggregated)}
