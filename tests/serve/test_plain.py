"""A plain run has the same results as one by the scheduler, which every run has that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from infercast.serve import plain, plain_prefill
from infercast.serve.cache.blocks import KvShape
from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.fleet.two_pools import Link, simulate_disaggregated
from infercast.serve.loop import Loop, Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy, PrefillRules
from infercast.serve.simulation import GoOn, clients_of, loop_of, new_record, simulate
from infercast.serve.step import HostCost, StepEstimate, StepShape
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import continued, session_workload, synthetic_workload


class Watcher:
    def step(self, *_: Any) -> None:
        pass

    def stretch(self, *_: Any) -> None:
        pass


def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    """Steps that take longer with tokens and contexts, on a host that is sometimes ahead and sometimes not."""
    each = [0.01 + 1e-5 * (shape.total_computed + step * shape.num_sequences) for step in range(steps)]
    seconds = [more + 2e-4 * shape.num_tokens for more in each]
    return StepEstimate(seconds, [each], HostCost(0.001, 0.002, 0.0005 * shape.num_sequences, 0.003, 0.01), (1,))


def engine(**changes: Any) -> Replica:
    policy = FcfsPolicy(**{"max_num_batched_tokens": 256, "max_num_seqs": 12, **changes.pop("policy", {})})
    others: dict[str, Any] = {"num_blocks": 400, "kv_shape": KvShape(16), "launch_spread": 0.1, **changes}
    return Replica(timer=timer, policy=policy, request_path_seconds=0.002, token_turn_seconds=1e-4, **others)


def prefill_first(**changes: Any) -> Replica:
    """An engine that decodes only if no prompt can start, with pages of one token."""
    policy = PrefillFirstPolicy(
        **{"max_running_requests": 12, "chunked_prefill_size": 256, **changes.pop("policy", {})}
    )
    return replace(engine(), policy=policy, **{"num_blocks": 6400, "kv_shape": KvShape(1), **changes})


def numbers(record: Record) -> list[Any]:
    names = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached")
    phases = [
        (each.steps, each.stretches, each.tokens, each.context, each.seconds, each.varying, each.rows, each.running)
        for each in (record.prefilling, record.decoding)
    ]
    marks = [(time, prompts.seconds, decodes.seconds) for time, prompts, decodes in record.marks]
    gauges = [record.waiting, record.kv_usage, record.num_preemptions, marks]
    return [
        *(np.nan_to_num(getattr(record, name), nan=-1.0).tolist() for name in names),
        *(each.tolist() for each in record.gaps),
        phases,
        gauges,
    ]


def both(replica: Replica, load: Workload, **others: Any) -> tuple[Record, Record]:
    return simulate(replica, load, **others), simulate(replica, load, watch=Watcher(), **others)


LENGTHS = {"input_lengths": "uniform:1:300", "output_lengths": "uniform:1:40"}


@pytest.mark.parametrize("rate", [0.5, 3.0, 8.0, 40.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": {"max_num_batched_tokens": 64, "max_num_seqs": 40}},
        {"policy": {"watermark": 0.1, "reserves_prompts": False}},
        {"num_blocks": 60},
        {"max_model_len": 320},
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_a_plain_run_is_the_run_of_the_scheduler(rate: float, changes: dict[str, Any], stops: bool) -> None:
    load = synthetic_workload(rate=rate, count=80, seed=3, **LENGTHS)
    requests = [replace(each, num_output=min(each.num_output, 320 - each.num_input)) for each in load.requests]
    load = replace(load, requests=tuple(replace(each, stops=stops and each.num_output > 1) for each in requests))
    one, other = both(engine(**changes), load)
    assert numbers(one) == numbers(other)


@pytest.mark.parametrize("concurrency", [None, 1, 5, 30])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"policy": {"max_num_batched_tokens": 64, "max_num_seqs": 4}}, {"num_blocks": 60}]
)
@pytest.mark.parametrize("sessions", [0, 9])
def test_so_is_one_whose_clients_wait(
    concurrency: int | None, stops: bool, changes: dict[str, Any], sessions: int
) -> None:
    load = synthetic_workload(rate=None if concurrency else 6.0, concurrency=concurrency, count=60, seed=5, **LENGTHS)
    requests = [
        replace(
            each,
            stops=stops and each.num_output > 1,
            session=at % sessions if sessions else None,
            think=0.02 * (at % 7),
        )
        for at, each in enumerate(load.requests)
    ]
    load = replace(load, requests=tuple(requests), in_turns=sessions > 0)
    one, other = both(engine(**changes), load)
    assert numbers(one) == numbers(other)


RULES = [{}, {"skips_ending": True}, {"retries_alone": True}, dict.fromkeys(PrefillRules._fields, True)]


@pytest.mark.parametrize("arriving", [{"rate": 0.5}, {"rate": 8.0}, {"rate": 40.0}, {"concurrency": 5}])
@pytest.mark.parametrize("rules", RULES, ids=["", "skips", "retries", "newest"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": {"max_running_requests": 3, "chunked_prefill_size": 64}},
        {"policy": {"chunked_prefill_size": None, "max_prefill_tokens": 300, "max_running_requests": 40}},
        {"policy": {"max_reserved_output": 10, "first_ratio": 1.0, "ignores_end": True}, "num_blocks": 1600},
        {"policy": {"max_prompts": 2, "order": "longest_match"}, "kv_shape": KvShape(16), "num_blocks": 200},
        {"policy": {"max_running_requests": 40}, "num_blocks": 700},
    ],
    ids=["", "few", "whole", "reserved", "pages", "full"],
)
def test_so_is_one_that_computes_prompts_first(
    arriving: dict[str, Any], rules: dict[str, bool], changes: dict[str, Any]
) -> None:
    changes = {**changes, "policy": {**changes.get("policy", {}), "rules": PrefillRules(**rules)}}
    for stops, think in ((0, 0.0), (1, 0.02)):
        load = synthetic_workload(**arriving, count=60, seed=5, **LENGTHS)
        requests = [
            replace(
                each,
                stops=each.num_output % 3 < stops < each.num_output,
                declared=each.num_output + 30 * (at % 2) if at % 5 == 4 and each.num_output > 1 else None,
                session=at % 9 if think else None,
                think=think * (at % 7),
            )
            for at, each in enumerate(load.requests)
        ]
        load = replace(load, requests=tuple(requests), in_turns=think > 0)
        one, other = both(prefill_first(**changes), load)
        assert numbers(one) == numbers(other)


@pytest.mark.parametrize("router", ["least_loaded", "round_robin", "vllm", "prefix_aware"])
@pytest.mark.parametrize("arriving", [{"rate": 15.0}, {"concurrency": 20}])
@pytest.mark.parametrize(
    "each", [engine(num_blocks=400), engine(num_blocks=60), prefill_first(), prefill_first(num_blocks=700)]
)
@pytest.mark.parametrize("lockstep", [False, True])
def test_so_are_those_of_several_engines(router: str, arriving: dict[str, Any], each: Replica, lockstep: bool) -> None:
    load = synthetic_workload(**arriving, count=80, seed=5, **LENGTHS)
    pool = Pool(same_engines(replace(each, tells_load=True), 3), router, lockstep=lockstep)
    one, other = (simulate_fleet(pool, load, watch) for watch in ((), [Watcher()] * 3))
    assert [numbers(each) for each in one] == [numbers(each) for each in other]
    link = Link(1e6, 1e6, 0.01)
    by_watch = [((), ()), ([Watcher()] * 3, [Watcher()] * 3)]
    both = [simulate_disaggregated(pool, pool, link, lambda n: 1e3 * n, load, watch=each) for each in by_watch]
    one, other = ([*each.prefill, *each.decode] for each in both)
    assert [numbers(each) for each in one] == [numbers(each) for each in other]


@pytest.mark.parametrize(
    "each", [engine(num_blocks=400), engine(num_blocks=60), prefill_first(), prefill_first(num_blocks=700)]
)
def test_so_is_one_that_goes_on(each: Replica) -> None:
    first = synthetic_workload(rate=6.0, count=60, **LENGTHS)
    longer = continued(first, 150, 1000)
    assert longer is not None

    def once() -> GoOn:
        following = iter([longer])
        return lambda _: next(following, None)

    one, other = (simulate(each, first, go_on=once(), watch=watch) for watch in (None, Watcher()))
    assert numbers(one) == numbers(other)
    assert not np.isnan(one.last_token).any()


@pytest.mark.parametrize("rate", [1.0, 6.0, 40.0])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"policy": {"max_num_batched_tokens": 64, "max_num_seqs": 40, "watermark": 0.05}}, {"num_blocks": 150}],
)
def test_so_is_one_whose_prompts_share_blocks(rate: float, stops: bool, changes: dict[str, Any]) -> None:
    load = synthetic_workload(rate=rate, count=100, seed=3, prefix_length=70, prefix_groups=4, **LENGTHS)
    requests = [
        replace(each, stops=stops and each.num_output > 1, prefix=each.prefix if at % 5 else ())
        for at, each in enumerate(load.requests)
    ]
    one, other = both(engine(**changes), replace(load, requests=tuple(requests)))
    assert numbers(one) == numbers(other)
    assert one.num_cached.any()


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("num_blocks", [80, 150, 400])
def test_so_is_one_of_sessions(in_turns: bool, num_blocks: int) -> None:
    words = {"turn_lengths": "uniform:5:40", "prefix_length": 50, "prefix_groups": 2, "output_lengths": "uniform:2:60"}
    load = session_workload(rate=5.0, count=120, turns="uniform:2:5", input_lengths="uniform:60:120", seed=1, **words)
    one, other = both(engine(num_blocks=num_blocks), replace(load, in_turns=in_turns))
    assert numbers(one) == numbers(other)


@pytest.mark.parametrize("router", ["vllm", "prefix_aware", "llm_d", "session_affinity"])
@pytest.mark.parametrize("num_blocks", [60, 400])
@pytest.mark.parametrize("in_turns", [False, True])
def test_so_are_sessions_on_several_engines(
    router: str, num_blocks: int, in_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"turn_lengths": "uniform:5:40", "prefix_length": 50, "prefix_groups": 2, "output_lengths": "uniform:2:60"}
    load = session_workload(rate=15.0, count=90, turns="uniform:2:5", input_lengths="uniform:60:120", seed=1, **words)
    pool = Pool(same_engines(engine(num_blocks=num_blocks, tells_load=True), 3), router)
    other = simulate_fleet(pool, replace(load, in_turns=in_turns), [Watcher()] * 3)
    if num_blocks == 400 and in_turns:
        monkeypatch.delattr(Loop, "events")  # which is not needed
    one = simulate_fleet(pool, replace(load, in_turns=in_turns))
    assert [numbers(each) for each in one] == [numbers(each) for each in other]


@pytest.mark.parametrize("seed", range(24))
def test_so_is_one_whose_requests_repeat_each_other(seed: int) -> None:
    random = Random(seed)
    requests, known = list[Request](), [()]
    for at in range(60):
        before = random.choice(known)
        kept = before[: random.randint(0, len(before))]
        prefix = (*kept, *(Segment(random.randint(0, 2), random.randint(1, 50)) for _ in range(random.randint(0, 2))))
        num_input = sum(each.num_tokens for each in prefix) + random.choice([0, 9] if prefix else [9])
        answer, num_output = random.choice([None, 0, 1]), random.randint(2, 60)
        requests.append(Request(0.1 * at * random.random(), num_input, num_output, prefix, answer, session=at % 9))
        known.append((*prefix, *(() if answer is None else (Segment(answer, num_output),))))
    load = Workload(tuple(sorted(requests, key=lambda each: each.arrival)), in_turns=seed % 2 > 0)
    one, other = both(engine(num_blocks=random.choice([80, 150, 1000])), load)
    assert numbers(one) == numbers(other)


@pytest.mark.parametrize(("loop", "make"), [(plain.PlainLoop, engine), (plain_prefill.PlainPrefillLoop, prefill_first)])
def test_most_runs_are_plain_and_those_without_blocks_are_not(
    monkeypatch: pytest.MonkeyPatch, loop: Any, make: Callable[..., Replica]
) -> None:
    ends, events = list[bool](), loop.events

    def noted(loop: Any) -> Iterator[float]:
        ends.append(False)
        yield from events(loop)
        ends[-1] = True

    monkeypatch.setattr(loop, "events", noted)
    load = synthetic_workload(rate=6.0, count=60, **LENGTHS)
    size = make().kv_shape.block_size
    for replica in (make(), make(num_blocks=480 // size), make(steps_under_way=1)):
        simulate(replica, load)
    simulate(make(), synthetic_workload(rate=6.0, count=20, prefix_length=32, **LENGTHS))
    served = [True, False, True] if make is engine else [True, False]
    assert ends == served
    simulate_fleet(Pool(same_engines(make(), 2), lockstep=True), load)
    assert len(ends) == len(served) + 2


@pytest.mark.parametrize(
    "changes", [{"policy": {"mixed_chunk": True}}, {"policy": {"tries_always": True}}, {"prefix_caching": False}]
)
def test_an_engine_with_other_rules_for_prompts_is_not_plain(changes: dict[str, Any]) -> None:
    replica = prefill_first(**changes)
    load = synthetic_workload(rate=6.0, count=60, **LENGTHS)
    loop = loop_of(replica, clients_of(replica, load), new_record(replica, 60), is_plain=True)
    assert isinstance(loop, Loop)
