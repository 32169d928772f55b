"""A trace is JSON that a viewer takes: slices nest, moments are in order of the run, counters count."""

import json
from typing import Any

import pytest

import infercast
from infercast.forecast.explain.step_log import lanes_of, watch_run
from infercast.forecast.system import system_of
from infercast.report.trace import ENGINE, GPU, HOST, QUEUE, REQUESTS, trace_pieces
from infercast.serve.workload.synthetic import synthetic_workload


@pytest.fixture(scope="module")
def trace() -> Any:
    workload = synthetic_workload(rate=25, count=40, input_lengths="uniform:50:3000", output_lengths=30)
    run = watch_run(system_of(infercast.deploy("llama-3.1-8b", "h200-sxm")), workload)
    return json.loads("".join(trace_pieces(lanes_of(run, 0.0, 60.0), {"model": "a <model>"})))


def slices(trace: Any, process: int, thread: int | None = None) -> list[Any]:
    found = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["pid"] == process]
    return [each for each in found if thread is None or each["tid"] == thread]


def test_it_says_what_it_is(trace: Any) -> None:
    assert trace["otherData"]["model"] == "a <model>"
    assert trace["otherData"]["window_s"].startswith("0 to ")
    names = {each["args"]["name"] for each in trace["traceEvents"] if each["name"].endswith("_name")}
    assert {"engine", "requests", "queue", "host thread", "GPU: steps and their kernels"} <= names


def test_slices_of_a_lane_nest(trace: Any) -> None:
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in trace["traceEvents"]:
        if each["ph"] == "X":
            assert each["dur"] >= 0
            lanes.setdefault((each["pid"], each["tid"]), []).append((each["ts"], each["ts"] + each["dur"]))
    assert {(ENGINE, GPU), (ENGINE, HOST)} <= set(lanes)
    for found in lanes.values():
        around: list[float] = []
        for begin, end in sorted(found, key=lambda each: (each[0], -each[1])):
            while around and around[-1] <= begin + 1e-6:
                around.pop()
            assert not around or end <= around[-1] + 1e-6
            around.append(end)


def test_every_step_has_its_kernels(trace: Any) -> None:
    found = slices(trace, ENGINE, GPU)
    steps = [each for each in found if each["name"].endswith(" step")]
    assert sum(each["args"]["sampled"] for each in steps) == 40 * 30
    assert sum(each["name"] == "gate_up_proj" for each in found) == len(steps)


def test_every_request_has_its_moments(trace: Any) -> None:
    moments = [each["name"] for each in trace["traceEvents"] if each["ph"] == "i"]
    assert [moments.count(name) for name in ("arrival", "first token", "end")] == [40, 40, 40]
    names = [each["name"] for each in slices(trace, REQUESTS)]
    assert names.count("prompt") == names.count("decoding") == 40
    assert len(slices(trace, QUEUE)) == names.count("waiting") > 0


def test_counters(trace: Any) -> None:
    values: dict[str, list[float]] = {}
    for each in trace["traceEvents"]:
        if each["ph"] == "C":
            values.setdefault(each["name"], []).append(each["args"]["value"])
    assert set(values) == {"KV cache in use, %", "requests running", "requests waiting"}
    assert 0 < max(values["KV cache in use, %"]) < 100
    assert values["requests running"][-1] == values["requests waiting"][-1] == 0
