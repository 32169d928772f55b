"""Host and GPU against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.simulation import simulate
from infercast.serve.step import HostCost, StepEstimate, StepShape, StepTimer
from infercast.serve.timeline import Timeline, WarmupCosts, WarmupHit
from infercast.serve.workload.request import Request, Workload

HOST = HostCost(plan=1.0, prepare=2.0, launch=4.0, process=0.5)


def test_the_gpu_begins_with_the_first_kernel_and_ends_after_the_last() -> None:
    timeline = Timeline(clock=10.0)
    span = timeline.launch(HOST, 3.0)
    # Launched from 13 to 17: the GPU has all of it only then.
    assert (span.start, span.end, timeline.clock) == (13.0, 17.0, 17.0)
    assert span.seconds == 7.0


def test_a_long_step_hides_the_launching_of_the_next() -> None:
    timeline = Timeline()
    first = timeline.launch(HOST, 30.0)
    second = timeline.launch(HOST, 30.0)
    assert (first.start, first.end) == (3.0, 33.0)
    assert (second.start, second.end, second.seconds) == (33.0, 63.0, 30.0)
    assert timeline.clock == 14.0


def test_a_result_is_waited_for_and_taken_in() -> None:
    timeline = Timeline(clock=5.0)
    assert timeline.take_in(8.0, HOST.process) == 8.5
    assert timeline.take_in(3.0, HOST.process) == 9.0


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("gpu_seconds", [0.5, 3.0, 17.0, 25.0])
def test_repeating_a_step_is_launching_and_taking_in_by_turns(gpu_seconds: float, ahead: bool) -> None:
    def fresh() -> tuple[Timeline, list[float]]:
        """A step has been launched, and may still be under way."""
        timeline = Timeline(clock=1.0, slept=True)
        end = timeline.launch(HOST, 20.0).end
        if ahead:
            return timeline, [end]
        timeline.take_in(end, HOST.process)
        return timeline, []

    timeline, _ = fresh()
    steps = [gpu_seconds + 0.1 * step for step in range(12)]
    all_seconds, ends, clocks = timeline.repeat(HOST, steps, HOST.process if ahead else None)
    timeline, under_way = fresh()
    for step, seconds in enumerate(all_seconds):
        span = timeline.launch(HOST, steps[step])
        under_way.append(span.end)
        assert (seconds, ends[step]) == (span.seconds, span.end)
        assert timeline.take_in(under_way.pop(0), HOST.process) == clocks[step]
    assert len(all_seconds) == len(ends) == len(clocks) == 12


def test_only_the_first_step_after_a_sleep_is_slow() -> None:
    host = HostCost(launch=1.0, wake=5.0)
    timeline = Timeline()
    timeline.sleep_until(2.0)
    assert timeline.launch(host, 0.0).end == 8.0
    assert timeline.launch(host, 0.0).end == 9.0


def test_new_kernels_in_the_layers_wait_for_an_idle_gpu() -> None:
    timeline = Timeline(gpu_free=100.0)
    span = timeline.launch(HOST, 2.0, WarmupHit(in_layers=True, in_head=False))
    assert (span.start, span.end, timeline.clock) == (100.0, 104.0, 104.0)


def test_a_new_kernel_in_the_head_waits_for_the_step_itself() -> None:
    timeline = Timeline(gpu_free=100.0)
    span = timeline.launch(HOST, 20.0, WarmupHit(in_layers=False, in_head=True))
    assert (span.start, span.end, timeline.clock) == (100.0, 120.0, 120.0)


def steps_of(host: HostCost, gpu_seconds: float) -> StepTimer:
    def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
        each = [gpu_seconds] * steps
        return StepEstimate(each, [each], host)

    return timer


def replica(host: HostCost, gpu_seconds: float, steps_under_way: int = 2, **changes: float) -> Replica:
    return Replica(
        timer=steps_of(host, gpu_seconds),
        policy=FcfsPolicy(max_num_batched_tokens=100, max_num_seqs=8),
        num_blocks=100,
        steps_under_way=steps_under_way,
        **changes,
    )  # type: ignore[arg-type]


def test_an_idle_request_waits_for_the_launching_of_the_step_after_its_own() -> None:
    # Its own step: 7 s of host; the next one is launched before the first result is looked at: 7 more, and 0.5.
    record = simulate(replica(HOST, 0.1), Workload((Request(0.0, 10, 5),)))
    assert record.first_token.tolist() == [14.5]
    assert record.tpot.tolist() == [pytest.approx((3 * 7.5 + 0.5) / 4)]


def test_with_a_single_token_there_is_no_next_step_to_launch() -> None:
    record = simulate(replica(HOST, 0.1), Workload((Request(0.0, 10, 1),)))
    assert record.first_token.tolist() == [7.5]


def test_without_asynchronous_scheduling_host_and_gpu_take_turns() -> None:
    # 3 s until the first kernel, 10 on the GPU, 0.5 to take it in.
    record = simulate(replica(HOST, 10.0, steps_under_way=1), Workload((Request(0.0, 10, 3),)))
    assert record.first_token.tolist() == [13.5]
    assert record.tpot.tolist() == [13.5]


def test_with_it_the_gpu_never_waits() -> None:
    record = simulate(replica(HOST, 10.0), Workload((Request(0.0, 10, 20),)))
    # From 3 s on, ten for each token, and 0.5 to take the last one in.
    assert record.last_token.tolist() == [pytest.approx(203.5)]


def test_what_arrives_while_a_sleeping_engine_wakes_up_is_seen_at_once() -> None:
    requests = (Request(1.0, 10, 1), Request(1.2, 10, 1), Request(1.6, 10, 1))
    record = simulate(replica(HostCost(), 2.0, wake_up_seconds=0.5), Workload(requests))
    assert record.started_at.tolist() == [1.5, 1.5, 3.5]


def test_longer_prompts_take_longer_to_arrive() -> None:
    requests = (Request(0.0, 50, 1), Request(0.0, 10, 1))
    record = simulate(replica(HostCost(), 1.0, request_path_seconds=1.0, request_token_seconds=0.1), Workload(requests))
    # The second follows the first, though it is shorter.
    assert record.started_at.tolist() == [6.0, 6.0]


def test_tokens_of_one_step_are_handed_over_one_after_the_other() -> None:
    requests = tuple(Request(0.0, 10, 1) for _ in range(4))
    record = simulate(replica(HostCost(), 1.0, token_path_seconds=0.5, token_turn_seconds=0.25), Workload(requests))
    assert record.first_token.tolist() == [2.5] * 4


def shape(tokens: int, rows: int) -> StepShape:
    return StepShape([tokens - rows + 1] + [1] * (rows - 1), [0] * rows, rows)


def test_sizes_are_new_once() -> None:
    uses = WarmupCosts(largest_graph=512, max_num_batched_tokens=8192, max_num_seqs=256)
    assert uses.meet(shape(1000, 1)) == (True, True)
    assert uses.meet(shape(990, 8)) == (False, False)
    assert uses.meet(shape(1100, 9)) == (True, True)


def test_graphs_and_the_largest_step_are_met_at_the_start() -> None:
    uses = WarmupCosts(largest_graph=512, max_num_batched_tokens=8192, max_num_seqs=256)
    assert uses.meet(shape(8192, 256)) == (False, False)
    assert uses.meet(shape(300, 256)) == (False, False)


def test_a_cold_engine_holds_tokens_back_once() -> None:
    # Twelve prompts, then eleven and a part beside twelve decodes: more rows of the head than any step before had, so
    # the host waits for that step before it hands out the tokens of the first.
    requests = tuple(Request(0.0, 50, 3) for _ in range(30))
    cold = WarmupCosts(largest_graph=64, max_num_batched_tokens=600, max_num_seqs=16)
    engine = Replica(
        timer=steps_of(HostCost(), 1.0),
        policy=FcfsPolicy(max_num_batched_tokens=600, max_num_seqs=32),
        num_blocks=200,
        first_uses=cold,
    )
    cold_run, warm_run = (np.sort(simulate(engine, Workload(requests)).first_token) for _ in range(2))
    assert (cold_run[0], warm_run[0]) == (2.0, 1.0)
    assert np.all(cold_run >= warm_run)
