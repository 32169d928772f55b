"""What holds for all tests."""

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A busy machine is no error, and the same tests run with the same examples everywhere.
settings.register_profile("infercast", deadline=None, derandomize=True)
settings.load_profile("infercast")

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
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
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
