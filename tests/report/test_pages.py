"""Every kind of page in a real browser, on phones and a laptop: nothing cut, nothing on top of another, readable."""

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("playwright.sync_api", reason="needs playwright of infercast[test]")

from infercast.cli.main import run
from infercast.forecast import autoscaling

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = {"phone": (390, 844), "small": (320, 640), "laptop": (1440, 900)}
LOAD = "--rate 20 -n 40 --input-len 400 --output-len 30"
SLO = "--slo ttft_p99<1s,tpot_p95<30ms"
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'
PAGES = {
    "run": f"simulate qwen3-0.6b --gpu h200-sxm {LOAD} {SLO} --report",
    "narrow": "simulate qwen3-0.6b --gpu h200-sxm --arrival burst -n 3 --input-len 200 --output-len 20 --report",
    "experts": f"simulate qwen3-30b-a3b --gpu h100-sxm -tp 2 -dp 2 {LOAD} --report",
    "pools": f"disaggregate qwen3-0.6b --prefill-gpu h200-sxm --decode-gpu h100-sxm {LOAD} --report",
    "engines": f"simulate qwen2.5-0.5b --gpu h200-sxm {LOAD} --engine vllm@0.25,sglang --report",
    "sweep": f"sweep qwen3-0.6b --gpu l4 --rates 4,16,64 -n 40 --input-len 400 --output-len 30 {SLO} --plot",
    "day": "capacity qwen2.5-0.5b --gpu l4 --max-model-len 4096 --rate 60 --input-len 200 --output-len 40 --no-check "
    f"{SLO} --plot",
    "drafts": "speculate qwen3-0.6b --gpu h200-sxm --acceptance 0.7 --concurrencies 1,8,24 -n 60 --input-len 400 "
    "--output-len 30 --speculative-config DRAFTS --plot",
}
MISLAID = """() => {
  const found = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) found.push('the page is wider than its window');
  for (const svg of document.querySelectorAll('svg.chart')) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll('text')]
      .map(each => [each.textContent.trim(), each.getBoundingClientRect()]);
    texts.forEach(([words, box], place) => {
      if (!words) return;
      if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`${svg.id}: ${words} is cut`);
      if (box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`${svg.id}: ${words} is cut`);
      for (const [others, other] of texts.slice(0, place)) {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (others && across > 1 && down > 2) found.push(`${svg.id}: ${words} is on top of ${others}`);
      }
    });
  }
  return found;
}"""
"""Runs in the page: what is cut, and what is on top of something else."""
UNREADABLE = """() => [...document.querySelectorAll('svg.chart text')]
  .filter(each => each.getBoundingClientRect().width && each.textContent.trim())
  .map(each => [each, each.getScreenCTM()])
  .filter(([each, to]) => parseFloat(getComputedStyle(each).fontSize) * Math.hypot(to.a, to.b) < 9.5)
  .map(([each]) => each.textContent)"""


def said(*words: object) -> str:
    """What the command line prints."""
    before, sys.argv = sys.argv, ["infercast", *map(str, words)]
    text = StringIO()
    try:
        with redirect_stdout(text), suppress(SystemExit):
            run()
    finally:
        sys.argv = before
    return text.getvalue()


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Makes a page when it is first asked for: tests are shared out to several processes."""
    folder = tmp_path_factory.mktemp("pages")

    def make(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists() and name == "several":
            several(folder)
        elif not path.exists():
            said(*(DRAFTS if word == "DRAFTS" else word for word in PAGES[name].split()), path)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoscaling, "LEAST", 500)  # requests at each point of a day's curve
        patch.setattr(autoscaling, "MOST", 1000)
        yield make


def several(folder: Path) -> None:
    """Four runs, one of them overloaded, with a long name."""
    gpus = {"h200": "h200-sxm", "h100": "h100-sxm", "b200": "b200-sxm", "an-overloaded-small-one": "l4"}
    load = "--rate 12 -n 60 --max-model-len 8192 --allow-overload --json"
    for name, gpu in gpus.items():
        text = said("simulate", "llama-3.1-8b", "--gpu", gpu, *load.split())
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    said("report", *(folder / f"{name}.json" for name in gpus), "--out", folder / "several.html")


@pytest.fixture
def opened(browser: "Browser", page_of: Callable[[str], Path]) -> Iterator[Callable[..., "Page"]]:
    """Opens a page by its name; in the end the browser may not have complained about any."""
    complaints: list[str] = []
    contexts = []

    def open_page(name: str, size: str = "phone", scheme: Any = "light") -> "Page":
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(page_of(name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("name", [*PAGES, "several"])
def test_nothing_is_cut_or_on_top_of_another(opened: Any, name: str) -> None:
    for size in SIZES:
        page = opened(name, size)
        assert page.evaluate(MISLAID) == [], size
        if size != "small":
            assert page.evaluate(UNREADABLE) == [], size


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        ("run", "phone", "light"),
        ("several", "laptop", "dark"),
        ("engines", "laptop", "light"),
        ("sweep", "phone", "dark"),
    ],
)
def test_everybody_can_read_it(opened: Any, serious_findings: Any, name: str, size: str, scheme: str) -> None:
    assert serious_findings(opened(name, size, scheme)) == []


def test_rows_are_cards_on_a_phone_and_rows_on_a_laptop(opened: Any) -> None:
    page = opened("run")
    assert page.locator("#chart-load-phone").is_visible()
    assert not page.locator("#chart-load").is_visible()
    row = page.locator("#latency tbody tr").first
    tops = {round(cell.bounding_box()["y"]) for cell in row.locator("td").all()}
    assert len(tops) > 1, "cells stand below each other"
    label = "element => getComputedStyle(element, '::before').content"
    assert row.locator("td").first.evaluate(label) == '"mean"'
    assert page.get_by_role("table").first.get_by_role("row").count() > 3, "it still is a table to a screen reader"
    page = opened("run", "laptop")
    assert page.locator("#chart-load").is_visible()
    assert not page.locator("#chart-load-phone").is_visible()
    tops = {round(cell.bounding_box()["y"]) for cell in page.locator("#latency tbody tr").first.locator("td").all()}
    assert len(tops) == 1


@pytest.mark.parametrize("size", SIZES)
def test_words_are_explained_by_pointer_and_keyboard(opened: Any, size: str) -> None:
    page = opened("run", size)
    term = page.locator("header .term").first
    tip = term.locator(".tip")
    assert term.inner_text() == "TTFT"
    assert not tip.is_visible()
    term.hover()
    assert tip.is_visible()
    assert "Time from when a client sends a request" in tip.inner_text()
    page.mouse.move(0, 0)
    term.focus()
    assert tip.is_visible()
    width, _ = SIZES[size]
    for each in page.locator(".term").all():
        each.focus()
        box = each.locator(".tip").bounding_box()
        assert box["x"] >= 0, each.inner_text()
        assert box["x"] + box["width"] <= width, each.inner_text()
    described = term.get_attribute("aria-describedby")
    assert "first output token" in page.locator(f"#{described}").inner_text()


def test_links_lead_to_sections_and_the_command_can_be_copied(opened: Any) -> None:
    page = opened("run")
    page.get_by_role("link", name="Caveats").click()
    assert page.evaluate("location.hash") == "#caveats"
    command = page.locator("#made pre")
    assert command.inner_text().startswith("infercast simulate qwen3-0.6b --gpu h200-sxm")
    assert command.evaluate("each => getComputedStyle(each).userSelect") == "all"


def test_paper_has_what_desks_have(opened: Any) -> None:
    page = opened("run")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 800, "height": 1100})
    assert page.locator("#chart-latency").is_visible()
    assert not page.locator("nav").is_visible()
