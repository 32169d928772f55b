"""A sketch of an engine goes up and down with its simulation, and chooses requests that are like the long run."""

from collections.abc import Sequence

import numpy as np
import pytest

import infercast
from infercast.forecast.simulate import serve_system
from infercast.forecast.sketch import Sketch, numbers_of, sketch_of
from infercast.forecast.steady import room_for
from infercast.forecast.system import System, system_of
from infercast.serve import Record, Workload
from infercast.serve.record import ServedRequests
from infercast.serve.workload.synthetic import continued, drawn_numbers, synthetic_workload

RATE = 26.0  # Three quarters of what can be served


@pytest.fixture(scope="module")
def system() -> System:
    return system_of(infercast.deploy("llama-3.1-8b", "h200-sxm"))


def test_a_sketch_goes_up_and_down_with_the_simulation(system: System) -> None:
    load = synthetic_workload(rate=RATE, count=6000, spread_out=True)
    sketches: list[Sketch | None] = []

    def look(records: Sequence[Record]) -> None:
        served = ServedRequests(records).first(1000)
        sketches.append(sketch_of(system, load, records, served, room_for(system.smallest, load.requests)))

    served = system.serve(load, go_on=look).clients
    sketch = sketches[0]
    assert sketch is not None
    shown = sketch.of(load.requests)
    for name, real in (("ttft", served.ttft), ("tpot", served.end_to_end - served.ttft)):
        known = shown[name] if name == "ttft" else shown["e2e"] - shown["ttft"]
        both = (np.array_split(np.log(each[600:]), 24) for each in (real, known))
        parts = [np.array([np.median(part) for part in each]) for each in both]
        assert np.corrcoef(*parts)[0, 1] > 0.75, name


def test_one_prompt_after_another_by_hand() -> None:
    """Steps of 1 s, and 10 ms for each token of a prompt: what comes within a step waits for the one after the next."""
    drawn = synthetic_workload(rate=1.0, count=10).drawn
    assert drawn is not None
    sketch = Sketch([0.0, 1.0, 1.0], 0.01, 1e6, 1000, drawn)
    found = sketch.latencies([np.array([0.0, 0.5]), np.array([100, 200]), np.array([4, 1])])
    # The first from 0 to 1 s, a step of decoding to 2 s with nothing new in it, then one with the second prompt to 5 s.
    assert found["ttft"].tolist() == [1.0, 4.5]
    assert found["e2e"].tolist() == [6.0, 4.5]


def test_a_busy_engine_is_known_from_a_third_of_the_requests(system: System) -> None:
    found = serve_system(system, synthetic_workload(rate=30.0))
    assert found.steady.sketch is not None
    assert len(found.workload.requests) < 7000, "13,000 without a sketch"
    part = found.steady
    sent = found.run.clients.sent_at - found.run.clients.sent_at.min()
    inside = (sent >= part.begin) & (sent <= part.end)
    long = system.serve(synthetic_workload(rate=30.0, count=30_000, spread_out=True, seed=5)).clients
    for name in ("ttft", "end_to_end"):
        ours, theirs = (
            float(np.median(each)) for each in (getattr(found.run.clients, name)[inside], getattr(long, name)[900:])
        )
        assert ours == pytest.approx(theirs, rel=0.03)


def test_the_continuation_is_the_evenest_of_many(system: System) -> None:
    found = serve_system(system, synthetic_workload(rate=30.0))
    sketch = found.steady.sketch
    assert sketch is not None
    first = synthetic_workload(rate=30.0, count=1500, spread_out=True)
    number = sketch.evenest(first, 4000, 20.0, 5.0, 10**6)

    def off(choice: int) -> float:
        longer = continued(first, 4000, 10**6, choice)
        assert isinstance(longer, Workload)
        numbers = numbers_of(longer.requests)
        sent = numbers[0]
        values = np.sort(sketch.latencies(numbers)["tpot"][(sent >= 20) & (sent <= sent[-1] - 5) & (numbers[2] > 1)])
        return abs(float(np.log(np.median(values) / np.median(sketch.long_run["tpot"]))))

    assert off(number) < np.median([off(choice) for choice in range(12)])
    assert number == sketch.evenest(first, 4000, 20.0, 5.0, 10**6)


def test_numbers_of_a_draw_are_those_of_its_requests() -> None:
    load = synthetic_workload(rate=3.0, count=200, spread_out=True, seed=4, prefix_length=8)
    assert load.drawn is not None
    for known, drawn in zip(numbers_of(load.requests), drawn_numbers(load.drawn, 200, 4), strict=True):
        assert np.array_equal(known, drawn)
