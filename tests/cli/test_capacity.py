"""``infercast capacity``: a day of traffic."""

import csv
import io
from typing import Any

import pytest

from infercast.forecast import autoscaling

SLO = ("--slo", "ttft_p99<1s,tpot_p95<30ms")
DEPLOYED = ("capacity", "qwen2.5-0.5b", "--gpu", "l4", "--max-model-len", 4096, "--max-num-seqs", 64)
LOAD = ("--rate", 60, "--input-len", 100, "--output-len", 16, "--day-profile", "sine:1.9:10")
DAY = (*DEPLOYED, *LOAD, *SLO, "--price-per-gpu-hour", 1, "--electricity-price", 0.1, "--pue", 1.5, "--no-check")


@pytest.fixture(autouse=True)
def _few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """How well loads are known is for tests of the forecast; here few requests do."""
    monkeypatch.setattr(autoscaling, "LEAST", 100)
    monkeypatch.setattr(autoscaling, "MOST", 800)


@pytest.fixture
def trace(tmp_path: Any) -> Any:
    path = tmp_path / "day.csv"
    rows = (f"2026-03-01T{number // 360:02d}:{number // 6 % 60:02d}:{number % 6 * 10:02d},100,16\n"
            for number in range(2 * 360))  # fmt: skip
    path.write_text("timestamp,input,output\n" + "".join(rows))
    return path


def test_a_made_up_day(answered: Any) -> None:
    found = answered(*DAY, "--json").json
    assert found["check"] is None
    policies = found["policies"]
    assert list(policies) == ["fixed", "scheduled", "autoscaled"]
    assert policies["fixed"]["reaches_goal"]
    assert policies["fixed"]["usd_per_day"] == pytest.approx(24 * found["smallest_fixed_fleet"], rel=0.01)
    assert policies["scheduled"]["gpu_hours"] <= policies["fixed"]["gpu_hours"]
    assert len(found["requests_per_s"]) == len(policies["autoscaled"]["replicas"]) == 1440
    assert found["start_up_s"]["all"] > 45


def test_a_day_has_its_kilowatt_hours(answered: Any) -> None:
    day = answered(*DAY, "--json").json
    found = day["policies"]["fixed"]
    assert found["wall_kwh_per_day"] > 1.5 * found["gpu_kwh_per_day"] > 0
    assert found["usd_electricity_per_day"] == pytest.approx(0.1 * found["wall_kwh_per_day"])
    # An L4 draws between a few watts and its limit of 72 W.
    assert 24 * 5 < 1000 * found["gpu_kwh_per_day"] / day["smallest_fixed_fleet"] < 24 * 72


def test_a_trace_with_files(infercast: Any, trace: Any, tmp_path: Any, unrendered: None) -> None:
    files = {"--plot": tmp_path / "day.html", "--csv": tmp_path / "rows.csv", "--export-autoscaler": tmp_path / "a.csv"}
    words = [word for pair in files.items() for word in pair]
    text = infercast(*DEPLOYED, "--trace", trace, *SLO, *words, "--full").out
    for sentence in ("The smallest fixed fleet for 99 % of minutes", "simulated one by one", "traffic  o requests/s"):
        assert sentence in text
    page = files["--plot"].read_text()
    assert page.startswith("<!doctype html>")
    assert "--export-autoscaler" not in page
    rows = list(csv.DictReader(io.StringIO(files["--csv"].read_text())))
    assert len(rows) == 120
    assert rows[0]["requests"] == "6"
    (row,) = csv.DictReader(io.StringIO(files["--export-autoscaler"].read_text()))
    assert row["model"] == "qwen2.5-0.5b"
    assert float(row["alpha_ms"]) > 0
    assert row["slo"] == SLO[1]


def test_an_autoscaler_of_ones_own(infercast: Any, trace: Any) -> None:
    rules = ("--autoscale-on", "queue", "--target", 8, "--min-replicas", 2, "--max-replicas", 3, "--down-delay", 60)
    words = (*DEPLOYED, "--trace", trace, *SLO, *rules, "--goal-requests", 0.95, "--start-seconds", 5, "--json")
    found = infercast(*words, "--load-bandwidth", 10).json
    assert found["autoscaler"]["target"] == 8
    assert found["policies"]["autoscaled"]["replicas_min"] >= 2
    assert found["goal"] == {"share": 0.95, "of": "requests"}
    assert found["start_up_s"]["other"] == 5


WRONG = {
    "slo": ((*LOAD,), "capacity needs an SLO"),
    "nothing comes": ((*SLO,), "say what comes over the day: --trace FILE, or --rate R"),
    "profile": ((*LOAD[:-1], "square", *SLO), "day profile 'square' must be flat or sine:FACTOR"),
    "lengths": ((*LOAD, "--output-len", 9000, *SLO), "above max_model_len 4,096"),
    "goals": ((*LOAD, *SLO, "--goal-minutes", 0.9, "--goal-requests", 0.9), "are two goals; give one"),
    "goal": ((*LOAD, *SLO, "--goal-minutes", 1.5), "must be above 0 and up to 1, not 1.5"),
    "measure": ((*LOAD, *SLO, "--autoscale-on", "cpu"), "must be utilization or queue, not 'cpu'"),
    "scale": ((*LOAD, *SLO, "--rate-scale", 2), "--rate-scale needs --trace"),
    "replicas": ((*LOAD, *SLO, "--min-replicas", 3, "--max-replicas", 2), "from few to many, not 3 to 2"),
    "window": ((*LOAD, *SLO, "--window", 0), "a window must be 10 to 3600 s"),
    "rate": ((*LOAD, *SLO, "--rate", 1e9), "must give 1 to 20,000,000 requests"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence(infercast: Any, name: str) -> None:
    words, sentence = WRONG[name]
    assert sentence in infercast(*DEPLOYED, *words).sentence
