"""A promise and its cost on the page and in comparisons."""

from dataclasses import replace
from typing import Any

import pytest

from infercast import Tariff, deploy
from infercast.forecast.explain.overview import look_over
from infercast.forecast.explain.step_log import Watched, watch_run
from infercast.forecast.system import system_of
from infercast.report.comparison import render_runs
from infercast.report.forecast import decision_fields
from infercast.report.page.html import report_page
from infercast.serve.workload.synthetic import synthetic_workload


def a_run(gpu: str) -> Watched:
    workload = synthetic_workload(rate=20, count=12, input_lengths=200, output_lengths=10)
    run = watch_run(system_of(deploy("qwen3-0.6b", gpu)), workload)
    return replace(run, forecast=run.forecast.promised("ttft_p99<1s,e2e_p95<1ms"))


@pytest.fixture(scope="module")
def run() -> Watched:
    return a_run("h200-sxm")


def test_the_page_has_a_section_for_each_and_cards(run: Watched, without_tips: Any, unrendered: None) -> None:
    page = without_tips(report_page(look_over(run)))
    assert '<section id="slo"><h2>SLO: fails on e2e_p95&lt;1ms</h2>' in page
    assert "ttft_p99&lt;1s" in page
    assert '<section id="cost">' in page
    for name in ("SLO attainment", "SLO odds", "$ per hour", "$/M output tokens"):
        assert f'<div class="name">{name}</div>' in page
    assert "2026-08-22" in page
    plain = replace(run, forecast=replace(run.forecast, verdict=None))
    assert "SLO" not in report_page(look_over(plain))


def test_a_comparison_with_a_gpu_without_a_price_has_dashes(run: Watched, text_of: Any) -> None:
    text = text_of(render_runs((run, a_run("h20")), "gpu=h20"))
    (hourly,) = (line for line in text.splitlines() if "$ per hour" in line)
    assert hourly.split()[-2:] == ["-", "-"]
    (whose,) = (line for line in text.splitlines() if "price by" in line)
    assert "unknown" in whose


def test_a_given_price_has_no_provider(run: Watched) -> None:
    fields = decision_fields(replace(run.forecast, tariff=Tariff(per_gpu_hour=2.0)))
    assert fields["usd_per_hour"] == 2.0
    (price,) = fields["prices"]
    assert (price["provider"], price["kind"], price["date"]) == (None, "given", None)
