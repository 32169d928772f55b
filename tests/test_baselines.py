"""The pure parts of benchmarks/accuracy: that baselines are not worse than they need be."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("scipy")

from infercast.lab.fit.tables import Rows
from infercast.ops import Gemm

FOLDER = Path(__file__).parents[1] / "benchmarks" / "accuracy"
BF16 = ("sglang", "bf16")


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def gemm_points(module, gpu, slower=3.0):
    """Products on a grid, each so much slower than the roofline with waves."""
    m, n, k = (each.ravel() for each in np.meshgrid(2 ** np.arange(0, 12, 2), [512, 1024, 4096], [512, 2048, 8192]))
    rows = Rows("gemm", gpu, "sglang", "bf16", "", n * 1_000_000 + k, Gemm(m, n, k), np.ones(m.size), np.arange(m.size))
    points = module("points").points_of(rows)
    return module("points").Points(**{**points.__dict__, "seconds": slower * points.wave})


def test_hidden_groups_are_not_fitted_on(module):
    splits = module("splits")
    known, hidden = splits.divide(splits.MEASURED[0], {"h200-sxm": {BF16: gemm_points(module, "h200-sxm")}})
    assert not set(known["h200-sxm"][BF16].group) & set(hidden[BF16].group)


def test_plain_roofline_is_never_slower_than_that_with_waves(module):
    points = gemm_points(module, "h200-sxm")
    assert (points.plain <= points.wave).all()
    assert (points.plain <= points.attainable * (1 + 1e-12)).all()


@pytest.mark.parametrize(("name", "predictor"), [("neighbours", "Neighbours"), ("roofline_baselines", "Scaled")])
def test_a_new_gpu_scales_with_its_roofline(module, name, predictor):
    known = {gpu: {BF16: gemm_points(module, gpu)} for gpu in ("a100-sxm", "h200-sxm")}
    new = gemm_points(module, "b200-sxm")
    seconds = getattr(module(name), predictor)(known, "gemm").seconds(BF16, new, "b200-sxm")
    np.testing.assert_allclose(seconds, new.seconds, rtol=1e-9)


def test_nearest_rows_come_from_the_nearest_datasheet_that_has_the_kernel(module):
    points = gemm_points(module, "a100-sxm")
    known = {"a100-sxm": {BF16: points}, "h200-sxm": {BF16: points, ("vllm", "fp8"): points}}
    nearest = module("sources").nearest_rows
    assert nearest(known, BF16, "b200-sxm")[0] == "h200-sxm"
    assert nearest({**known, "b200-sxm": {}}, ("sglang", "fp8"), "a100-sxm")[0] == "h200-sxm"


def test_throughput_is_exact_where_measured_and_linear_in_between(module):
    length, waves = (each.ravel() for each in np.meshgrid([8.0, 10.0], [0.0, 2.0]))
    surface = module("throughput").surface(length, waves, length + waves)
    np.testing.assert_allclose(surface.at(length, waves), length + waves)
    np.testing.assert_allclose(surface.at(np.array([9.0, 20.0]), np.array([1.0, 9.0])), [10.0, 12.0])


@pytest.mark.parametrize("name", ["bounded_by_waves", "efficiency"])
def test_heads_know_their_own_slope_and_stay_below_one(module, name):
    head = getattr(module("network"), name)
    outputs, waves = np.random.default_rng(0).normal(size=(20, 2)), np.linspace(1.0, 5.0, 20)
    value, slope = head(outputs, waves)
    assert (value < 1e-6).all()
    for column in (0, 1):
        step = np.zeros_like(outputs)
        step[:, column] = 1e-6
        moved = (head(outputs + step, waves)[0] - head(outputs - step, waves)[0]) / 2e-6
        np.testing.assert_allclose(slope[:, column], moved, atol=1e-6)


def test_a_network_learns_a_utilisation_that_depends_on_its_inputs(module, monkeypatch):
    network = module("network")
    monkeypatch.setattr(network, "STEPS", 600)
    features = np.random.default_rng(0).uniform(-1, 1, (4000, 3))
    limit, waves = np.exp(features[:, 1]), np.ones(4000)
    seconds = limit / (0.5 + 0.3 * features[:, 0])
    predicted = network.Network(network.efficiency).fit(features, limit, waves, seconds).seconds(features, limit, waves)
    assert np.mean(np.abs(predicted / seconds - 1.0)) < 0.03
