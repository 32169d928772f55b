"""What results tell: factors of 1 from a forecast of our own, and those that were put in."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import infercast
from infercast.calibration.learn import calibrate
from infercast.calibration.readers import read_results
from infercast.calibration.result import saved_result
from infercast.engines.timer import Corrections, Factor
from infercast.errors import InputError
from infercast.forecast.calibration import (
    Calibration,
    Fingerprint,
    carried,
    doubts_of,
    read_calibration,
    write_calibration,
)
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.result import Forecast
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.units import json_text

MODEL, GPU = "llama-3.1-8b", "h200-sxm"


@pytest.fixture(scope="module")
def deployment() -> infercast.Deployment:
    return infercast.deploy(MODEL, GPU)


def load(rate: float) -> infercast.Workload:
    return synthetic_workload(
        rate=rate, count=120, input_lengths="lognormal:700:0.7:16:4000", output_lengths="lognormal:100:0.5:8:400"
    )


def saved(forecast: Forecast, path: Path, *, detailed: bool = True) -> Path:
    path.write_text(json_text(saved_result(forecast, "0", detailed=detailed)))
    return path


def slower(deployment: infercast.Deployment) -> infercast.Deployment:
    """The same machine with a slow CPU, a slow GPU and a network before it."""
    known = Corrections(Factor(1.3, 0), Factor(1.1, 0), Factor(1.15, 0), Factor(0.004, 0))
    return replace(deployment, host=known.corrected(deployment.host), corrections=known)


@pytest.fixture(scope="module")
def learned(deployment: infercast.Deployment, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """From two runs of a deployment that is slower than we think."""
    folder, real = tmp_path_factory.mktemp("runs"), slower(deployment)
    files = [saved(infercast.simulate(real, load(rate)), folder / f"{rate}.json") for rate in (3.0, 20.0)]
    return calibrate(deployment, files)


def test_a_forecast_read_back_gives_factors_of_one(deployment: infercast.Deployment, tmp_path: Path) -> None:
    path = saved(infercast.simulate(deployment, load(12.0)), tmp_path / "run.json")
    found = calibrate(deployment, [path])
    assert [each.value for each in found.factors.values()] == [1.0, 1.0, 1.0, 0.0]
    assert all(each.spread < each.before for each in found.factors.values())
    assert [pair.after for pair in found.results[0].pairs] == pytest.approx(
        [pair.measured for pair in found.results[0].pairs], rel=1e-6
    )


def test_factors_that_were_put_in_are_found(learned: Calibration) -> None:
    assert learned.host.value == pytest.approx(1.3, rel=0.12)
    assert learned.prefill.value == pytest.approx(1.1, rel=0.08)
    assert learned.decode.value == pytest.approx(1.15, rel=0.03)
    assert learned.decode.is_learned
    for name, truth in (("host", 1.3), ("prefill", 1.1), ("decode", 1.15)):
        factor = getattr(learned, name)
        assert abs(np.log(factor.value / truth)) < 3 * factor.spread


def test_other_rates_are_forecast_with_what_was_learned(deployment: infercast.Deployment, learned: Calibration) -> None:
    real = infercast.simulate(slower(deployment), load(10.0))
    before = infercast.simulate(deployment, load(10.0))
    after = infercast.simulate(infercast.deploy(MODEL, GPU, calibration=learned), load(10.0))
    assert abs(after.ttft.p50 / real.ttft.p50 - 1) < 0.05 < abs(before.ttft.p50 / real.ttft.p50 - 1)
    assert after.tpot is not None
    assert real.tpot is not None
    assert after.tpot.p50 == pytest.approx(real.tpot.p50, rel=0.02)
    wide, narrow = (forecast_intervals(each) for each in (before, after))
    assert wide.tpot is not None
    assert narrow.tpot is not None
    assert narrow.tpot.high.p50 / narrow.tpot.low.p50 < wide.tpot.high.p50 / wide.tpot.low.p50
    assert narrow.tpot.low.p50 < real.tpot.p50 < narrow.tpot.high.p50
    assert sum(each.seconds for each in after.phases) == pytest.approx(
        sum(each.gpu_seconds + each.host_bound_seconds for each in after.phases)
    )


def test_what_was_left_out_is_told(learned: Calibration) -> None:
    for source in learned.results:
        ttft = next(pair for pair in source.left_out if pair.quantity == "ttft_p50")
        assert abs(ttft.after / ttft.measured - 1) < abs(ttft.before / ttft.measured - 1)


def test_a_calibration_is_a_file_that_is_read_back(learned: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.toml"
    path.write_text(write_calibration(learned))
    found = read_calibration(path)
    assert found.deployment == learned.deployment
    assert found.title == "calibration.toml"
    for name, factor in learned.factors.items():
        assert getattr(found, name) == pytest.approx(factor, rel=1e-3, abs=1e-6)
    assert [each.sha256 for each in found.results] == [each.sha256 for each in learned.results]
    assert write_calibration(replace(found, version=learned.version)) == path.read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("form = 1", "form = 2"), "form 1"),
        (("[host]", "[other]"), r"\[host\] is missing"),
        (("factor = 1", 'factor = "a"  # 1'), "must be a number"),
        (("gpu = ", "gpus = "), "deployment.gpu must be text"),
        (("\nspread", "\nspread ="), "not valid TOML"),
    ],
)
def test_broken_calibrations_are_one_sentence(
    learned: Calibration, tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    path = tmp_path / "calibration.toml"
    path.write_text(write_calibration(learned).replace(*change, 1))
    with pytest.raises(InputError, match=problem):
        read_calibration(path)


def test_factors_carry_over_as_far_as_they_hold(deployment: infercast.Deployment, learned: Calibration) -> None:
    own = Fingerprint.of(deployment)
    same = carried(learned, own)
    assert same.notes == ()
    assert same.decodes == Factor(learned.decode.value, learned.decode.spread)
    model = carried(learned, replace(own, model="qwen3-8b"))
    assert model.decodes is not None
    assert model.decodes.value == learned.decode.value
    assert model.decodes.spread > learned.decode.spread
    assert model.host == Factor(learned.host.value, learned.host.spread)
    assert "model" in model.notes[0]
    format_ = carried(learned, replace(own, weights="fp8"))
    assert (format_.prompts, format_.decodes) == (None, None)
    assert format_.host == Factor(learned.host.value, learned.host.spread)
    gpu = carried(learned, replace(own, gpu="h100-sxm"))
    assert gpu.decodes is None
    assert gpu.host is not None
    assert gpu.host.spread > learned.host.spread
    assert carried(learned, replace(own, api_server=False)).path is None
    with pytest.raises(InputError, match="host times"):
        carried(learned, replace(own, host="another machine"))


def test_a_calibrated_deployment_is_not_calibrated_again(learned: Calibration) -> None:
    with pytest.raises(InputError, match="already"):
        calibrate(infercast.deploy(MODEL, GPU, calibration=learned), [])


def test_saved_results_say_what_the_forecast_does(deployment: infercast.Deployment, tmp_path: Path) -> None:
    forecast = infercast.simulate(deployment, load(12.0))
    document = saved_result(forecast, "0", detailed=True)
    assert document["median_ttft_ms"] == pytest.approx(1e3 * forecast.ttft.p50)
    assert document["p99_e2el_ms"] == pytest.approx(1e3 * forecast.end_to_end.p99)
    assert document["output_throughput"] == pytest.approx(forecast.output_tokens_per_second)
    assert document["completed"] == document["num_prompts"] == 120
    sums = [first + sum(gaps) for first, gaps in zip(document["ttfts"], document["itls"], strict=True)]
    assert sums == pytest.approx(forecast.clients.end_to_end.tolist())
    gaps = np.concatenate(document["itls"])
    assert 1e3 * np.median(gaps) == pytest.approx(document["median_itl_ms"], rel=1e-3)
    assert 1e3 * gaps.std() == pytest.approx(document["std_itl_ms"], rel=1e-3)
    assert [len(each) for each in document["itls"]] == [count - 1 for count in document["output_lens"]]
    assert 0 < document["max_concurrent_requests"] <= 120
    assert document["max_output_tokens_per_s"] > document["output_throughput"]
    plain = saved_result(forecast, "0")
    assert not {"ttfts", "itls", "input_lens"} & {*plain}
    path = saved(forecast, tmp_path / "plain.json", detailed=False)
    assert read_results([path])[0].kind == "vllm bench serve"


def test_results_of_another_gpu_are_doubted(deployment: infercast.Deployment, tmp_path: Path) -> None:
    path = saved(infercast.simulate(infercast.deploy(MODEL, "l40s"), load(2.0)), tmp_path / "run.json")
    doubts = doubts_of(calibrate(deployment, [path]))
    assert any("far beyond the" in each and "GPU time of decode steps" in each for each in doubts)
    own = saved(infercast.simulate(deployment, load(12.0)), tmp_path / "own.json")
    assert doubts_of(calibrate(deployment, [own])) == []


def test_requests_without_second_tokens_say_nothing_of_them(deployment: infercast.Deployment, tmp_path: Path) -> None:
    path = saved(infercast.simulate(deployment, load(12.0)), tmp_path / "run.json")
    with pytest.raises(InputError, match="which its requests do not have here: answers of one token"):
        calibrate(infercast.deploy("bge-m3", "l4"), [path])
