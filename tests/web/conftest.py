"""A server of this process's own, and pages of it in a browser."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LAPTOP, PHONE = (1440, 680), (390, 844)
QUICK = "num_requests=60&curve_requests=50"
"""Of every page, so that answers are quick: 60 requests, and 50 for each point of a curve."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server listens."""
    words = [sys.executable, "-m", "infercast", "web", "--port", "0", "--workers", "1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the server did not start"
            text += line
        try:
            yield json.loads(text)["page"].rstrip("/")
        finally:
            process.terminate()


@pytest.fixture
def open_page(browser: "Browser", address: str) -> Iterator[Callable[..., "Page"]]:
    """Opens the page with a query and waits for its answer; in the end nothing may have gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def opened(query: str = "", size: tuple[int, int] = LAPTOP, scheme: str = "light", errors: bool = False) -> "Page":
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=size == PHONE
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # of a busy machine
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if not errors:
            page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda asked: wrong.append(asked.url) if not allowed(asked.url) else None)
        page.goto(f"{address}/?{QUICK}{query and '&'}{query}")
        page.wait_for_selector("html[data-ready=true]")
        return page

    def allowed(url: str) -> bool:
        return url.startswith((address, "blob:", "data:"))

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
