"""The public names are a list, and the list is tested."""

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import infercast
from infercast.forecast import autoscaling
from infercast.forecast.kernels import decode_shape
from infercast.old_names import HOMES, OTHERWISE

PUBLIC = [
    "Breakdown",
    "Calibration",
    "DayPlan",
    "Deployment",
    "Diagnosis",
    "DoesNotFitError",
    "EngineSettings",
    "Estimate",
    "Facility",
    "FileFormatError",
    "Forecast",
    "InfercastError",
    "InputError",
    "Layouts",
    "Plan",
    "SaturatedError",
    "SglangSettings",
    "Slo",
    "Sweep",
    "Tariff",
    "UnknownNameError",
    "UnsupportedModelError",
    "Workload",
    "calibrate",
    "capacity",
    "compare",
    "deploy",
    "diagnose",
    "estimate",
    "explain",
    "plan",
    "simulate",
    "sweep",
]
LOAD: dict[str, Any] = {"rate": 4, "num_requests": 20, "input_len": 100, "output_len": 10}


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


@pytest.mark.parametrize(("old", "new"), HOMES.items())
def test_old_names_work_with_a_notice(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(infercast), old, raising=False)
    with pytest.warns(
        DeprecationWarning, match=rf"^infercast\.{old} is {re.escape(new)} now; 1\.0 drops the old name$"
    ) as told:
        found = getattr(infercast, old)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert getattr(infercast, old) is found, "it warns once"
    module, _, name = new.rpartition(".")
    if old not in OTHERWISE:
        assert found is getattr(import_module(module), name)


def test_old_calls_that_are_written_otherwise_now() -> None:
    deployment = infercast.deploy("qwen3-0.6b", "l4")
    forecast, breakdown = OTHERWISE["explain_run"](deployment, **LOAD)
    assert breakdown.forecast is forecast
    apart = OTHERWISE["forecast_disaggregated"](
        "qwen3-0.6b", deployment, prefill_gpu="l40s", prefill_instances=2, **LOAD
    )
    assert apart.title == "qwen3-0.6b on 2 x l40s, 1 x l4"
    (layout,) = OTHERWISE["compare_layouts"]("qwen3-0.6b", ["l4"], num_gpus=[1], tariff=infercast.Tariff())
    assert layout.cost is not None


def test_the_module_calibrate_works_with_a_notice() -> None:
    code = "import warnings; warnings.simplefilter('always'); "
    code += "from infercast.calibrate import calibrate, read_results; import infercast; "
    code += "print(infercast.calibrate is calibrate, callable(read_results))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True True\n"
    assert "infercast.calibrate is infercast.calibration now; 1.0 drops the old name" in done.stderr


def test_a_verb_stays_a_function_when_its_module_is_imported() -> None:
    code = "import infercast.calibration.learn, infercast; print(infercast.calibrate.__name__)"
    assert run_python(code) == "calibrate\n"


def test_a_deployment_answers_what_the_verbs_do() -> None:
    deployment = infercast.deploy("qwen3-0.6b", "l4")
    alike = {name: getattr(infercast, name)(deployment, **LOAD) for name in ("simulate", "explain")}
    for name, found in alike.items():
        assert getattr(deployment, name)(**LOAD).to_dict() == found.to_dict()
    assert deployment.diagnose(**LOAD).findings
    assert [point.label for point in deployment.sweep(rates=[1, 2], num_requests=20).points] == ["1", "2"]
    shape = decode_shape(4, 100)
    assert deployment.step(shape).to_dict() == infercast.estimate(shape, deployment).to_dict()
    assert deployment.memory.num_tokens > 0


def test_a_day_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaling, "LEAST", 100)
    monkeypatch.setattr(autoscaling, "MOST", 800)
    deployment = infercast.deploy("qwen3-0.6b", "l4")
    day = deployment.capacity("ttft_p99<2s", rate=1.0, profile="flat", check=False)
    assert day.smallest_fleet >= 1
    assert "flat around 1/s" in day.traffic.description
    with pytest.raises(infercast.InputError, match="say what comes over the day"):
        deployment.capacity("ttft_p99<2s")
    with pytest.raises(infercast.InputError, match="capacity needs an SLO"):
        infercast.capacity(deployment, rate=1.0)


def test_what_is_of_two_pools_needs_two() -> None:
    with pytest.raises(infercast.InputError, match="link is of two pools; say prefill="):
        infercast.simulate("qwen3-0.6b", gpu="l4", link="nvlink", **LOAD)


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
