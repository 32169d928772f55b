"""The documentation site: pages that are generated hold all that they should, and every page has its place."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import infercast
from infercast.cli.app import COMMANDS
from infercast.glossary import glossary
from infercast.hardware import gpu_names
from infercast.models.library import model_names
from infercast.web.answers import openapi_document

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "_site"
NAMES = (
    "catalog_page",
    "command_line_page",
    "glossary_page",
    "http_page",
    "json_page",
    "links",
    "pages",
    "python_page",
)


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    """The scripts, imported as the hook of the site imports them."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import pages  # noqa: PLC0415 - found only now

        yield pages
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in NAMES:
            sys.modules.pop(name, None)


def test_the_reference_has_every_command_and_option(pages: ModuleType) -> None:
    text = pages.GENERATED["reference-command-line.md"]()
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
    for option in (
        "`--gpu GPU`",
        "`--slo ",
        "`--max-num-batched-tokens N`",
        "`--speculative-config ",
        "`--goal-minutes ",
    ):
        assert option in text
    assert " at 0x" not in text


def test_the_reference_has_every_public_name(pages: ModuleType) -> None:
    text = pages.GENERATED["reference-python.md"]()
    for name in infercast.__all__:
        assert f"\n### {name}\n" in text
    assert " at 0x" not in text


def test_the_glossary_has_every_term(pages: ModuleType) -> None:
    text = pages.GENERATED["glossary.md"]()
    for term in glossary():
        assert f'<span id="{term.key}"></span>**{term.term}**' in text
        assert term.meaning in text


def test_the_http_reference_has_every_path_and_field(pages: ModuleType) -> None:
    text = pages.GENERATED["reference-http.md"]()
    described = openapi_document()
    for path in described["paths"]:
        assert f"/api/v1{path}`" in text
    for field in described["components"]["schemas"]["State"]["properties"]:
        assert f"| `{field}` |" in text


def test_keys_of_all_answers_say_what_they_mean(pages: ModuleType) -> None:
    text = pages.GENERATED["reference-json.md"]()
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| `")]
    assert len(rows) > 1000
    assert not [row[0] for row in rows if not row[-1].strip(" |")]


def test_the_catalog_has_every_model_and_gpu(pages: ModuleType) -> None:
    text = pages.GENERATED["reference-catalog.md"]()
    names = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert names == {*model_names(), *gpu_names()}


def test_records_are_on_the_site(pages: ModuleType) -> None:
    assert {"log.md", "results/README.md", "results/scoreboard.md", "results/vllm.md"} <= set(pages.RECORDS)
    assert all((ROOT / source).is_file() for source in (*pages.RECORDS.values(), *pages.COPIED.values()))


def test_links_lead_to_pages_and_other_files_are_words(pages: ModuleType) -> None:
    from links import for_site  # noqa: PLC0415 - found by the fixture

    text = "[a](plan.md#b), [c](../CONTRIBUTING.md), [d](../src/x.py), [e](https://x.org/a.md), ![f](images/f.svg)"
    assert for_site(text, {"plan.md", "contributing.md"}) == (
        "[a](plan.md#b), [c](contributing.md), d, [e](https://x.org/a.md), ![f](images/f.svg)"
    )
    records = {"benchmarks/LOG.md": "log.md", "benchmarks/results/vllm.md": "results/vllm.md"}
    text = "[a](../LOG.md#b), [c](../../docs/plan.md), ![d](../../docs/images/d.svg), [e](../../src/x.py)"
    assert for_site(text, {"plan.md", "log.md"}, "results/vllm.md", records) == (
        "[a](../log.md#b), [c](../plan.md), ![d](../images/d.svg), e"
    )
    assert for_site("[a](../benchmarks/results/vllm.md)", {"results/vllm.md"}, "odds.md", records) == (
        "[a](results/vllm.md)"
    )
    assert for_site("```python serve/loop.py\nx\n```", ()) == '```python title="serve/loop.py"\nx\n```'


def test_every_page_has_its_place_in_the_navigation(pages: ModuleType) -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r"[\w-]+\.md", settings))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} | set(pages.GENERATED) | set(pages.COPIED) | {"log.md"}
    assert there == listed


def test_nothing_is_loaded_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in settings
    assert "://" not in settings


def test_pages_count_bundled_models_and_gpus_right() -> None:
    models, gpus = len(model_names()), len(gpu_names())
    assert f"{models} bundled names" in (ROOT / "README.md").read_text("utf-8")
    assert f"{gpus} bundled" in (ROOT / "README.md").read_text("utf-8")
    assert f"{models} models and\n{gpus} GPUs" in (ROOT / "docs" / "index.md").read_text("utf-8")


def test_the_page_on_installing_names_every_extra() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = settings.split("[project.optional-dependencies]")[1].split("\n[")[0]
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    for name in re.findall(r"^([a-z]+) = ", extras, re.MULTILINE):
        assert f"`infercast[{name}]`" in page
