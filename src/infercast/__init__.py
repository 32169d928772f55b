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
    from infercast.emulate.server import emulator
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
    from infercast.forecast.explain.profile import ProfileDiagnosis, diagnose_profile
    from infercast.forecast.intervals import Intervals, forecast_intervals
    from infercast.forecast.kernels import StepCost, decode_shape, estimate_step, prefill_shape
    from infercast.forecast.layouts import LayoutCost, Layouts, compare_layouts
    from infercast.forecast.memory import Fit, fit_memory
    from infercast.forecast.own_kernel import OwnKernel, fit_kernel, read_kernel
    from infercast.forecast.partition import Partition, estimate_partition
    from infercast.forecast.plan.question import Plan
    from infercast.forecast.plan.request import plan
    from infercast.forecast.predictor import StepPredictor, StepTime
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
    from infercast.torch_modules.forecast import ModuleForecast, forecast_module

# Where each public name lives. It is imported when it is first used, so that `import infercast` costs next to nothing.
_HOMES = {
    name: module
    for module, names in {
        "emulate.server": "emulator",
        "engines.base": "Deployment",
        "engines.sglang.settings": "SglangSettings",
        "engines.vllm.settings": "EngineSettings",
        "errors": "DoesNotFitError FileFormatError InfercastError InputError SaturatedError UnknownNameError "
        "UnsupportedModelError",
        "forecast.calibration": "Calibration read_calibration write_calibration",
        "forecast.command.explain": "Explained explain_command",
        "forecast.cost": "Cost GpuPrice Tariff price_of",
        "forecast.day": "DayPlan plan_day",
        "forecast.deploy": "deploy load_model",
        "forecast.energy": "Energy Facility FacilityEnergy",
        "forecast.estimate": "estimate estimate_power",
        "forecast.explain.breakdown": "Breakdown explain_run",
        "forecast.explain.diagnose": "Diagnosis diagnose",
        "forecast.explain.profile": "ProfileDiagnosis diagnose_profile",
        "forecast.kernels": "StepCost decode_shape estimate_step prefill_shape",
        "forecast.intervals": "Intervals forecast_intervals",
        "forecast.layouts": "LayoutCost Layouts compare_layouts",
        "forecast.memory": "Fit fit_memory",
        "forecast.own_kernel": "OwnKernel fit_kernel read_kernel",
        "forecast.partition": "Partition estimate_partition",
        "forecast.plan.question": "Plan",
        "forecast.plan.request": "plan",
        "forecast.predictor": "StepPredictor StepTime",
        "forecast.result": "Forecast Verdict judge",
        "forecast.simulate": "forecast_disaggregated simulate",
        "forecast.slo": "Percentiles Slo parse_slo",
        "forecast.sweep": "Savings Sweep save_energy sweep",
        "forecast.variants": "Variants estimate_variants",
        "hardware": "Gpu gpu_names load_gpu",
        "models.library": "model_names",
        "models.spec": "ModelConfig",
        "predict.estimate": "Estimate",
        "serve.step": "StepShape",
        "serve.workload.request": "Request Segment Workload",
        "serve.workload.synthetic": "session_workload synthetic_workload workload_from_requests",
        "serve.workload.traces": "read_trace",
        "torch_modules.forecast": "ModuleForecast forecast_module",
    }.items()
    for name in names.split()
}

_OLD_NAMES = {
    "Wall": "FacilityEnergy",
    "forecast_fleet": "simulate",
    "price": "estimate",
    "price_step": "estimate_step",
    "price_variants": "estimate_variants",
}  # Names of before 1.0, which goes without them

__all__ = [
    "Breakdown", "Calibration", "Cost", "DayPlan", "Deployment", "Diagnosis", "DoesNotFitError", "Energy",
    "EngineSettings", "Estimate", "Explained", "Facility", "FacilityEnergy", "FileFormatError", "Fit", "Forecast",
    "Gpu", "GpuPrice", "InfercastError", "InputError", "Intervals", "LayoutCost", "Layouts", "ModelConfig",
    "ModuleForecast", "OwnKernel", "Partition", "Percentiles", "Plan", "ProfileDiagnosis", "Request", "SaturatedError",
    "Savings", "Segment", "SglangSettings", "Slo", "StepCost", "StepPredictor", "StepShape", "StepTime", "Sweep",
    "Tariff", "UnknownNameError", "UnsupportedModelError", "Variants", "Verdict", "Workload", "compare_layouts",
    "decode_shape", "deploy", "diagnose", "diagnose_profile", "emulator", "estimate", "estimate_partition",
    "estimate_power", "estimate_step", "estimate_variants", "explain_command", "explain_run", "fit_kernel",
    "fit_memory", "forecast_disaggregated", "forecast_intervals", "forecast_module", "gpu_names", "judge", "load_gpu",
    "load_model", "model_names", "parse_slo", "plan", "plan_day", "prefill_shape", "price_of", "read_calibration",
    "read_kernel", "read_trace", "save_energy", "session_workload", "simulate", "sweep", "synthetic_workload",
    "workload_from_requests", "write_calibration",
]  # fmt: skip


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
