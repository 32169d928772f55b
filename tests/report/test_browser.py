"""The page in a real browser: nothing to complain about, charts in the colours of light and dark."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from PIL import Image  # matplotlib brings it along

from infercast.forecast.deploy import deploy
from infercast.forecast.explain.overview import look_over
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.system import system_of
from infercast.report.page.html import report_page
from infercast.serve.workload.synthetic import synthetic_workload

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
CHARTS = ("latency", "load", "composition", "roofline", "slowest")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser is installed")


def browse(page: Path, profile: Path, *flags: str) -> Any:
    words = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)


def complaints(done: Any) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = synthetic_workload(rate=20, count=60, input_lengths="uniform:50:900", output_lengths="uniform:2:60")
    overview = look_over(watch_run(system_of(deploy("llama-3.1-8b", "h200-sxm")), workload))
    path = tmp_path_factory.mktemp("report") / "run.html"
    path.write_text(report_page(overview), encoding="utf-8")
    return path


def test_no_complaint_and_every_chart(page: Path, tmp_path: Path) -> None:
    done = browse(page, tmp_path, "--dump-dom")
    assert complaints(done) == []
    for name in CHARTS:
        assert f'id="chart-{name}"' in done.stdout


def test_a_complaint_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\"><script>1</script>"
    )
    assert complaints(browse(page, tmp_path / "profile", "--dump-dom"))


@pytest.mark.parametrize(
    ("scheme", "paper", "series"), [(1, (255, 255, 255), (47, 116, 181)), (0, (20, 24, 31), (90, 158, 219))]
)
def test_light_and_dark(
    page: Path, tmp_path: Path, scheme: int, paper: tuple[int, ...], series: tuple[int, ...]
) -> None:
    picture = tmp_path / "page.png"
    flags = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1060,4600", f"--screenshot={picture}")
    browse(page, tmp_path / "profile", *flags)
    with Image.open(picture) as image:
        shown = image.convert("RGB")
        assert shown.getpixel((5, 5)) == paper
        counts = {colour: count for count, colour in shown.getcolors(maxcolors=1 << 24) or []}
    assert counts.get(series, 0) > 20_000, "bars of charts"


def test_nothing_is_wider_than_a_phone(page: Path, tmp_path: Path) -> None:
    frame, picture = tmp_path / "frame.html", tmp_path / "phone.png"
    # A window is never narrower than 500 pixels; a frame in it is.
    style = "width:390px;height:5000px;border:0"
    frame.write_text(f'<!doctype html><body style="margin:0"><iframe src="{page.as_uri()}" style="{style}"></iframe>')
    flags = ("--blink-settings=preferredColorScheme=1", "--window-size=500,5000", f"--screenshot={picture}")
    browse(frame, tmp_path / "profile", *flags)
    with Image.open(picture) as image:
        shown = image.convert("RGB")
    margin = {shown.getpixel((x, y)) for x in (380, 389) for y in range(0, 5000, 3)}
    assert margin == {(255, 255, 255)}, "the margin on the right is empty"
    inside = {shown.getpixel((x, y)) for x in range(20, 370, 10) for y in range(0, 1000, 5)}
    assert len(inside) > 10
