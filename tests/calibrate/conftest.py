"""A measured run as each load generator would have saved it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from infercast.lab.validate.measured import MeasuredRun, read_measured, shipped_runs

CONVERTER = Path(__file__).parents[2] / "benchmarks" / "results" / "convert.py"


@pytest.fixture(scope="session")
def convert() -> ModuleType:
    if not CONVERTER.is_file():
        pytest.skip("benchmarks are not part of a source distribution")
    spec = importlib.util.spec_from_file_location("convert", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run() -> MeasuredRun:
    path = next(each for each in shipped_runs() if each.name == "llama-3.1-8b.json.gz")
    return next(each for each in read_measured(path).runs if each.label == "poisson 12/s")


@pytest.fixture(scope="session")
def saved(convert: ModuleType, run: MeasuredRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each format."""
    folder = tmp_path_factory.mktemp("results")
    convert.write_all(run, folder, "llama-3.1-8b")
    return folder
