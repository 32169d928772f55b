"""A running engine beside its forecast: an emulated one whose host is slow, or whose prompts share less."""

import contextlib
import json
import re
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import infercast.calibration.learn as watch_module
from infercast.calibration.learn import Watched, between, fetch, judge, lengths_of
from infercast.calibration.readers import parse_metrics
from infercast.cli.commands.calibrate import export, metrics_page
from infercast.cli.main import run
from infercast.emulate.emulator import Call, Emulator
from infercast.engines.base import Deployment, engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import slowed
from infercast.forecast.system import system_of
from infercast.serve.workload.distributions import parse_lengths
from infercast.serve.workload.synthetic import synthetic_workload


def metrics_of(
    deployment: Deployment, host: float = 1.0, shared_later: float = 0.6, count: int = 300
) -> tuple[str, str, float]:
    """An emulated engine on a clock without a wall: two snapshots of its metrics, and the seconds between them."""
    system = system_of(deployment)
    pool = system.pools[0]
    system = system._replace(pools=(pool.of(slowed(pool.replica, host=host)),))
    time = [0.0]
    emulator = Emulator(system, parse_lengths("lognormal:60:0.5:4:300", ""), clock=lambda: time[0])
    workload = synthetic_workload(rate=20, count=count, input_lengths="lognormal:500:0.5:64:2000", output_lengths=1)
    rng = np.random.default_rng(0)
    common, requests, first, begin = rng.integers(1, 1000, 2000).tolist(), [*workload.requests], "", 0.0
    while requests or emulator.live.next_event < inf:
        arrival = requests[0].arrival if requests else inf
        time[0] = min(arrival, emulator.live.next_event)
        emulator.catch_up()
        if not first and len(requests) <= 2 * count // 3:
            first, begin = emulator.metrics_text(), time[0]
        if arrival <= time[0]:
            length = requests.pop(0).num_input
            shared = int((shared_later if first else 0.6) * length)
            ids = [*common[:shared], *rng.integers(1, 50_000, length - shared).tolist()]
            emulator.start(Call(), 0, ids, 1000)
    return first, emulator.metrics_text(), time[0] - begin


def watched(engine: str = "vllm", **given: Any) -> Watched:
    deployment = deploy("qwen3-0.6b", "h200-sxm", engine=engine)
    return judge(deployment, *metrics_of(deployment, **given), lambda _: None)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_slow_host_is_found(engine: str) -> None:
    found = watched(engine, host=1.2)
    assert any("host time" in each and "above" in each for each in found.deviations)
    assert found.calibration.host.value == pytest.approx(1.2, rel=0.08)
    assert found.outputs.mean == pytest.approx(60, rel=0.15)


def test_a_calibration_that_watch_writes_forecasts_the_slow_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = ("qwen3-0.6b", "--gpu", "h200-sxm"), tmp_path / "found.toml"
    first, second, seconds = metrics_of(deploy("qwen3-0.6b", "h200-sxm"), host=1.2)
    pages, clock = iter([first, second]), iter([0.0, seconds])
    monkeypatch.setattr(watch_module, "fetch", lambda *_: next(pages))
    monkeypatch.setattr(
        watch_module, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    )

    def asked(*words: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["infercast", *map(str, words), "--json"])
        with contextlib.suppress(SystemExit):
            run()
        return json.loads(capsys.readouterr().out)

    asked("watch", "http://localhost:8000", "--model", *model, "--out", out)
    # With 8 clients a step of the small model takes what the host takes.
    load = {"concurrency": 8, "input_len": 200, "output_len": 100}
    options = [word for name, value in load.items() for word in (f"--{name.replace('_', '-')}", value)]
    before, after = asked("simulate", *model, *options), asked("simulate", *model, *options, "--calibration", out)
    slow = deploy("qwen3-0.6b", "h200-sxm", host=engine_named("vllm").default_host().sped_up(1 / 1.2, "slow"))
    workload = synthetic_workload(concurrency=8, count=400, input_lengths=200, output_lengths=100)
    truth = 1000 * float(np.median(system_of(slow).serve(workload).clients.tpot))
    assert truth > 1.1 * before["tpot_ms"]["p50"]
    assert after["tpot_ms"]["p50"] == pytest.approx(truth, rel=0.05)
    assert any("calibrated with found.toml" in text for text in after["caveats"])


def test_fewer_prefix_hits_are_found_and_a_host_as_forecast_is_not() -> None:
    found = watched(shared_later=0.1)
    assert any("prefix hits went from" in each for each in found.deviations)
    assert not any("host" in each for each in found.deviations)


def test_too_few_requests_are_said() -> None:
    with pytest.raises(InputError, match="too few"):
        judge(deploy("qwen3-0.6b", "h200-sxm"), "", "", 30.0, lambda _: None)


def test_nobody_at_an_address() -> None:
    with pytest.raises(InputError, match="does not answer"):
        fetch("http://127.0.0.1:9/v1")
    with pytest.raises(InputError, match="no address"):
        fetch("file:///etc/passwd")


def test_spread_of_a_histogram() -> None:
    counts = {100: 10, 200: 60, 500: 95, "+Inf": 100}
    lines = [f'x_bucket{{le="{edge}"}} {count}' for edge, count in counts.items()]
    values = parse_metrics("\n".join([*lines, "x_sum{} 20000", "x_count{} 100", "no line of it", "# HELP x y"]))
    found = lengths_of(values, "x")
    assert found.mean == 200
    assert 50 < found.spread < 200
    assert between({}, values)["x_count", ""] == 100.0


def test_prometheus_reads_what_is_measured_and_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    found, seen, looks = watched(host=1.2), list[str](), iter([False, False, True])

    def look() -> Watched:
        url = re.search(r"http://\S+/metrics", capsys.readouterr().err)
        seen.extend([fetch(url[0].removesuffix("/metrics"))] if url else [])
        return found

    export(look, "127.0.0.1", 0, ends=lambda: next(looks))
    assert seen == [metrics_page(None)]
    page = metrics_page(found)
    values = {name: value for (name, _), value in parse_metrics(page).items()}
    assert values["infercast:watch_up"] == 1
    assert 'infercast:watch_deviation{cause="slow_host"} 1' in page
    assert 'infercast:watch_deviation{cause="queue"} 0' in page
    assert 'infercast:watch_measured{quantity="tpot_mean"}' in page
    with pytest.raises(InputError, match="--metrics-port 99999"):
        export(look, "127.0.0.1", 99999)
