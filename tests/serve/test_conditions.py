"""Steps that are alike take different times: the clock's history and a host that varies."""

import numpy as np
import pytest

from infercast.serve.step import HostCost, StepEstimate
from infercast.serve.timeline import NUM_DRAWN, StepNoise

SETTLE, TARGET = 0.08, 0.16


def step(seconds: float = 0.05, target: float = TARGET) -> StepEstimate:
    host = HostCost(plan=0.001, prepare=0.001, launch=0.02, process=0.0)
    return StepEstimate([seconds], [[0.2 * seconds]], host, (1, 1), 0.0, target, 0.8 * seconds)


def shares(gaps: list[float], **kwargs: float) -> list[float]:
    conditions, free, lost = StepNoise(SETTLE), 0.0, []
    for gap in gaps:
        met = conditions.meet(step(**kwargs), free + gap - 0.002, free)
        free += gap + met.gpu_seconds[0]
        lost.append(met.slowed)
    return lost


def test_heavy_steps_in_a_row_take_longer_and_settle_at_the_sustained_clock() -> None:
    lost = shares([0.0] * 40)
    assert lost[0] == 0.0
    assert lost == sorted(lost)
    # What a step adds itself is told by the timer: a share of the target that its length decides.
    own = 1 - (1 - np.exp(-0.05 / SETTLE)) * SETTLE / 0.05
    assert lost[-1] + own * TARGET == pytest.approx(TARGET, rel=0.02)


def test_a_pause_lets_the_clock_recover() -> None:
    after_a_while, at_once = shares([0.002, 0.002, 0.5])[-1], shares([0.002, 0.002, 0.002])[-1]
    assert after_a_while < 0.01 * at_once


def test_a_step_that_begins_before_the_last_has_ended_finds_the_clock_as_it_was() -> None:
    conditions = StepNoise(SETTLE)
    conditions.meet(step(seconds=100.0), 0.0, 0.0)
    on_average = TARGET * (1 - np.exp(-0.05 / SETTLE)) * SETTLE / 0.05
    assert conditions.meet(step(), 0.0, 0.0).slowed == pytest.approx(on_average)


def test_light_steps_lower_nothing() -> None:
    assert shares([0.002] * 5, target=0.0) == [0.0] * 5


def test_a_slowed_step_and_its_kernels_agree() -> None:
    conditions = StepNoise(SETTLE)
    conditions.meet(step(), 0.0, 0.0)
    fresh, met = step(), conditions.meet(step(), 0.04, 0.052)
    assert met.slowed > 0
    assert met.gpu_seconds[0] == pytest.approx(fresh.gpu_seconds[0] + met.slowed * fresh.throttled)
    assert met.varying[0][0] == pytest.approx((1 + met.slowed) * fresh.varying[0][0])


def test_launching_varies_around_its_mean_and_the_same_every_time() -> None:
    runs = []
    for _ in range(2):
        conditions = StepNoise(0.0, spread=0.2)
        runs.append([conditions.meet(step(), 0.0, 0.0).host.launch for _ in range(NUM_DRAWN)])
    assert runs[0] == runs[1]
    assert np.mean(runs[0]) == pytest.approx(0.02, rel=0.01)
    assert np.std(np.log(runs[0])) == pytest.approx(0.2, rel=0.05)


def test_without_history_or_spread_nothing_changes() -> None:
    conditions = StepNoise()
    for _ in range(3):
        assert conditions.meet(step(), 0.0, 0.0) == step()
