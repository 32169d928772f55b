"""Simulated runs in other forms."""

import json
import sys

import numpy as np
import pytest

import infercast
from infercast.cli.main import run
from infercast.serve.workload.synthetic import synthetic_workload

WORDS = ("--rate", "20", "--num-requests", "60", "--input-len", "uniform:50:900", "--output-len", "uniform:1:60")


@pytest.fixture(scope="module")
def workload():
    return synthetic_workload(rate=20, count=60, input_lengths="uniform:50:900", output_lengths="uniform:1:60")


@pytest.fixture(scope="module")
def forecast(workload):
    return infercast.simulate(infercast.deploy("qwen3-0.6b", "h200-sxm"), workload)


@pytest.fixture(scope="module")
def fleet(workload):
    return infercast.simulate(infercast.deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=2), workload)


def test_a_result_is_shown_as_one_line(forecast, fleet, workload):
    assert repr(forecast).startswith("<Forecast: qwen3-0.6b on 1 x h200-sxm, 60 requests: TTFT p50 ")
    assert repr(fleet).startswith("<Forecast: qwen3-0.6b on 2 x h200-sxm, 60 requests: TTFT p50 ")
    assert repr(workload) == f"<Workload: {workload.description}>"
    assert len(repr(forecast)) < 200


@pytest.mark.parametrize(("kind", "more"), [("forecast", ()), ("fleet", ("-dp", "2"))])
def test_plain_data_is_what_json_prints(kind, more, request, capsys, monkeypatch):
    result = request.getfixturevalue(kind)
    monkeypatch.setattr(
        sys, "argv", ["infercast", "simulate", "qwen3-0.6b", "--gpu", "h200-sxm", "--json", *WORDS, *more]
    )
    with pytest.raises(SystemExit):
        run()
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.to_dict()))
    assert "ttft_ms_interval" not in result.to_dict(intervals=False)


def test_a_row_per_request(forecast, fleet, workload):
    pytest.importorskip("pandas")
    table = forecast.to_dataframe()
    assert len(table) == 60
    assert table["ttft_ms"].mean() == pytest.approx(1e3 * forecast.ttft.mean)
    assert table["tpot_ms"].mean() == pytest.approx(1e3 * forecast.tpot.mean)
    assert list(table["input_tokens"]) == [each.num_input for each in workload.requests]
    assert table["tpot_ms"].isna().sum() == sum(each.num_output == 1 for each in workload.requests) > 0
    assert set(fleet.per_request()["replica"].tolist()) == {0, 1}
    assert np.all(fleet.per_request()["end_to_end_ms"] >= fleet.per_request()["ttft_ms"])


def test_without_pandas_there_is_a_sentence(forecast, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(infercast.InputError, match=r"to_frame needs pandas: pip install pandas"):
        forecast.to_dataframe()


def test_a_name_is_no_deployment(workload):
    with pytest.raises(infercast.InputError, match=r"the str 'llama-3.1-8b' is a model, which needs a GPU to run on"):
        infercast.simulate("llama-3.1-8b", workload)
    with pytest.raises(infercast.InputError, match=r"needs a workload, not the int 12; rate=12 or the file of a trace"):
        infercast.simulate(infercast.deploy("qwen3-0.6b", "h200-sxm"), 12)
