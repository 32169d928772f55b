"""Every report shows the numbers it was given, within 100 columns, and as JSON in the units its names say."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from infercast.forecast.deploy import load_model
from infercast.forecast.kernels import decode_shape, estimate_step, prefill_shape
from infercast.forecast.memory import fit_memory
from infercast.forecast.steady import State
from infercast.hardware import gpu_names, load_gpu
from infercast.lab.validate.compare import Comparison, RunComparison, Validation
from infercast.models.library import model_names
from infercast.report.accuracy import render_validation, validation_dict
from infercast.report.catalog import render_gpu, render_gpus
from infercast.report.deployment import fit_dict, model_dict, render_fit, render_model, render_models
from infercast.report.forecast import forecast_dict, render_forecast
from infercast.report.kernels import render_step, step_dict
from infercast.units import format_bytes, format_percent, format_seconds


def as_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def test_forecast_tables(forecast: Any, text_of: Any) -> None:
    text = text_of(render_forecast(forecast))
    for values in (forecast.ttft, forecast.tpot, forecast.inter_token, forecast.end_to_end):
        row = "  ".join(format_seconds(value) for value in values.values)
        assert row.split() in [line.split()[-10:] for line in text.splitlines()]
    assert "stable: requests are served as fast as they come" in text
    assert f"{forecast.requests_per_second:,.2f} requests/s" in text
    assert f"{format_percent(forecast.prefix_hit_rate)} of prompt tokens found" in text
    assert "Overload" not in text


def test_forecast_dict_is_in_the_units_of_its_names(forecast: Any) -> None:
    data = as_json(forecast_dict(forecast))
    assert data["ttft_ms"]["p99"] == pytest.approx(1e3 * forecast.ttft.p99)
    assert data["duration_s"] == forecast.duration
    assert data["deployment"]["num_gpu_blocks"] == forecast.deployment.memory.num_blocks
    assert data["saturation_requests_per_s"] is None
    assert sum(phase["steps"] for phase in data["phases"]) == sum(phase.steps for phase in forecast.phases)


def test_a_saturated_forecast_says_so(forecast: Any, text_of: Any) -> None:
    pools = tuple(replace(pool, num_preemptions=7) for pool in forecast.pools)
    overloaded = replace(forecast, state=State("overloaded", 41.5, 90.0), pools=pools)
    text = " ".join(text_of(render_forecast(overloaded)).split())
    assert text.startswith("overloaded: 90 requests/s arrive but only about 41.5 requests/s can be served")
    assert "7: the KV cache ran full" in text
    data = as_json(forecast_dict(overloaded))
    assert data["saturated"]
    assert data["state"] == "overloaded"
    assert data["capacity_requests_per_s"] == 41.5
    assert data["saturation_requests_per_s"] == 41.5


@pytest.mark.parametrize("shape", [prefill_shape(8000), decode_shape(30, 2000)], ids=["prefill", "decode"])
def test_step_tables(deployment: Any, text_of: Any, shape: Any) -> None:
    cost = estimate_step(deployment, shape)
    text = text_of(render_step(deployment, cost, "a question"))
    assert "a question" in text
    lines = [line.split() for line in text.splitlines()]
    for kernel in cost.kernels:
        row = next(line for line in lines if line[:2] == [kernel.name, kernel.family])
        assert row[2] == f"{kernel.count:,}"
        assert f"{row[3]} {row[4]}" == format_seconds(float(kernel.estimate.seconds))
    data = as_json(step_dict(deployment, cost))
    assert data["gpu_us"] == pytest.approx(1e6 * float(cost.gpu.seconds))
    assert data["step_us"] == pytest.approx(1e6 * cost.seconds)
    assert len(data["kernels"]) == len(cost.kernels)


@pytest.mark.parametrize(
    ("model", "gpu", "tensor"), [("llama-3.3-70b", "h100-sxm", 4), ("gpt-oss-20b", "l40s", 1), ("deepseek-v3", "l4", 1)]
)
def test_memory_tables(text_of: Any, model: str, gpu: str, tensor: int) -> None:
    fit = fit_memory(model, gpu, tensor_parallel_size=tensor)
    text = text_of(render_fit(fit))
    assert format_bytes(fit.memory.weights) in text
    assert f"{fit.memory.num_blocks:,} of 16 tokens" in text
    data = as_json(fit_dict(fit))
    assert data["fits"] == (not fit.problem)
    assert data["bytes"]["weights"] == fit.memory.weights
    assert data["num_gpu_blocks"] == fit.memory.num_blocks


def test_catalog_lists(text_of: Any) -> None:
    gpus = [load_gpu(name) for name in gpu_names()]
    lines = text_of(render_gpus(gpus)).splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(gpus)]] == list(gpu_names())
    models = [load_model(name) for name in model_names()]
    lines = text_of(render_models(models)).splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(models)]] == list(model_names())


def test_every_gpu_has_a_page(text_of: Any, every: Any) -> None:
    def check(name: str) -> None:
        gpu = load_gpu(name)
        assert gpu.title in text_of(render_gpu(gpu))
        assert as_json(asdict(gpu))["dram_bandwidth"] == gpu.dram_bandwidth

    every(gpu_names(), check)


def test_every_model_has_a_page(text_of: Any, every: Any) -> None:
    def check(name: str) -> None:
        model = load_model(name)
        assert f"{model.max_positions:,}" in text_of(render_model(model))
        assert as_json(model_dict(model))["hidden"] == model.hidden

    every(model_names(), check)


@pytest.fixture
def validation() -> Validation:
    def run(file: str, label: str, tpot: Comparison | None) -> RunComparison:
        return RunComparison(
            file,
            label.split(maxsplit=1)[0],
            label,
            Comparison(0.02, 0.025),
            Comparison(12.5, 10.0),
            tpot,
            Comparison(98765, 90000),
        )

    runs = (
        run("one.json.gz", "static 128x16384x1024 #1", Comparison(0.004, 0.005)),
        run("two__a-rather-long-name-of-a-file-with-much-in-it.json.gz", "poisson 12/s", None),
    )
    return Validation(runs, tuple((each.file, Comparison(56_000, 56_100)) for each in runs), 3)


def test_validation_tables(validation: Validation, text_of: Any) -> None:
    text = text_of(render_validation(validation), 120)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    static = "static 128x16384x1024 #1 20.0 > 25.0 +25 % 12,500 > 10,000 -20 % 4.00 > 5.00 +25 % 98,765 > 90,000 -9 %"
    assert static in lines
    assert "poisson 12/s 20.0 > 25.0 +25 % 12,500 > 10,000 -20 % - - 98,765 > 90,000 -9 %" in lines
    assert "KV blocks: 56,000 measured, 56,100 predicted, +0.2 %" in lines
    assert any(
        line.startswith("Median absolute error (3 stalled runs left out); host times as bundled") for line in lines
    )
    assert "all 2 25.0 % 20.0 % 25.0 % 8.9 %" in lines


def test_validation_tables_break_labels_not_numbers(validation: Validation, text_of: Any) -> None:
    assert "12,500 > 10,000" in text_of(render_validation(validation), 100)


def test_validation_dict(validation: Validation) -> None:
    data = as_json(validation_dict(validation))
    assert data["runs"][0]["ttft_p50_ms"] == {"measured": 20.0, "predicted": 25.0, "ape": pytest.approx(0.25)}
    assert data["runs"][1]["tpot_p50_ms"] is None
    assert data["kv_blocks"][0] == {
        "file": "one.json.gz", "measured": 56_000, "predicted": 56_100, "ape": pytest.approx(1 / 560),
    }  # fmt: skip
    assert data["summary"]["stalled_runs"] == 3
