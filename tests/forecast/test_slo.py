"""A promise is read, held against a forecast, and its odds follow from the intervals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infercast import InputError, deploy, simulate
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.layouts import LayoutCost, ranked
from infercast.forecast.result import chance_below, headroom, holds, interval_of, judge, value_of
from infercast.forecast.slo import Limit, Slo, attainment, parse_slo
from infercast.serve.workload.synthetic import synthetic_workload


@pytest.fixture(scope="module")
def forecast() -> Any:
    workload = synthetic_workload(rate=8, count=60, input_lengths="uniform:50:900", output_lengths="uniform:1:60")
    return simulate(deploy("llama-3.1-8b", "h200-sxm"), workload)


@pytest.fixture(scope="module")
def intervals(forecast: Any) -> Any:
    return forecast_intervals(forecast)


def limit_at(forecast: Any, factor: float, name: str = "ttft_p95") -> Slo:
    (limit,) = parse_slo(f"{name}<1s").limits
    return Slo((replace(limit, seconds=factor * value_of(forecast, limit)),))


@pytest.mark.parametrize("text", ["ttft_p99<1s,tpot_p95<40ms,e2e_mean<8s", "ttft_p99.9<250us", "e2e_p100<1.5s"])
def test_a_promise_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse_slo(text)) == text
    assert parse_slo(str(parse_slo(text))) == parse_slo(text)


def test_spaces_and_other_ways_to_write_the_same() -> None:
    assert parse_slo(" TTFT_p99 <= 1000 ms , tpot_mean<.04s") == parse_slo("ttft_p99<1s,tpot_mean<40ms")
    assert parse_slo("e2e_p50<2min").limits == (Limit("e2e", 50.0, 120.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no limits"),
        ("ttft<1s", "QUANTITY_PERCENTILE<TIME"),
        ("itl_p99<1s", "unknown quantity 'itl'; known: ttft, tpot, e2e"),
        ("ttft_p99<1", "needs a unit, one of us, ms, s, min"),
        ("ttft_p101<1s", "up to p100"),
        ("ttft_p0<1s", "above p0"),
        ("ttft_p99<0s", "above 0"),
        ("ttft_p99<1s,ttft_p99<2s", "limits ttft_p99 twice"),
        ("ttft_p99>1s", "QUANTITY_PERCENTILE<TIME"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match="slo") as problem:
        parse_slo(text)
    assert words in str(problem.value)


def test_limits_made_by_hand_are_checked() -> None:
    for quantity, percentile, seconds in (("itl", 99, 1), ("ttft", 0, 1), ("ttft", 101, 1), ("ttft", 50, 0)):
        with pytest.raises(InputError):
            Limit(quantity, percentile, seconds)
    with pytest.raises(InputError):
        Slo(())


def test_attainment_counts_requests_that_keep_every_limit(forecast: Any) -> None:
    served = forecast.clients
    ttft, total = float(np.median(served.ttft)), float(np.median(served.end_to_end))
    kept = (served.ttft < ttft) & (served.end_to_end < total)
    slo = Slo((Limit("ttft", 99.0, ttft), Limit("e2e", 99.0, total)))
    assert attainment(served, slo) == kept.mean()
    assert forecast.promised(slo).verdict.goodput == pytest.approx(kept.sum() / forecast.duration)


def test_an_answer_of_one_token_keeps_any_limit_on_tpot(forecast: Any) -> None:
    served = forecast.clients
    single = served.num_output == 1
    assert single.any()
    assert attainment(served, Slo((Limit("tpot", 99.0, 1e-9),))) == single.mean()


def test_of_several_limits_on_one_latency_requests_keep_the_loosest(forecast: Any) -> None:
    assert attainment(forecast.clients, parse_slo("ttft_p50<1us,ttft_p99<1min")) == 1.0


def test_headroom_is_the_smallest_and_says_whether_it_holds(forecast: Any) -> None:
    for name in ("ttft_mean", "ttft_p95", "tpot_p50", "e2e_p97.5", "e2e_p100"):
        assert headroom(forecast, limit_at(forecast, 1.25, name)) == pytest.approx(1.25)
        assert holds(forecast, limit_at(forecast, 1.01, name))
        assert not holds(forecast, limit_at(forecast, 0.99, name))
    both = Slo(limit_at(forecast, 2.0).limits + limit_at(forecast, 0.5, "e2e_p99").limits)
    assert headroom(forecast, both) == pytest.approx(0.5)


def test_a_percentile_of_any_number_is_that_of_the_requests(forecast: Any) -> None:
    (limit,) = parse_slo("ttft_p97.5<1s").limits
    assert value_of(forecast, limit) == pytest.approx(np.percentile(forecast.clients.ttft, 97.5))


@pytest.mark.parametrize(("end", "sure"), [(0, 0.1), (1, 0.9)])
def test_the_ends_of_an_interval_are_about_one_in_ten_and_nine_in_ten(
    forecast: Any, intervals: Any, end: int, sure: float
) -> None:
    for name in ("ttft_mean", "ttft_p50", "tpot_p95", "e2e_p99", "ttft_p97"):
        (limit,) = parse_slo(f"{name}<1s").limits
        ends = interval_of(forecast, limit, intervals)
        assert ends is not None
        at_end = Slo((replace(limit, seconds=ends[end]),))
        assert judge(forecast, at_end, intervals).odds == pytest.approx(sure, abs=0.02)  # the middle is a little slower


def test_percentiles_between_two_have_a_width_between_theirs(forecast: Any, intervals: Any) -> None:
    def width(name: str) -> float:
        (limit,) = parse_slo(f"{name}<1s").limits
        low, high = interval_of(forecast, limit, intervals) or (1.0, 1.0)
        return high / low

    low, high = sorted((width("ttft_p95"), width("ttft_p99")))
    assert low <= width("ttft_p97") <= high
    assert width("ttft_p99.9") == pytest.approx(width("ttft_p99"))


def test_the_least_likely_limit_decides(forecast: Any, intervals: Any) -> None:
    parts = limit_at(forecast, 1.3), limit_at(forecast, 1.1, "tpot_p99")
    both = Slo(parts[0].limits + parts[1].limits)
    assert judge(forecast, both, intervals).odds == min(judge(forecast, each, intervals).odds for each in parts)
    assert 0.4 < judge(forecast, limit_at(forecast, 1.0), intervals).odds < 0.5


def test_chance_below_has_a_width_on_each_side() -> None:
    assert chance_below(4.0, 1.0, 0.5, 4.0) == pytest.approx(0.9)
    assert chance_below(0.5, 1.0, 0.5, 4.0) == pytest.approx(0.1)
    assert chance_below(1.1, 1.0, 1.0, 1.0) == 1.0
    assert chance_below(0.9, 1.0, 1.0, 1.2) == 0.0


def test_more_than_can_be_served_keeps_no_promise() -> None:
    workload = synthetic_workload(rate=500, count=300, input_lengths=500, output_lengths=20)
    crowded = simulate(deploy("qwen3-0.6b", "l4"), workload)
    assert crowded.saturation is not None
    easy = parse_slo("e2e_p99<60min")
    assert headroom(crowded, easy) > 1
    assert not holds(crowded, easy)
    assert judge(crowded, easy).odds is None
    assert crowded.cost is None


def test_a_verdict_has_all_of_it(forecast: Any, intervals: Any) -> None:
    verdict = judge(forecast, "ttft_p99<1s,tpot_p95<40ms", intervals)
    assert verdict.holds
    assert verdict.attainment == 1.0
    assert verdict.goodput == pytest.approx(forecast.requests_per_second)
    assert verdict.odds == min(each.odds for each in verdict.limits)
    assert verdict.headroom == min(each.headroom or 0.0 for each in verdict.limits)
    assert forecast.promised(verdict.slo, intervals).verdict == verdict
    assert forecast.verdict is None
    assert "keeps_slo" not in forecast.per_request()


def test_requests_say_whether_they_keep_it(forecast: Any, intervals: Any) -> None:
    promised = forecast.promised(limit_at(forecast, 1.0, "ttft_p50"), intervals)
    assert promised.per_request()["keeps_slo"].mean() == promised.verdict.attainment == 0.5


def test_without_second_tokens_a_limit_on_tpot_says_nothing() -> None:
    workload = synthetic_workload(rate=8, count=20, input_lengths=50, output_lengths=1)
    verdict = judge(simulate(deploy("qwen3-0.6b", "h200-sxm"), workload), "tpot_p99<1ms")
    assert verdict.holds
    assert verdict.odds == 1.0
    assert verdict.limits[0].value is None
    assert verdict.limits[0].interval is None


def test_layouts_that_keep_their_promise_come_first(forecast: Any, intervals: Any) -> None:
    gpu, layout = forecast.deployment.gpu, forecast.deployment.layout
    kept, broken = (judge(forecast, limit_at(forecast, factor), intervals) for factor in (2.0, 0.5))
    slow = LayoutCost(gpu, layout, output_tokens_per_second=10.0, verdict=kept, source="measured")
    fast = LayoutCost(gpu, layout, output_tokens_per_second=20.0, verdict=broken, source="measured")
    assert ranked([fast, slow]) == [slow, fast]
    assert ranked([slow, replace(fast, verdict=None)])[0].output_tokens_per_second == 20.0
