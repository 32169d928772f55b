"""The page of a run: whole, self-contained, and the same every time."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from infercast import __version__
from infercast.forecast.deploy import deploy
from infercast.forecast.explain.overview import Overview, look_over
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.steady import State
from infercast.forecast.system import system_of
from infercast.report.files import check_writable, write_whole
from infercast.report.kernels import BY_PLACE
from infercast.report.page.html import report_page
from infercast.report.quantities import format_interval
from infercast.serve.workload.synthetic import synthetic_workload
from infercast.units import format_seconds

CHARTS = {"chart-latency", "chart-load", "chart-composition", "chart-roofline", "chart-slowest"}
EMPTY = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Text, elements by id, and whether every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def overview() -> Overview:
    lengths = {"input_lengths": "uniform:50:900", "output_lengths": "uniform:2:60"}
    workload = synthetic_workload(rate=20, count=60, prefix_length=160, **lengths)
    return look_over(watch_run(system_of(deploy("llama-3.1-8b", "h200-sxm")), workload))


@pytest.fixture(scope="module")
def page(overview: Overview) -> str:
    return report_page(overview)


def test_every_chart_and_section_is_there(page: str) -> None:
    parsed = Page(page)
    names = {"latency", "load", "kernels", "roofline", "slowest", "sources", "caveats", "made"}
    assert set(parsed.ids) >= CHARTS | names
    assert set(parsed.ids) >= {"chart-load-phone", "chart-composition-phone", "chart-slowest-phone"}
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "script" not in parsed.tags


def test_the_page_has_what_a_token_is_made_of_by_its_place(page: str, overview: Overview) -> None:
    assert BY_PLACE in page
    assert overview.breakdown.composition
    for each in overview.breakdown.composition:
        assert f"{each.first:,} to {each.last:,}" in page


def test_links_lead_to_sections(page: str) -> None:
    links = re.findall(r'<a href="#([^"]*)">', page)
    assert len(links) >= 8
    assert set(links) <= set(Page(page).ids)


def test_numbers_and_intervals_are_text(page: str, overview: Overview) -> None:
    text, forecast, intervals = Page(page).text, overview.forecast, overview.intervals
    for name in ("p50", "p90", "p99", "mean"):
        assert format_seconds(getattr(forecast.ttft, name)) in text
        low, high = getattr(intervals.ttft.low, name), getattr(intervals.ttft.high, name)
        assert format_interval(low, high) in text
    assert f"{forecast.output_tokens_per_second:,.0f}" in text
    assert f"p99 {format_seconds(forecast.ttft.p99)}" in text, "text of charts stays text"
    assert "physics times an efficiency learned from measured kernels of this GPU" in text


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    without_names = re.sub(r'xmlns(:xlink)?="[^"]*"', "", page)
    assert "http:" not in without_names
    assert "https:" not in without_names
    assert not re.search(r"url\((?!#)|@import|src=", without_names)
    assert len(page) < 1_000_000


def test_every_colour_of_a_chart_is_a_variable(page: str) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert not re.search(r"#[0-9a-f]{6}", figures)
    used = set(re.findall(r"var\(--(\w+)\)", figures))
    assert used <= set(re.findall(r"--(\w+):", page))


def test_the_page_says_how_and_when_it_was_made(
    overview: Overview, monkeypatch: pytest.MonkeyPatch, unrendered: None
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1794000000")
    command = "infercast simulate 'a b' --report <x>.html"
    text = Page(report_page(overview, command)).text
    assert command in text
    assert f"A forecast, not a measurement \u00b7 infercast {__version__} \u00b7 6 November 2026" in text


def test_a_phone_is_thought_of(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media (max-width: 44rem)" in page
    for row in re.findall(r'<tr role="row">(<th scope="row".*?)</tr>', page):
        cells = re.findall(r"<td [^>]*>", row)
        assert cells
        assert all('data-label="' in cell for cell in cells), "a card says what its numbers are"


def test_percentiles_are_named_in_rows_not_beside_each_other() -> None:
    workload = synthetic_workload(arrival="burst", count=3, input_lengths=200, output_lengths=20)
    page = report_page(look_over(watch_run(system_of(deploy("qwen3-0.6b", "h200-sxm")), workload)))
    for name in ("chart-latency", "chart-latency-tpot"):
        chart = re.search(rf'<svg [^>]*id="{name}".*?</svg>', page, flags=re.DOTALL)
        assert chart is not None
        heights = sorted(float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>p\d\d ', chart[0]))
        assert len(heights) == 4
        assert all(above - below > 9 for below, above in pairwise(heights))


def test_the_same_run_gives_the_same_page(page: str, overview: Overview) -> None:
    assert report_page(overview) == page


def test_what_users_type_is_escaped_and_an_overloaded_run_says_so(overview: Overview) -> None:
    workload = replace(overview.forecast.workload, description="<script>alert(1)</script> & more")
    forecast = replace(overview.forecast, workload=workload, state=State("overloaded", 41.5, 90.0))
    odd = report_page(replace(overview, forecast=forecast))
    assert "<script" not in odd
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in odd
    text = Page(odd).text
    assert "only about 41.5 requests/s can be served" in text
    assert "The deployment is overloaded" in text


@pytest.mark.parametrize(("model", "gpu"), [("qwen3-0.6b", "h200-sxm"), ("qwen3-30b-a3b", "mi300x")])
def test_runs_of_few_tokens_and_of_other_gpus(model: str, gpu: str, unrendered: None) -> None:
    workload = synthetic_workload(arrival="burst", count=2, input_lengths=20, output_lengths=1)
    text = report_page(look_over(watch_run(system_of(deploy(model, gpu)), workload)))
    assert set(Page(text).ids) >= CHARTS


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    target.write_text("old")

    def broken() -> Any:
        yield "new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(target, broken())
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]
    assert target.read_text() == "old"
    write_whole(target, ["new"])
    assert target.read_text() == "new"


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "run.txt", "must end in .html"),
        (tmp_path / "none" / "run.html", "which does not exist"),
        (tmp_path, "must end in .html"),
    ):
        with pytest.raises(ValueError, match=words):
            check_writable(path, "--report", (".html",))
