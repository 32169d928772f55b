"""Turns, sessions and classes of a forecast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infercast import EngineSettings, deploy, simulate
from infercast.forecast.result import Forecast
from infercast.serve.workload.classes import parse_class, with_classes
from infercast.serve.workload.synthetic import session_workload, synthetic_workload


@pytest.fixture(scope="module")
def talk() -> Forecast:
    workload = session_workload(
        rate=6, count=300, turns="uniform:1:12", input_lengths=600, turn_lengths=50, output_lengths=60, think=2
    )
    classes = [parse_class("chat:1:priority=0:ttft=40ms"), parse_class("batch:1:priority=5")]
    settings = EngineSettings(scheduling_policy="priority")
    return simulate(deploy("qwen3-0.6b", "h200-sxm", settings), with_classes(workload, classes))


def test_later_turns_find_what_was_said(talk: Forecast) -> None:
    sessions = talk.sessions
    assert sessions is not None
    assert [each.name for each in sessions.turns] == [*map(str, range(1, 10)), "10 and later"]
    assert sum(each.requests for each in sessions.turns) == 300
    assert sessions.turns[0].hit_share == 0.0
    assert all(each.hit_share > 0.8 for each in sessions.turns[1:])
    assert sessions.time.p50 > 2.0
    assert 0 < sessions.waiting_share < 0.5


def test_a_class_is_held_against_its_own_slo(talk: Forecast) -> None:
    chat, batch = talk.classes
    kept = [
        talk.clients.ttft[index] < 0.04
        for index, request in enumerate(talk.workload.requests)
        if request.slo_class == "chat"
    ]
    assert chat.attainment == pytest.approx(np.mean(kept))
    assert (chat.priority, batch.priority, batch.attainment) == (0, 5, None)
    assert chat.requests + batch.requests == 300


def test_programs_are_told_of_turns_and_classes(talk: Forecast) -> None:
    told: dict[str, Any] = talk.to_dict(intervals=False)
    assert told["sessions"]["turns"][1]["prefix_hit_rate"] > 0.8
    assert told["classes"][0]["slo_attainment"] == talk.classes[0].attainment
    assert {"session", "class"} <= talk.per_request().keys()


def test_requests_that_stand_alone_have_neither() -> None:
    workload = synthetic_workload(rate=6, count=20, input_lengths=60, output_lengths=6)
    run = simulate(deploy("qwen3-0.6b", "h200-sxm"), workload)
    assert run.sessions is None
    assert run.classes == ()
    assert not {"sessions", "classes"} & run.to_dict(intervals=False).keys()
