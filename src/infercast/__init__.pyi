"""Public names and the modules that define them; `__init__.py` reads this file and imports a name when it is used."""
# ruff: noqa: I001 - a line for each module

from infercast.calibration.learn import calibrate as calibrate
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
from infercast.forecast.calibration import Calibration as Calibration
from infercast.forecast.cost import Tariff as Tariff
from infercast.forecast.day import DayPlan as DayPlan, capacity as capacity
from infercast.forecast.deploy import deploy as deploy
from infercast.forecast.energy import Facility as Facility
from infercast.forecast.estimate import estimate as estimate
from infercast.forecast.explain.breakdown import Breakdown as Breakdown, explain as explain
from infercast.forecast.explain.diagnose import Diagnosis as Diagnosis, diagnose as diagnose
from infercast.forecast.layouts import Layouts as Layouts, compare as compare
from infercast.forecast.plan.question import Plan as Plan
from infercast.forecast.plan.request import plan as plan
from infercast.forecast.result import Forecast as Forecast
from infercast.forecast.simulate import simulate as simulate
from infercast.forecast.slo import Slo as Slo
from infercast.forecast.sweep import Sweep as Sweep, sweep as sweep
from infercast.predict.estimate import Estimate as Estimate
from infercast.serve.workload.request import Workload as Workload

__version__: str
