"""The public names are a list, and the list is tested."""

import doctest
import inspect
import subprocess
import sys

import pytest

import infercast

PUBLIC = [
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
    "ModuleForecast",
    "OwnKernel",
    "Partition",
    "Percentiles",
    "Plan",
    "ProfileDiagnosis",
    "Request",
    "SaturatedError",
    "Savings",
    "Segment",
    "SglangSettings",
    "Slo",
    "StepCost",
    "StepPredictor",
    "StepShape",
    "StepTime",
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
    "diagnose_profile",
    "emulator",
    "estimate",
    "estimate_partition",
    "estimate_power",
    "estimate_step",
    "estimate_variants",
    "explain_command",
    "explain_run",
    "fit_kernel",
    "fit_memory",
    "forecast_disaggregated",
    "forecast_intervals",
    "forecast_module",
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
    "read_kernel",
    "read_trace",
    "save_energy",
    "session_workload",
    "simulate",
    "sweep",
    "synthetic_workload",
    "workload_from_requests",
    "write_calibration",
]


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_list() -> None:
    assert infercast.__all__ == PUBLIC
    assert sorted(infercast._HOMES) == PUBLIC
    assert set(PUBLIC) <= set(dir(infercast))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves_and_is_documented(name: str) -> None:
    found = getattr(infercast, name)
    assert callable(found)
    assert found.__name__ == name
    text = inspect.getdoc(found)
    assert text
    assert not text.startswith(f"{name}("), "the docstring is the one that dataclass makes up"


@pytest.mark.parametrize(("old", "new"), infercast._OLD_NAMES.items())
def test_old_names_work_with_a_notice(old: str, new: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"^infercast\.{old} is infercast\.{new} now; 1\.0 drops the old name$"
    ):
        assert getattr(infercast, old) is getattr(infercast, new)


def test_every_name_imports_on_the_base_install() -> None:
    optional = ("uvicorn", "starlette", "h11", "matplotlib", "pandas", "pyarrow", "catboost", "torch")
    code = f"import sys; sys.modules.update(dict.fromkeys({optional})); import inspect, infercast; "
    code += "from infercast import *; inspect.getmembers(infercast); print(len(infercast.__all__))"
    assert run_python(code) == f"{len(PUBLIC)}\n"


def test_a_star_import_gives_the_list() -> None:
    names: dict[str, object] = {}
    exec("from infercast import *", names)
    assert set(PUBLIC) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'infercast' has no attribute 'simulat'"):
        infercast.simulat  # noqa: B018
    assert not hasattr(infercast, "json")


def test_the_import_is_light() -> None:
    code = "import sys, infercast; print(*(name for name in ('numpy', 'typer', 'rich') if name in sys.modules))"
    assert run_python(code).split() == []


def test_errors_form_one_tree() -> None:
    errors = [getattr(infercast, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, infercast.InfercastError) for error in errors)
    assert issubclass(infercast.InputError, ValueError)
    assert not issubclass(infercast.DoesNotFitError, infercast.InputError)


def test_the_version_is_a_version() -> None:
    assert all(part.isdigit() for part in infercast.__version__.split("."))


def test_the_example_in_the_docstring() -> None:
    results = doctest.testmod(infercast)
    assert results.attempted >= 4
    assert not results.failed
