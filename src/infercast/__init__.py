"""Forecast LLM inference on GPUs before anyone rents them.

>>> import infercast
>>> forecast = infercast.simulate("llama-3.1-8b", gpu="h200-sxm", rate=12, input_lengths=700, output_lengths=180)
>>> forecast.title
'llama-3.1-8b on 1 x h200-sxm'
>>> forecast.ttft.p50 < forecast.ttft.p99
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from infercast.shown import set_renderers

__version__ = "0.2.0"

if TYPE_CHECKING:
    from infercast.engines.base import Deployment
    from infercast.engines.sglang.settings import SglangSettings
    from infercast.engines.vllm.settings import EngineSettings
    from infercast.errors import (
        DoesNotFitError,
        FileFormatError,
        InfercastError,
        InputError,
        SaturatedError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from infercast.forecast.calibration import Calibration, read_calibration, write_calibration
    from infercast.forecast.command.explain import Explained, explain_command
    from infercast.forecast.cost import Cost, GpuPrice, Tariff, price_of
    from infercast.forecast.day import DayPlan, plan_day
    from infercast.forecast.deploy import deploy, load_model
    from infercast.forecast.energy import Energy, Facility, FacilityEnergy
    from infercast.forecast.estimate import estimate, estimate_power
    from infercast.forecast.explain.breakdown import Breakdown, explain_run
    from infercast.forecast.explain.diagnose import Diagnosis, diagnose
    from infercast.forecast.intervals import Intervals, forecast_intervals
    from infercast.forecast.kernels import StepCost, decode_shape, estimate_step, prefill_shape
    from infercast.forecast.layouts import LayoutCost, Layouts, compare_layouts
    from infercast.forecast.memory import Fit, fit_memory
    from infercast.forecast.plan.question import Plan
    from infercast.forecast.plan.request import plan
    from infercast.forecast.result import Forecast, Verdict, judge
    from infercast.forecast.simulate import forecast_disaggregated, simulate
    from infercast.forecast.slo import Percentiles, Slo, parse_slo
    from infercast.forecast.sweep import Savings, Sweep, save_energy, sweep
    from infercast.forecast.variants import Variants, estimate_variants
    from infercast.hardware import Gpu, gpu_names, load_gpu
    from infercast.models.library import model_names
    from infercast.models.spec import ModelConfig
    from infercast.predict.estimate import Estimate
    from infercast.serve.step import StepShape
    from infercast.serve.workload.request import Request, Segment, Workload
    from infercast.serve.workload.synthetic import session_workload, synthetic_workload, workload_from_requests
    from infercast.serve.workload.traces import read_trace

# Where each public name lives. It is imported when it is first used, so that `import infercast` costs next to nothing.
_HOMES = {
    "Breakdown": "forecast.explain.breakdown",
    "Calibration": "forecast.calibration",
    "Cost": "forecast.cost",
    "DayPlan": "forecast.day",
    "Deployment": "engines.base",
    "Diagnosis": "forecast.explain.diagnose",
    "DoesNotFitError": "errors",
    "Energy": "forecast.energy",
    "EngineSettings": "engines.vllm.settings",
    "Estimate": "predict.estimate",
    "Explained": "forecast.command.explain",
    "Facility": "forecast.energy",
    "FacilityEnergy": "forecast.energy",
    "FileFormatError": "errors",
    "Fit": "forecast.memory",
    "Forecast": "forecast.result",
    "Gpu": "hardware",
    "GpuPrice": "forecast.cost",
    "InfercastError": "errors",
    "InputError": "errors",
    "Intervals": "forecast.intervals",
    "LayoutCost": "forecast.layouts",
    "Layouts": "forecast.layouts",
    "ModelConfig": "models.spec",
    "Percentiles": "forecast.slo",
    "Plan": "forecast.plan.question",
    "Request": "serve.workload.request",
    "SaturatedError": "errors",
    "Savings": "forecast.sweep",
    "Segment": "serve.workload.request",
    "SglangSettings": "engines.sglang.settings",
    "Slo": "forecast.slo",
    "StepCost": "forecast.kernels",
    "StepShape": "serve.step",
    "Sweep": "forecast.sweep",
    "Tariff": "forecast.cost",
    "UnknownNameError": "errors",
    "UnsupportedModelError": "errors",
    "Variants": "forecast.variants",
    "Verdict": "forecast.result",
    "Workload": "serve.workload.request",
    "compare_layouts": "forecast.layouts",
    "decode_shape": "forecast.kernels",
    "deploy": "forecast.deploy",
    "diagnose": "forecast.explain.diagnose",
    "estimate": "forecast.estimate",
    "estimate_power": "forecast.estimate",
    "estimate_step": "forecast.kernels",
    "estimate_variants": "forecast.variants",
    "explain_command": "forecast.command.explain",
    "explain_run": "forecast.explain.breakdown",
    "fit_memory": "forecast.memory",
    "forecast_disaggregated": "forecast.simulate",
    "forecast_intervals": "forecast.intervals",
    "gpu_names": "hardware",
    "judge": "forecast.result",
    "load_gpu": "hardware",
    "load_model": "forecast.deploy",
    "model_names": "models.library",
    "parse_slo": "forecast.slo",
    "plan": "forecast.plan.request",
    "plan_day": "forecast.day",
    "prefill_shape": "forecast.kernels",
    "price_of": "forecast.cost",
    "read_calibration": "forecast.calibration",
    "read_trace": "serve.workload.traces",
    "save_energy": "forecast.sweep",
    "session_workload": "serve.workload.synthetic",
    "simulate": "forecast.simulate",
    "sweep": "forecast.sweep",
    "synthetic_workload": "serve.workload.synthetic",
    "workload_from_requests": "serve.workload.synthetic",
    "write_calibration": "forecast.calibration",
}

_OLD_NAMES = {
    "Wall": "FacilityEnergy",
    "forecast_fleet": "simulate",
    "price": "estimate",
    "price_step": "estimate_step",
    "price_variants": "estimate_variants",
}
"""Names of before 1.0, which goes without them."""

__all__ = [
    "Breakdown",
    "Calibration",
    "Cost",
    "DayPlan",
    "Deployment",
    "Diagnosis",
    "DoesNotFitError",
    "Energy",
    "EngineSettings",
    "Estimate",
    "Explained",
    "Facility",
    "FacilityEnergy",
    "FileFormatError",
    "Fit",
    "Forecast",
    "Gpu",
    "GpuPrice",
    "InfercastError",
    "InputError",
    "Intervals",
    "LayoutCost",
    "Layouts",
    "ModelConfig",
    "Percentiles",
    "Plan",
    "Request",
    "SaturatedError",
    "Savings",
    "Segment",
    "SglangSettings",
    "Slo",
    "StepCost",
    "StepShape",
    "Sweep",
    "Tariff",
    "UnknownNameError",
    "UnsupportedModelError",
    "Variants",
    "Verdict",
    "Workload",
    "compare_layouts",
    "decode_shape",
    "deploy",
    "diagnose",
    "estimate",
    "estimate_power",
    "estimate_step",
    "estimate_variants",
    "explain_command",
    "explain_run",
    "fit_memory",
    "forecast_disaggregated",
    "forecast_intervals",
    "gpu_names",
    "judge",
    "load_gpu",
    "load_model",
    "model_names",
    "parse_slo",
    "plan",
    "plan_day",
    "prefill_shape",
    "price_of",
    "read_calibration",
    "read_trace",
    "save_energy",
    "session_workload",
    "simulate",
    "sweep",
    "synthetic_workload",
    "workload_from_requests",
    "write_calibration",
]


set_renderers(lambda: importlib.import_module("infercast.report.formats"))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _OLD_NAMES:
        import warnings  # noqa: PLC0415 - only who uses an old name needs it

        new = _OLD_NAMES[name]
        warnings.warn(f"infercast.{name} is infercast.{new} now; 1.0 drops the old name", DeprecationWarning, 2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module 'infercast' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"infercast.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
