"""Public names and the modules that define them; `__init__.py` reads this file and imports a name when it is used."""
# ruff: noqa: I001 - a line for each module

from infercast.emulate.server import emulator as emulator
from infercast.engines.base import Deployment as Deployment
from infercast.engines.sglang.settings import SglangSettings as SglangSettings
from infercast.engines.vllm.settings import EngineSettings as EngineSettings
from infercast.errors import (
    DoesNotFitError as DoesNotFitError,
    FileFormatError as FileFormatError,
    InfercastError as InfercastError,
    InputError as InputError,
    SaturatedError as SaturatedError,
    UnknownNameError as UnknownNameError,
    UnsupportedModelError as UnsupportedModelError,
)
from infercast.forecast.calibration import (
    Calibration as Calibration,
    read_calibration as read_calibration,
    write_calibration as write_calibration,
)
from infercast.forecast.command.explain import Explained as Explained, explain_command as explain_command
from infercast.forecast.cost import Cost as Cost, GpuPrice as GpuPrice, Tariff as Tariff, price_of as price_of
from infercast.forecast.day import DayPlan as DayPlan, plan_day as plan_day
from infercast.forecast.deploy import deploy as deploy, load_model as load_model
from infercast.forecast.energy import Energy as Energy, Facility as Facility, FacilityEnergy as FacilityEnergy
from infercast.forecast.estimate import estimate as estimate, estimate_power as estimate_power
from infercast.forecast.explain.breakdown import Breakdown as Breakdown, explain_run as explain_run
from infercast.forecast.explain.diagnose import (
    Diagnosis as Diagnosis,
    ProfileDiagnosis as ProfileDiagnosis,
    diagnose as diagnose,
    diagnose_profile as diagnose_profile,
)
from infercast.forecast.intervals import Intervals as Intervals, forecast_intervals as forecast_intervals
from infercast.forecast.kernels import (
    StepCost as StepCost,
    decode_shape as decode_shape,
    estimate_step as estimate_step,
    prefill_shape as prefill_shape,
)
from infercast.forecast.layouts import LayoutCost as LayoutCost, Layouts as Layouts, compare_layouts as compare_layouts
from infercast.forecast.memory import Fit as Fit, fit_memory as fit_memory
from infercast.forecast.own_kernel import OwnKernel as OwnKernel, fit_kernel as fit_kernel, read_kernel as read_kernel
from infercast.forecast.partition import Partition as Partition, estimate_partition as estimate_partition
from infercast.forecast.plan.question import Plan as Plan
from infercast.forecast.plan.request import plan as plan
from infercast.forecast.predictor import StepPredictor as StepPredictor, StepTime as StepTime
from infercast.forecast.result import Forecast as Forecast, Verdict as Verdict, judge as judge
from infercast.forecast.simulate import forecast_disaggregated as forecast_disaggregated, simulate as simulate
from infercast.forecast.slo import Percentiles as Percentiles, Slo as Slo, parse_slo as parse_slo
from infercast.forecast.sweep import Savings as Savings, Sweep as Sweep, save_energy as save_energy, sweep as sweep
from infercast.forecast.variants import Variants as Variants, estimate_variants as estimate_variants
from infercast.hardware import Gpu as Gpu, gpu_names as gpu_names, load_gpu as load_gpu
from infercast.models.library import model_names as model_names
from infercast.models.spec import ModelConfig as ModelConfig
from infercast.predict.estimate import Estimate as Estimate
from infercast.serve.step import StepShape as StepShape
from infercast.serve.workload.request import Request as Request, Segment as Segment, Workload as Workload
from infercast.serve.workload.synthetic import (
    session_workload as session_workload,
    synthetic_workload as synthetic_workload,
    workload_from_requests as workload_from_requests,
)
from infercast.serve.workload.traces import read_trace as read_trace
from infercast.torch_modules.forecast import ModuleForecast as ModuleForecast, forecast_module as forecast_module

__version__: str
