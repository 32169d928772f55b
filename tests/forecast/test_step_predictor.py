"""Step times for other schedulers: a scheduler on the predictor's clock has the times of a simulated run."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from infercast.errors import InputError
from infercast.forecast.kernels import StepPredictor
from infercast.serve import Workload
from infercast.serve.simulation import clients_of, new_record, scheduler_of, simulate
from infercast.serve.workload.synthetic import synthetic_workload


def serve(predictor: StepPredictor, scheduler: Any, workload: Workload) -> np.ndarray:
    """When answers end, by an engine's loop as others would write it around a scheduler."""
    replica, clock, under_way = predictor.replica, predictor.clock, deque[Any]()
    clients, last = clients_of(replica, workload), np.full(len(workload.requests), np.nan)
    log = new_record(replica, len(workload.requests))  # which API servers read: they send what steps put out
    clients.listen([log])

    def take_in() -> None:
        plan, ready = under_way.popleft(), predictor.take_in()
        done = scheduler.complete(plan)
        count = plan.decodes - plan.wasted + len(plan.sampled) - len(plan.thrown_away)
        log.ends.append(ready)
        log.stretches += (1, count, count)
        for sequence in done:
            last[sequence.index] = ready + replica.token_path_seconds + replica.token_turn_seconds * count
            clients.answer(last[sequence.index], sequence.index)

    while True:
        clients.move_to(clock.clock)
        while (arrival := clients.next_arrival) is not None and arrival <= clock.clock:
            scheduler.add(*clients.pop()[:2])
        plan = scheduler.plan()
        if plan is not None:
            prompts = [*zip(plan.new_tokens, plan.computed, strict=True)]
            unfinished = len(prompts) - len(plan.sampled) - plan.num_cut
            predictor.launch(prompts, plan.contexts() if plan.decodes else [], unfinished=unfinished)
            scheduler.start(plan)
            under_way.append(plan)
        if under_way and (plan is None or len(under_way) == predictor.steps_under_way):
            take_in()
        elif plan is None and clients.next_arrival is None:
            return last
        elif plan is None:
            clock.sleep_until(clients.next_arrival + replica.wake_up_seconds)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("rate", [4.0, 40.0])
def test_a_scheduler_on_its_clock_has_the_times_of_a_simulated_run(engine: str, rate: float) -> None:
    predictor = StepPredictor.of("llama-3.1-8b", "h200-sxm", engine=engine)
    lengths = {"input_lengths": "lognormal:900:0.9:8:20000", "output_lengths": "lognormal:60:0.7:2:300"}
    workload = synthetic_workload(rate=rate, count=120, seed=3, **lengths)
    expected = simulate(predictor.replica, workload).last_token
    assert serve(predictor, scheduler_of(predictor.replica), workload) == pytest.approx(expected, rel=1e-9)


def test_a_step_is_launched_and_waited_for() -> None:
    predictor = StepPredictor.of("llama-3.1-8b", "h200-sxm")
    alone = predictor.step(decodes=[1000])
    ahead = predictor.launch(decodes=[1001])
    behind = predictor.launch(decodes=[1002], at=0.0)
    assert alone.ready > alone.end > alone.start
    assert behind.start >= ahead.end
    assert predictor.take_in() <= behind.end < predictor.take_in()


def test_stages_are_refused() -> None:
    with pytest.raises(InputError, match="pipeline_parallel_size"):
        StepPredictor.of("llama-3.1-8b", "h200-sxm", pipeline_parallel_size=2)
