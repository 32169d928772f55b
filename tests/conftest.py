"""What holds for all tests."""

import gc
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Workers of pytest-xdist share the processors: a second thread of a library's would only spin beside them.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Collected tests stay, and looking for cycles among thousands of them takes as long as importing them.
gc.disable()

# A busy machine is no error, and the same tests run with the same examples everywhere.
settings.register_profile("infercast", deadline=None, derandomize=True)
settings.load_profile("infercast")

# Nor does it shorten a run, and no test sees an answer of an earlier one.
os.environ |= {"INFERCAST_TIME_LIMIT": "100000", "INFERCAST_CACHE": "off"}

TESTS = Path(__file__).parent
QUICK = (
    "hardware", "models", "ops", "test_document_commands.py", "test_documents.py", "test_errors.py", "test_glossary.py",
    "test_maintainers.py", "test_public_api.py", "test_release.py", "test_units.py",
    *(f"serve/test_{name}.py" for name in (
        "adapters", "arrivals", "cache", "clients", "lengths", "prefill_first", "radix", "record", "router",
        "scheduler", "simulation", "timeline", "traces", "workload",
    )),
)  # fmt: skip
"""Folders and files of `pytest -m quick`, which takes less than a minute on two cores."""
LONG = ("test_any_config_reads_or_is_refused_in_words",)
"""Tests in them that take several seconds."""


def is_quick(path: Path) -> bool:
    name = path.relative_to(TESTS).as_posix()
    return name.startswith(tuple(f"{each}/" for each in QUICK)) or name in QUICK


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: tests to run while working, in less than a minute")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick` other files are not even imported."""
    if config.option.markexpr != "quick" or collection_path.is_dir() or not collection_path.is_relative_to(TESTS):
        return None
    return True if collection_path.name.startswith("test_") and not is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of this folder hold the longest tests and come first: no processor waits for one of them at the end."""
    items.sort(key=lambda item: item.path.parent != TESTS)
    for item in items:
        if is_quick(item.path) and getattr(item, "originalname", item.name) not in LONG:
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """What is loaded by now stays, and simulations make hardly any cycles: see `infercast.cli.main`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def every() -> Callable[[Iterable[Any], Callable[[Any], None]], None]:
    """``every(rows, check)`` is one test of a long list, which tells all rows that fail and not the first alone."""

    def run(rows: Iterable[Any], check: Callable[[Any], None]) -> None:
        wrong = []
        for row in rows:
            try:
                check(row)
            except (Exception, pytest.fail.Exception) as problem:
                wrong.append(f"{row}: {type(problem).__name__} {problem}")
        assert not wrong, "\n".join(wrong)

    return run


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of pages are painted and not written as SVG, which takes matplotlib a second for every page."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second that other tests need not wait for

    def write(_: Figure, to: TextIO, **__: object) -> None:
        to.write('<svg width="1" height="1"></svg>')

    monkeypatch.setattr(Figure, "savefig", write)


CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A headless Chromium of this machine, for pages that are looked at as people do.

    One per file: while it is open, an event loop runs in this thread, and other tests could not start one.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright of infercast[test]")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("needs a Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer", "--disable-gpu-compositing"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serious_findings() -> Callable[["Page"], list[str]]:
    """What axe finds on a page that keeps people from using it, as lines to read."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe of infercast[test]").Axe()

    def run(page: "Page") -> list[str]:
        found = axe.run(page).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:160]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    return run
