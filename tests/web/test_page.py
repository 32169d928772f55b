"""The page in a browser: load, change, compare, export, jobs, on a laptop and on a phone, by keyboard, and axe."""

import contextlib
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright of infercast[test]")

from playwright.sync_api import Error, Page, expect

Open = Callable[..., Page]
PHONE = (390, 844)
SLO = "slo=ttft_p99%3C1s,tpot_p95%3C40ms"
SIZES = {"laptop-light": ((1440, 680), "light"), "laptop-dark": ((1440, 680), "dark"), "phone-light": (PHONE, "light")}


def settled(page: Page) -> None:
    page.wait_for_selector("html[data-ready=true]")


def figure(page: Page, index: int = 0) -> str:
    return page.locator("#tiles .figure").nth(index).inner_text()


def pick(page: Page, title: str, text: str) -> None:
    """A model or a GPU by keyboard alone."""
    page.get_by_role("button", name=f"{title}:").press("Enter")
    page.get_by_role("combobox", name=f"Search {title}").fill(text)
    page.keyboard.press("Enter")
    settled(page)


def test_it_loads_and_answers(open_page: Open) -> None:
    page = open_page(SLO)
    assert re.search("llama-3.1-8b on 1 . H200", page.locator("#verdict h1").inner_text())
    assert "SLO holds" in page.locator("#verdict").inner_text()
    titles = page.locator("#tiles h3").all_inner_texts()
    assert titles[:5] == ["TTFT p50", "TTFT p99", "TPOT p50", "Throughput tokens/s", "Cost per M tokens"]
    assert page.locator("#tiles .bar-range").count() >= 4  # every latency has its interval
    for name in ("Time to first token", "Time per output token", "Memory of one GPU", "Kernels on the roofline"):
        card = page.get_by_role("region", name=name, exact=True).first
        assert card.get_by_role("img").first.get_attribute("aria-label")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 2000, f"first paint after {paint:.0f} ms"


def test_one_change_shows_before_and_after(open_page: Open) -> None:
    page = open_page()
    before = figure(page)
    pick(page, "GPU", "h100 sxm")
    assert "gpu=h100-sxm" in page.url
    assert figure(page) != before
    assert before.split()[0] in page.locator("#tiles .delta").first.inner_text()
    assert "h200-sxm" in page.locator("#changes").inner_text()
    assert "--gpu h100-sxm" in page.locator("#command code").inner_text()
    assert page.locator(".hill.before").count() == 2
    page.get_by_role("button", name="Undo").click()
    settled(page)
    assert figure(page) == before
    assert "h100" not in page.url
    page.go_back()
    settled(page)
    assert "H100" in page.locator("#verdict h1").inner_text()


def test_a_slider_by_keyboard_changes_address_and_answer(open_page: Open) -> None:
    page = open_page()
    rate = page.get_by_role("slider", name="Request rate")
    before = figure(page, 3)
    for _ in range(12):
        rate.press("ArrowRight")
    settled(page)
    found = re.search(r"[?&]rate=([\d.]+)", page.url)
    assert found is not None
    assert float(found[1]) > 14
    assert figure(page, 3) != before
    assert f"--rate {found[1]}" in page.locator("#command code").inner_text()


def test_a_number_that_is_not_taken_is_marked(open_page: Open) -> None:
    page = open_page()
    before, box = figure(page), page.get_by_role("textbox", name="Request rate")
    for wrong in ("-5", "abc"):
        box.fill(wrong)
        box.press("Tab")
        assert box.get_attribute("aria-invalid") == "true"
        assert page.get_by_text("Not used: it must be a number above 0.").is_visible()
        assert figure(page) == before
    held: list[Any] = []

    def hold(asked: Any) -> None:
        held.append(asked)

    page.route("**/api/**", hold)  # no answer comes before the page was looked at
    box.fill("13")
    box.press("Tab")
    page.get_by_text("computing …").first.wait_for()
    assert page.locator("#tiles .delta").first.inner_text() == "computing …"
    page.unroute("**/api/**", hold)
    for asked in held:
        with contextlib.suppress(Error):  # the browser took back what it no longer waits for
            asked.continue_()
    settled(page)
    assert box.get_attribute("aria-invalid") == "false"
    assert "rate=13" in page.url


def test_a_gpu_without_a_price_has_none(open_page: Open) -> None:
    page = open_page("gpu=gb200")
    said = page.locator(".cost").inner_text()
    assert "No price of gb200 is known" in said
    assert "$" not in said


def test_an_address_holds_everything(open_page: Open) -> None:
    page = open_page(f"model=qwen3-8b&gpu=l40s&concurrency=16&input_len=512&output_len=uniform:16:64&{SLO}")
    assert re.search("qwen3-8b on 1 . L40S", page.locator("#verdict h1").inner_text())
    assert page.get_by_role("textbox", name="Clients").input_value() == "16"
    assert page.locator("#slo-ttft").input_value() == "1s"
    assert page.get_by_role("radio", name="all alike").first.is_checked()
    command = page.locator("#command code").inner_text()
    for words in ("qwen3-8b", "--concurrency 16", "--input-len 512", "--output-len uniform:16:64", "--slo"):
        assert words in command


def test_four_runs_side_by_side(open_page: Open) -> None:
    page = open_page()
    page.locator("#add-run").click()
    pick(page, "GPU", "b200 sxm")
    assert page.locator("#tiles .tile").first.locator(".tile-row").count() == 2
    assert "b.gpu=b200-sxm" in page.url
    page.locator("#add-run").click()
    page.locator("#add-run").click()
    settled(page)
    assert page.locator(".run-tab").count() == 4
    assert page.locator("#add-run").count() == 0
    page.reload()
    settled(page)
    assert page.locator(".run-tab").count() == 4
    page.get_by_role("button", name="Remove run B").click()
    assert page.locator(".run-tab").count() == 3
    rows = page.get_by_role("region", name="Time to first token", exact=True).first
    rows.get_by_role("button", name="Table").click()
    assert rows.locator("thead th").count() == 7


def test_files_to_keep(open_page: Open) -> None:
    page = open_page(SLO)
    found: dict[str, str] = {}
    for kind in ("html", "csv", "json"):
        with page.expect_download() as download:
            page.locator(f"#export-{kind}").click()
        found[kind] = Path(download.value.path()).read_text(encoding="utf-8")
        assert download.value.suggested_filename.endswith(f".{kind}")
    assert found["html"].lstrip().lower().startswith("<!doctype html")
    assert len(list(csv.reader(io.StringIO(found["csv"])))) > 1
    assert "llama-3.1-8b" in json.dumps(json.loads(found["json"]))


def test_a_config_of_ones_own(open_page: Open, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 32000, "intermediate_size": 2048, "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16", "model_type": "llama",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    page = open_page()
    page.locator("input[type=file]").set_input_files(path)
    expect(page.locator("#verdict h1")).to_contain_text("config.json")
    settled(page)
    assert "config.json" in page.locator("#command code").inner_text()
    assert "hidden_size" not in page.url
    path.write_text("not JSON")
    page.locator("input[type=file]").set_input_files(path)
    expect(page.locator("#toast")).to_contain_text("not a JSON object")


def test_what_does_not_fit_says_what_does(open_page: Open) -> None:
    page = open_page("model=llama-3.3-70b&gpu=l40s", errors=True)
    assert "does not fit" in page.locator("#verdict").inner_text()
    assert page.locator(".too-much").count() == 1
    page.get_by_role("button", name="Use tensor parallel").click()
    settled(page)
    assert "L40S" in page.locator("#verdict h1").inner_text()


def test_the_load_curve_has_a_knee_and_sets_the_rate(open_page: Open) -> None:
    page = open_page("input_len=512&output_len=16&" + SLO)
    card = page.get_by_role("region", name="Load curve and knee").first
    card.scroll_into_view_if_needed()
    card.locator("svg .choose").wait_for(timeout=45_000)
    assert "requests/s" in str(card.get_by_role("img").get_attribute("aria-label"))
    assert card.locator(".mark-line").count() >= 1
    card.locator("svg .choose").click(position={"x": 200, "y": 8})
    settled(page)
    assert "rate=" in page.url
    card.get_by_role("button", name="TPOT").click()
    assert card.locator("svg .axis-title").first.text_content() is not None


def test_a_plan_runs_as_a_job_and_can_be_cancelled(open_page: Open) -> None:
    page = open_page(SLO)
    page.locator("#plan-start").click()
    job = page.locator(".plan .job")
    job.get_by_role("progressbar").wait_for()
    job.get_by_role("button", name="Cancel").click()
    expect(job).to_contain_text("Cancelled", timeout=20_000)


def test_a_phone(open_page: Open) -> None:
    page = open_page(SLO, size=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    rail = page.locator("#rail")
    assert not rail.is_visible()
    opener = page.locator("#open-rail")
    opener.click()
    expect(rail).to_be_visible()
    page.get_by_role("radio", name="2", exact=True).first.press("Space")
    settled(page)
    assert "tensor_parallel_size=2" in page.url
    page.keyboard.press("Escape")
    expect(rail).not_to_be_visible()
    assert opener.evaluate("node => node === document.activeElement")
    for card in page.locator(".card").all():
        box = card.bounding_box()
        assert box is None or box["x"] + box["width"] <= 390


def test_words_are_explained(open_page: Open) -> None:
    page = open_page()
    page.locator("#tiles .term").first.focus()
    expect(page.locator("#tip")).to_contain_text("first output token")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.get_by_role("button", name="Glossary").click()
    expect(page.get_by_role("dialog")).to_contain_text("TPOT (time per output token)")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.parametrize("kind", SIZES)
def test_axe_finds_nothing_serious(open_page: Open, serious_findings: Callable[[Page], list[str]], kind: str) -> None:
    size, scheme = SIZES[kind]
    page = open_page(f"{SLO}&b.gpu=h100-sxm&b.num_requests=60", size=size, scheme=scheme)
    assert serious_findings(page) == []
    if scheme == "dark":
        return
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    page.get_by_role("button", name="Remove run B").click()
    page.get_by_role("button", name="Table").first.click()
    if size == PHONE:
        page.locator("#open-rail").click()
    page.get_by_role("button", name="GPU:").click()
    assert serious_findings(page) == []


def test_the_page_writes_addresses_as_the_server_does(open_page: Open) -> None:
    page = open_page()
    found = page.evaluate(
        """async () => {
            const { Fields } = await import("./lib/fields.js");
            const catalog = await (await fetch("api/v1/catalog")).json();
            const fields = new Fields(catalog.fields);
            return catalog.presets.map((preset) => {
                const state = fields.whole(preset.state);
                const again = fields.fromQuery(preset.query)[0];
                return [preset.query, decodeURIComponent(fields.toQuery([state])), fields.differing(state, again)];
            });
        }"""
    )
    assert len(found) > 3
    for server, browser, differing in found:
        assert dict(parse_qsl(browser)) == dict(parse_qsl(server))
        assert differing == []
