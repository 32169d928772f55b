"""A quantity is written down once and shown everywhere."""

from typing import Any

import pytest

from infercast import deploy
from infercast.forecast.explain.overview import look_over
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.system import system_of
from infercast.report import comparison, forecast, quantities
from infercast.report.page import html
from infercast.report.quantities import OF_ENGINES, RESULTS, Quantity
from infercast.serve.workload.synthetic import synthetic_workload

LITRES = Quantity("litres_per_token", "litres per token", lambda run: 1.25 * run.gpus, "{:.2f}".format, " l", "water")
WATTS = Quantity("watts", "watts", lambda load: 700 * load.busy, "{:.0f}".format)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (comparison, quantities):
        monkeypatch.setattr(module, "RESULTS", (*RESULTS, LITRES))
    monkeypatch.setattr(quantities, "OF_ENGINES", (*OF_ENGINES, WATTS))
    workload = synthetic_workload(rate=20, count=12, input_lengths=200, output_lengths=10)
    return watch_run(system_of(deploy("qwen3-0.6b", "h200-sxm", data_parallel_size=2)), workload)


def test_one_row_is_in_json_tables_page_and_comparison(
    run: Any, text_of: Any, without_tips: Any, unrendered: None
) -> None:
    data = forecast.forecast_dict(run.forecast)
    assert data["litres_per_token"] == 2.5
    assert all(0 < engine["watts"] <= 700 for engine in data["engines"])
    text = text_of(forecast.render_forecast(run.forecast))
    assert "water" in text
    assert "2.50 l" in text
    assert "watts" in text
    page = without_tips(html.report_page(look_over(run)))
    assert "litres per token" in page
    assert 'class="number">watts</th>' in page
    assert "litres per token" in text_of(comparison.render_runs((run, run), "nothing=1"))
