"""How fast `infercast web` is on one core: until it listens, until it is painted, until a slider is answered.

The server and its one worker are bound to one processor, where the system can. Seconds of a clock hold what else the
machine does, so those of the processor stand beside them for answers (on Linux). Each is the median of several, beside
its goal of one second and what starting Python and importing numpy takes on the same machine. First paint is that of
Chromium (with Playwright), if there is one; otherwise the time until all files of the page and the catalogue are there.

python benchmarks/speed/web.py
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

GOAL = 1.0
RATES = (8.0, 9.0, 10.0, 11.0, 13.0)
SLIDERS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b on an H200": {},
    "llama-3.3-70b fp8 on 4 H100": {
        "model": "llama-3.3-70b", "gpu": "h100-sxm", "quantization": "fp8", "tensor_parallel_size": 4,
    },
    "qwen3-30b-a3b on an H200": {"model": "qwen3-30b-a3b"},
    "4 replicas on L40S": {"gpu": "l40s", "quantization": "fp8", "data_parallel_size": 4},
}  # fmt: skip


def timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as reply:
        body: bytes = reply.read()
        return body


def ask(address: str, document: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/api/v1/simulate", json.dumps(document).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def load_page(address: str) -> None:
    """Everything that the page asks for before it shows an answer."""
    seen, wanted = set(), [f"{address}/"]
    while wanted:
        place = wanted.pop()
        seen.add(place)
        try:
            text = get(place).decode("utf-8", "replace")
        except urllib.error.HTTPError:
            continue  # a word that looks like the name of a file
        found = re.findall(r'(?:href|src)="\./?([\w./-]+)"|from "(\.[\w./-]+)"|import "(\.[\w./-]+)"', text)
        for name in (next(filter(None, each)) for each in found):
            full = os.path.normpath(f"{place.removeprefix(address).rpartition('/')[0]}/{name}")
            if f"{address}{full}" not in seen:
                wanted.append(f"{address}{full}")
    get(f"{address}/api/v1/catalog")


def first_paint(address: str) -> float | None:
    """Seconds until a browser shows something, by its own clock; None without one."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as play, play.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium:
        times = []
        for _ in range(3):
            page = chromium.new_page()
            page.goto(address)
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
            times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000)
            page.close()
        return statistics.median(times)


def processor_seconds(server: int) -> float:
    """What the server's processes have spent so far; 0 where the system does not say."""
    try:
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        spent = 0
        for process in (str(server), *children):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
        return spent / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def measured(address: str, server: int) -> dict[str, float]:
    found = {"page and catalogue, no browser": statistics.median(timed(lambda: load_page(address)) for _ in range(3))}
    paint = first_paint(address)
    if paint is not None:
        found["first paint in Chromium"] = paint
    for name, fields in SLIDERS.items():
        ask(address, {"state": fields})
        spent = {"slider": 0.0, "its intervals": 0.0}
        clock: dict[str, list[float]] = {part: [] for part in spent}
        for rate in RATES:
            state = {**fields, "rate": rate / (2 if "70b" in name else 1)}
            for part, more in (("slider", {"intervals": False}), ("its intervals", {})):
                before = processor_seconds(server)
                clock[part].append(timed(partial(ask, address, {"state": state, **more})))
                spent[part] += processor_seconds(server) - before
        for part, times in clock.items():
            found[f"{part}, {name}"] = statistics.median(times)
            if spent[part]:
                found[f"  processor: {part}, {name}"] = spent[part] / len(RATES)
    return found


@contextmanager
def on_one_core() -> Iterator[None]:
    """What is started within is bound to one processor; this process and its browser are, too, until the end."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    import_numpy = partial(subprocess.run, [sys.executable, "-c", "import numpy"], check=True)
    numpy = statistics.median(timed(import_numpy) for _ in range(5))
    words = [sys.executable, "-m", "infercast", "web", "--port", "0", "--workers", "1", "--json"]
    start = time.perf_counter()
    with on_one_core(), subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline()
        found = {"until it listens": time.perf_counter() - start}
        try:
            found |= measured(json.loads(text)["page"].rstrip("/"), server.pid)
        finally:
            server.terminate()
    for name, seconds in found.items():
        goal = "" if name == "until it listens" else f"{seconds / GOAL:7.2f} x the goal"
        print(f"{name:60} {seconds:7.3f} s {seconds / numpy:7.1f} x import numpy {goal}")
    print(json.dumps({name.strip(): round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
