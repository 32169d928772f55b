"""Screenshots of the web page and of a report for README and pages: ``python docs/_site/screenshots.py``.

Needs Chromium, Playwright, ``infercast[web,report]`` and Pillow (which comes with matplotlib).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
PORT = 18425
RUN = ("simulate", "llama-3.1-8b", "--gpu", "h200-sxm", "--rate", "12", "--slo", "ttft_p99<300ms,tpot_p95<12ms")
PROGRAM = (sys.executable, "-m", "infercast")
COLOURS = 128
"""Screens have few colours: a palette makes files a third as large."""
WAITING = re.compile("Simulating|One moment|Loading")
"""Words of a page that is not done."""


def take(browser: Browser, address: str, name: str, width: int, height: int) -> None:
    """One picture of a page, when everything on it is drawn."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light", reduced_motion="reduce")
    page.goto(address)
    page.wait_for_timeout(1_000)
    for _ in range(60):
        if not WAITING.search(page.inner_text("body")):
            break
        page.wait_for_timeout(1_000)
    page.wait_for_timeout(2_000)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS).save(IMAGES / f"{name}.png", optimize=True)
    page.close()


@contextmanager
def served() -> Iterator[str]:
    """The web page, for as long as pictures are taken."""
    server = subprocess.Popen([*PROGRAM, "web", "--port", str(PORT)], stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{PORT}/"
    try:
        for _ in range(60):
            try:
                urllib.request.urlopen(address).close()
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """A report and the page, both of the README's run."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as players, tempfile.TemporaryDirectory() as folder:
        browser = players.chromium.launch(executable_path=found, args=["--no-sandbox"])
        report = Path(folder) / "run.html"
        subprocess.run([*PROGRAM, *RUN, "--report", str(report)], check=True, stdout=subprocess.DEVNULL)
        take(browser, report.as_uri(), "report", 1180, 1200)
        take(browser, report.as_uri(), "report_phone", 390, 844)
        with served() as address:
            take(browser, address, "web", 1440, 1330)
            take(browser, address, "web_phone", 390, 844)
        browser.close()


if __name__ == "__main__":
    main()
