"""Lanes tell what the simulation did, slice by slice."""

from typing import Any

import numpy as np
import pytest

import infercast
from infercast.forecast.explain import step_log as module
from infercast.forecast.explain.step_log import Watched, lanes_of, watch_run
from infercast.forecast.system import system_of
from infercast.serve import loop, simulate
from infercast.serve.timeline import Span, Timeline
from infercast.serve.workload.synthetic import synthetic_workload

RUNS = {
    "busy": ("llama-3.1-8b", {"rate": 12}, True),
    "small model": ("qwen3-0.6b", {"rate": 30}, True),
    "often idle": ("qwen3-0.6b", {"rate": 2}, True),
    "closed loop": ("llama-3.1-8b", {"concurrency": 8}, True),
    "one step at a time": ("qwen3-0.6b", {"rate": 5}, False),
}


def watched(model: str, load: dict[str, Any], asynchronous: bool) -> Watched:
    settings = infercast.EngineSettings(async_scheduling=asynchronous)
    workload = synthetic_workload(
        count=30, input_lengths="lognormal:700:0.9:16:8000", output_lengths="uniform:2:60", **load
    )
    return watch_run(system_of(infercast.deploy(model, "h200-sxm", settings)), workload)


@pytest.fixture(params=RUNS, scope="module")
def run(request: pytest.FixtureRequest) -> Watched:
    return watched(*RUNS[request.param])


def test_the_host_plans_when_the_simulation_did(run: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are not in the log: their moments are worked out, and must be those of a run without jumps."""
    moments: list[float] = []

    class Noted(Timeline):
        def launch(self, *words: Any) -> Span:
            moments.append(self.clock)
            return super().launch(*words)

    monkeypatch.setattr(loop, "Timeline", Noted)
    record = simulate(run.forecast.system.pools[0].replica, run.forecast.workload, jump=False)
    lanes = lanes_of(run, 0.0, 1e6)
    plans = [each.begin for each in lanes.engines[0].host if each.name == "plan"]
    assert np.allclose(plans, np.array(moments) - record.sent_at.min(), rtol=0, atol=1e-9)


def test_the_host_does_one_thing_at_a_time_and_all_of_it(run: Watched) -> None:
    lanes = lanes_of(run, 0.0, 1e6)
    for before, after in zip(lanes.engines[0].host, lanes.engines[0].host[1:], strict=False):
        assert before.begin <= before.end <= after.begin + 1e-9
    names = [each.name for each in lanes.engines[0].host]
    assert names.count("plan") == names.count("launch") == len(lanes.engines[0].steps)
    assert len(lanes.engines[0].steps) - names.count("take in") <= run.forecast.system.pools[0].replica.steps_under_way


def test_kernels_fill_their_steps(run: Watched) -> None:
    lanes = lanes_of(run, 0.0, 1e6)
    assert len(lanes.engines[0].steps) == run.engines[0].log.steps.ends.size
    for step in lanes.engines[0].steps:
        assert step.kernels[0].begin == step.whole.begin
        assert step.kernels[-1].end == pytest.approx(step.whole.end)
        assert step.kernels[-1].name == "sampling"
    for before, after in zip(lanes.engines[0].steps, lanes.engines[0].steps[1:], strict=False):
        assert before.whole.end <= after.whole.begin + 1e-9
    seconds = sum(step.whole.end - step.whole.begin for step in lanes.engines[0].steps)
    assert seconds == pytest.approx(sum(phase.gpu_seconds for phase in run.forecast.phases))


def test_requests_never_share_a_lane(run: Watched) -> None:
    lanes = lanes_of(run, 0.0, 1e6)
    assert sorted(each.number for each in lanes.engines[0].requests) == list(range(30))
    last: dict[int, float] = {}
    for each in lanes.engines[0].requests:
        assert each.sent <= each.started <= each.first_token <= each.last_token
        assert last.get(each.lane, 0.0) <= each.sent
        last[each.lane] = each.last_token
    assert lanes.engines[0].counts[-1][1:] == (0, 0)
    assert max(running + waiting for _, running, waiting in lanes.engines[0].counts) == len(last)


def test_a_window_holds_what_is_in_it() -> None:
    run = watched(*RUNS["busy"])
    lanes = lanes_of(run, 0.5, 1.0)
    assert 0 < len(lanes.engines[0].steps) < run.engines[0].log.steps.ends.size
    assert all(step.whole.end > 0.5 and step.whole.begin < 1.0 for step in lanes.engines[0].steps)
    assert all(each.last_token > 0.5 and each.sent < 1.0 for each in lanes.engines[0].requests)
    assert not lanes.is_cut
    assert not lanes_of(run, 1e4, 2e4).engines[0].steps


def test_a_window_that_is_too_full_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched(*RUNS["busy"])
    monkeypatch.setattr(module, "MOST_SLICES", 200)
    lanes = lanes_of(run, 0.0, 60.0)
    assert lanes.is_cut
    assert 0 < len(lanes.engines[0].steps) <= 200 // len(run.engines[0].timer.kernels)
    assert lanes.end < 60
    assert all(each.sent < lanes.end for each in lanes.engines[0].requests)


@pytest.mark.parametrize("window", [(-1.0, 2.0), (3.0, 3.0), (float("nan"), 1.0)])
def test_windows_that_make_no_sense(window: tuple[float, float]) -> None:
    with pytest.raises(infercast.InputError, match="window"):
        lanes_of(watched(*RUNS["often idle"]), *window)
