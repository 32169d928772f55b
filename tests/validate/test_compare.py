"""Forecasts against measurements: a run of our own must come out without error."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InfercastError, UnknownNameError
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.simulate import simulate
from infercast.lab.validate.compare import Comparison, Validation, deployment_of, quantile, validate
from infercast.lab.validate.measured import read_measured, shipped_runs
from infercast.serve.workload.synthetic import synthetic_workload


def run_of_our_own(deployment: Any, **workload: Any) -> dict[str, Any]:
    """A simulated run, written down as if it had been measured."""
    made = synthetic_workload(count=40, input_lengths="uniform:50:900", output_lengths="uniform:1:60", **workload)
    record = simulate(deployment, made).records[0]
    decode = record.last_token - record.first_token
    return {
        "kind": "poisson",
        "rate": made.rate,
        "requests": [
            {
                "arrival": request.arrival,
                "n_in": request.num_input,
                "n_out": request.num_output,
                "ttft_ms": 1e3 * record.ttft[index],
                "tpot_ms": 1e3 * decode[index] / max(1, request.num_output - 1),
                "e2e_ms": 1e3 * record.end_to_end[index],
            }
            for index, request in enumerate(made.requests)
        ],
        "prefixes": [request.prefix for request in made.requests],
    }


def test_our_own_run_has_no_error(document: Any, write: Any) -> None:
    settings = EngineSettings(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        engine="vllm@0.25",
    )
    deployment = deploy("qwen3-0.6b", "h200-sxm", settings, api_server=False)
    plain = run_of_our_own(deployment, rate=20)
    shared = run_of_our_own(deployment, rate=20, prefix_length=640, prefix_groups=3, seed=1)
    shared |= {"prefix_len": 640, "groups": [prefix[0].content for prefix in shared.pop("prefixes")]}
    del plain["prefixes"]
    document["config"]["num_gpu_blocks"] = deployment.memory.num_blocks
    document["runs"] = [plain, shared]
    result = validate([read_measured(write(document))])
    assert len(result.runs) == 2
    for run in result.runs:
        assert run.tpot_p50 is not None
        for pair in (run.ttft_p50, run.ttft_p99, run.tpot_p50, run.output_tokens_per_second):
            assert pair.ape < 1e-9
    assert result.kv_blocks[0][1].ape == 0


def test_prefix_groups_are_found_in_the_cache(document: Any, write: Any) -> None:
    for position, row in enumerate(document["runs"][1]["requests"]):
        row |= {"n_in": 4096, "arrival": float(position)}
    apart = validate([read_measured(write(document))], gpu="l4").runs[1]
    document["runs"][1] |= {"kind": "prefix", "prefix_len": 4000, "groups": [0] * 6}
    shared = validate([read_measured(write(document))], gpu="l4").runs[1]
    assert shared.ttft_p50.predicted < apart.ttft_p50.predicted
    assert shared.ttft_p50.measured == apart.ttft_p50.measured


def test_the_settings_of_the_file_are_used(document: Any, write: Any) -> None:
    document["config"] |= {
        "quant": "fp8", "kv_cache_dtype": "fp8", "block_size": 32, "max_num_seqs": 64, "async_scheduling": False,
        "gpu_memory_utilization": 0.5, "max_num_batched_tokens": 4096, "max_model_len": 2048,
    }  # fmt: skip
    deployment = deployment_of(read_measured(write(document)), None, None)
    settings = deployment.settings
    assert (deployment.model.weights.name, deployment.model.cache_dtype) == ("fp8", "fp8")
    assert (settings.block_size, settings.max_num_seqs, settings.max_num_batched_tokens) == (32, 64, 4096)
    assert (settings.max_model_len, settings.gpu_memory_utilization, settings.async_scheduling) == (2048, 0.5, False)
    assert deployment.gpu.name == "h200-sxm"


def test_a_folder_of_configs_comes_before_bundled_models(document: Any, write: Any, tmp_path: Path) -> None:
    config = json.loads((files("infercast") / "data" / "models" / "qwen3-0.6b.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = 14
    (tmp_path / "mine.json").write_text(json.dumps(config), encoding="utf-8")
    document["config"]["name"] = "mine__tuned"
    measured = read_measured(write(document))
    assert deployment_of(measured, tmp_path, None).model.layers == 14
    with pytest.raises(UnknownNameError, match="unknown model 'mine'"):
        deployment_of(measured, None, None)


def test_bundled_models_serve_where_the_folder_has_none(document: Any, write: Any, tmp_path: Path) -> None:
    document["config"]["name"] = "qwen3-0.6b__again"
    assert deployment_of(read_measured(write(document)), tmp_path, None).model.layers == 28


def test_another_gpu_may_be_asked_for(document: Any, write: Any) -> None:
    document["config"]["gpu"] = "NVIDIA Z9"
    measured = read_measured(write(document))
    assert deployment_of(measured, None, "l40s").gpu.name == "l40s"
    with pytest.raises(UnknownNameError, match="unknown GPU driver name 'NVIDIA Z9'"):
        deployment_of(measured, None, None)


def test_requests_beyond_the_model_length_are_refused(document: Any, write: Any) -> None:
    document["runs"][0]["requests"][0]["n_in"] = 9000
    with pytest.raises(InfercastError, match="9000"):
        validate([read_measured(write(document))])


def test_progress_is_told_run_by_run(document: Any, write: Any) -> None:
    told: list[str] = []
    validate([read_measured(write(document))], progress=told.append)
    assert told == ["measured.json: static 4x256x8 #1", "measured.json: poisson 12/s"]


def test_one_token_answers_have_no_tpot_to_compare(document: Any, write: Any) -> None:
    for row in document["runs"][0]["requests"]:
        row["n_out"] = 1
    result = validate([read_measured(write(document))])
    assert result.runs[0].tpot_p50 is None
    assert result.median_ape("tpot_p50", "static") is None
    assert result.median_ape("tpot_p50") == result.median_ape("tpot_p50", "poisson")


def test_errors_are_fractions_of_the_measured_value() -> None:
    assert Comparison(10.0, 12.0).ape == pytest.approx(0.2)
    assert Comparison(10.0, 8.0).ape == pytest.approx(0.2)


def test_no_runs_have_no_median() -> None:
    empty = Validation((), (), 0)
    assert empty.median_ape("ttft_p50") is None
    assert empty.kinds == ()


def test_quantiles_are_values_that_occurred() -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert [quantile(values, fraction) for fraction in (0.0, 0.5, 0.99, 1.0)] == [1.0, 3.0, 4.0, 4.0]


def test_runs_that_come_with_infercast() -> None:
    path = next(path for path in shipped_runs() if path.name == "qwen3-0.6b.json.gz")
    result = validate([read_measured(path)])
    assert result.runs
    assert max(pair.ape for _, pair in result.kv_blocks) < 0.05


def test_runs_are_judged_by_the_interval_that_simulate_shows() -> None:
    """One definition of coverage: the same deployment and the same requests have the same interval."""
    measured = read_measured(next(path for path in shipped_runs() if path.name == "llama-3.1-8b__small_again.json.gz"))
    run = min((each for each in measured.runs if each.kind == "poisson"), key=lambda each: len(each.workload.requests))
    judged = next(each for each in validate([replace(measured, runs=(run,))], warmed_up=True).runs)
    shown = forecast_intervals(simulate(deployment_of(measured, None, None), run.workload))
    assert shown.tpot is not None
    assert judged.tpot_p50 is not None
    for pair, band in ((judged.ttft_p50, shown.ttft), (judged.tpot_p50, shown.tpot)):
        ends = pair.interval
        assert ends is not None
        assert ends[1] / ends[0] == pytest.approx(band.high.p50 / band.low.p50, rel=1e-6)
        assert pair.width == pytest.approx((ends[1] - ends[0]) / 2 / pair.predicted)
