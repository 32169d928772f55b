"""Another value in a field of a policy or a replica changes a run; fast loops obey it, or leave the run to `Loop`.

A field is drawn with what gives it a meaning. One that is not drawn here fails, so no option is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from infercast.forecast.system import ServingPool, System
from infercast.serve import plain, plain_prefill
from infercast.serve.cache.blocks import KvShape
from infercast.serve.cache.tiers import LinkSpeed, Offload
from infercast.serve.fleet.pool import Pool, same_engines, simulate_fleet
from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy, PrefillRules, Priorities
from infercast.serve.scheduler.encoder import Encoder
from infercast.serve.simulation import simulate
from infercast.serve.speculation import Speculation
from infercast.serve.step import HostCost, StepEstimate, StepShape
from infercast.serve.timeline import WarmupCosts
from infercast.serve.workload.api_server import ServerCosts
from infercast.serve.workload.request import Image, Request, Segment, Workload


class Watcher:
    """Whose runs are those of `Loop`."""

    def step(self, *_: Any) -> None:
        pass

    def stretch(self, *_: Any) -> None:
        pass


def timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    """Longer with tokens and contexts; clocks slow down in steps with prompts."""
    each = [0.01 + 1e-5 * (shape.total_computed + step * shape.num_sequences) for step in range(steps)]
    seconds = [more + 2e-4 * shape.num_tokens for more in each]
    host = HostCost(0.001, 0.002, 0.0005 * shape.num_sequences, 0.003, 0.01)
    if shape.is_decode:
        return StepEstimate(seconds, [each], host, (1,))
    return StepEstimate(seconds, [each], host, (1,), target=0.3, throttled=0.8 * seconds[0])


def slower(shape: StepShape, steps: int = 1) -> StepEstimate:
    estimate = timer(shape, steps)
    return estimate._replace(gpu_seconds=[2 * each for each in estimate.gpu_seconds])


def requests(rate: float = 8.0, count: int = 120, longest: int = 300, **options: Any) -> Workload:
    """Some with priorities and adapters, which mean nothing to an engine without them, and with shared parts."""
    rng, time, found = Random(options.get("seed", 3)), 0.0, list[Request]()
    for at in range(count):
        time += rng.expovariate(rate)
        num_input, num_output = rng.randint(1, longest), rng.randint(2, options.get("answers", 40))
        prefix = (Segment(rng.randint(0, 2), rng.randint(1, num_input)),) if options.get("shares") else ()
        found.append(
            Request(
                time, num_input, num_output, prefix,
                answer=0 if options.get("shares") else None,
                declared=num_output + options["declares"] if "declares" in options else None,
                priority=at % 5,
                adapter=at % 7 if options.get("adapters") else None,
                images=(Image(num_input, num_input, (1, 2, 2), 99, content=at),) if options.get("images") else (),
            )
        )  # fmt: skip
    return Workload(tuple(found))


def numbers(record: Record) -> list[Any]:
    names = ("sent_at", "started_at", "first_token", "last_token", "num_output", "num_cached")
    each = [np.nan_to_num(getattr(record, name), nan=-1.0).tolist() for name in names]
    return [each, [gap.tolist() for gap in record.gaps], record.num_preemptions, record.decoding.seconds]


def alone(replica: Replica, load: Workload, watched: bool) -> list[Any]:
    return numbers(simulate(replica, load, watch=Watcher() if watched else None))


def several(replica: Replica, load: Workload, watched: bool, router: str = "vllm") -> list[Any]:
    pool = Pool(same_engines(replica, 3), router, servers=replica.num_servers)
    return [numbers(each) for each in simulate_fleet(pool, load, [Watcher()] * 3 if watched else ())]


def system(replica: Replica, load: Workload, watched: bool) -> list[Any]:
    deployment: Any = SimpleNamespace(model=SimpleNamespace(pools=False))
    served = System((ServingPool(deployment, Pool((replica,))),)).serve(load, [[Watcher()]] if watched else ())
    return numbers(served.records[0][0])


class Drawn(NamedTuple):
    value: Any
    others: Mapping[str, Any] = MappingProxyType({})  # What the field has a meaning with
    load: Mapping[str, Any] = MappingProxyType({})
    run: Callable[[Replica, Workload, bool], list[Any]] = alone


ALIGNED = KvShape(16, (2, 0), states=(0,), aligned=True)
DRAFTS = Speculation(3, (0.8, 0.6, 0.4), read_ahead=2)
TIGHT = {"num_blocks": 45, "max_num_seqs": 40}
OFFLOAD = Offload(200, 16 * 1024, 1, LinkSpeed(1e9), LinkSpeed(1e9), holders_first=True, empty_step_seconds=1e-3)
TWO = Speculation(2, (0.8, 0.5))
PRIORITIES = {"by_priority": True, "max_num_seqs": 40, "max_num_batched_tokens": 64}
RETRACTING = {"max_running_requests": 40, "first_ratio": 0.1, "least_ratio": 0.0}
CROWD = {"rate": 100.0, "count": 40, "longest": 150}

FIRST_COME: dict[str, Drawn] = {
    "max_num_batched_tokens": Drawn(64),
    "max_num_seqs": Drawn(3),
    "long_prefill_token_threshold": Drawn(20),
    "chunked_prefill": Drawn(False, {"max_num_batched_tokens": 400}, {"rate": 20.0}),
    "max_num_scheduled_tokens": Drawn(64),
    "adaptive_threshold": Drawn(True, {"long_prefill_token_threshold": 20}),
    "prefill_interval": Drawn(3, {"own_interval": True}),
    "prompts_first": Drawn(True),
    "waits_for_tokens": Drawn(True),
    "decode_stride": Drawn(2, {"stages": (0.5, 0.5), "steps_under_way": 2}),
    "threshold_exempts_single_request": Drawn(True, {"long_prefill_token_threshold": 20}, {"rate": 2.0}),
    "frees_on_completion": Drawn(True, {"kv_shape": KvShape(16, (32, 0)), "num_blocks": 70}),
    "allow_partial_block": Drawn(True, {"kv_shape": ALIGNED, "max_num_batched_tokens": 40}, {"shares": True}),
    "skipped_queue_separate": Drawn(True, {"max_adapters": 2, **TIGHT}, {"adapters": True}),
    "last_token_own_step": Drawn(False, {"kv_shape": ALIGNED, "allow_partial_block": True}, {"shares": True}),
    "watermark": Drawn(0.5, TIGHT),
    "reserves_prompts": Drawn(False, {**TIGHT, "max_num_batched_tokens": 64}, {"rate": 40.0}),
    "by_priority": Drawn(True, {"max_num_seqs": 3}, {"rate": 40.0}),
    "order": Drawn(attrgetter("num_input"), {"by_priority": True, "max_num_seqs": 3}, {"rate": 40.0}),
    "steps_over": Drawn(
        True, {**PRIORITIES, "num_blocks": 60, "waits_for_tokens": True}, {"rate": 4.0, "longest": 150, "answers": 200}
    ),
    "goes_on": Drawn(
        True, {**PRIORITIES, "num_blocks": 22, "reserves_prompts": False}, {"longest": 60, "answers": 100}
    ),
    "counts_running": Drawn(True, {"max_adapters": 2}, {"adapters": True, "rate": 40.0}),
    "skips_unreadable": Drawn(
        True,
        {"speculation": DRAFTS, "max_num_batched_tokens": 20, "max_num_seqs": 40},
        {**CROWD, "seed": 9, "answers": 100},
    ),
    "own_interval": Drawn(True, {"prefill_interval": 3}),
}
PREFILL_FIRST: dict[str, Drawn] = {
    "max_running_requests": Drawn(3),
    "chunked_prefill_size": Drawn(64),
    "max_prefill_tokens": Drawn(300, {"chunked_prefill_size": None}, {"rate": 40.0}),
    "mixed_chunk": Drawn(True),
    "order": Drawn("longest_match", {}, {"shares": True, "rate": 40.0}),
    "first_ratio": Drawn(0.1, {"num_blocks": 900, "max_running_requests": 40}, {"rate": 40.0}),
    "least_ratio": Drawn(0.6, {"num_blocks": 900, "max_running_requests": 40}, {"rate": 40.0}),
    "ratio_decay": Drawn(0.05, {"num_blocks": 900, "max_running_requests": 40}, {"rate": 40.0}),
    "max_reserved_output": Drawn(4, {"num_blocks": 900, "max_running_requests": 40}, {"rate": 40.0}),
    "max_prompts": Drawn(1, {}, {"rate": 40.0}),
    "retraction_headroom": Drawn(90, {"num_blocks": 400, **RETRACTING}, {**CROWD, "answers": 200}),
    "tries_always": Drawn(True, {"num_blocks": 900, "max_running_requests": 40}, {"rate": 40.0}),
    "ignores_end": Drawn(
        True, {"num_blocks": 900, "max_running_requests": 40, "prefix_caching": False}, {"rate": 40.0}
    ),
    "rules": Drawn(PrefillRules(skips_ending=True)),
    "priorities": Drawn(Priorities(), {"max_running_requests": 3}, {"rate": 40.0}),
}
CROWDED = {"num_blocks": 700, "max_running_requests": 40}
RULES: dict[str, Drawn] = {
    "evicts_missing": Drawn(True, {"num_blocks": 700}, {"shares": True}),
    "parts_answers": Drawn(
        True,
        {"num_blocks": 400, "max_running_requests": 40},
        {"shares": True, "rate": 20.0, "count": 80, "seed": 596, "longest": 150, "answers": 200},
    ),
    "spares_page": Drawn(
        True,
        {**CROWDED, "kv_shape": KvShape(16), "num_blocks": 30, "ignores_end": True, "prefix_caching": False},
        {"rate": 20.0, "count": 40, "longest": 60, "answers": 100},
    ),
    "skips_ending": Drawn(True),
    "reserves_fixed": Drawn(True, {**CROWDED, "ignores_end": True}, {"rate": 40.0}),
    "refreshes_waiting": Drawn(True, {"num_blocks": 700, "max_running_requests": 3}, {"shares": True, "rate": 40.0}),
    "retries_alone": Drawn(True, {"num_blocks": 500}, {"declares": 50}),
    "clears_ended": Drawn(True, {"max_running_requests": 3}, {"rate": 40.0}),
    "counts_rows": Drawn(True, {"max_running_requests": 3, "chunked_prefill_size": 64}, {"rate": 40.0}),
    "sorts_drafts": Drawn(
        True,
        {"speculation": TWO, "num_blocks": 700, **RETRACTING, "first_ratio": 0.0},
        {"rate": 20.0, "count": 60, "seed": 787, "longest": 60, "answers": 100},
    ),
    "keeps_answers": Drawn(
        True,
        {"speculation": TWO, "num_blocks": 700, "max_running_requests": 4},
        {"shares": True, "rate": 100.0, "count": 80, "seed": 726, "longest": 60, "answers": 100},
    ),
    "copies_paths": Drawn(
        True,
        {"offload": replace(OFFLOAD, num_blocks=600, store_threshold=2), "num_blocks": 1000, "max_running_requests": 3},
        {"shares": True, "count": 80, "seed": 851, "answers": 100},
    ),
    "counts_once": Drawn(
        True,
        {"offload": replace(OFFLOAD, num_blocks=300, store_threshold=2), "num_blocks": 500},
        {"shares": True, "rate": 4.0, "count": 60, "seed": 819, "longest": 60, "answers": 100},
    ),
    "stops_when_spent": Drawn(
        True,
        {"priorities": Priorities(threshold=1), "max_running_requests": 3, "chunked_prefill_size": 64},
        {"rate": 40.0, "count": 60, "seed": 525},
    ),
}
REPLICA: dict[str, Drawn] = {
    "timer": Drawn(slower),
    "policy": Drawn(FcfsPolicy(max_num_batched_tokens=64, max_num_seqs=3)),
    "num_blocks": Drawn(40, {"max_num_seqs": 40}),
    "kv_shape": Drawn(KvShape(64), {"num_blocks": 30}),
    "prefix_caching": Drawn(False, {}, {"shares": True}),
    "sparse_windows": Drawn(True, {"kv_shape": KvShape(16, (32, 0))}, {"shares": True}),
    "retained_every": Drawn(64, {"kv_shape": KvShape(16, (32, 0)), "sparse_windows": True}, {"shares": True}),
    "steps_under_way": Drawn(1),
    "request_path_seconds": Drawn(0.5),
    "request_token_seconds": Drawn(0.01),
    "server": Drawn(ServerCosts(0.01, 0.001, 0.001, 0.001, 0.05)),
    "num_servers": Drawn(3, {"server": ServerCosts(0.05)}),
    "token_path_seconds": Drawn(0.5),
    "token_turn_seconds": Drawn(0.01),
    "wake_up_seconds": Drawn(0.5, {}, {"rate": 1.0}),
    "poll_interval": Drawn(4),
    "first_uses": Drawn(WarmupCosts(4, 256, 12)),
    "max_model_len": Drawn(336, {}, {"declares": 300, "count": 60, "seed": 468}),
    "max_output": Drawn(5, run=system),
    "stages": Drawn((0.5, 0.5), {"waits_for_tokens": True}),
    "launch_spread": Drawn(0.5, {}, {"longest": 60}),
    "settle_seconds": Drawn(2.0),
    "stages_in_turn": Drawn(True, {"stages": (0.5, 0.5), "waits_for_tokens": True}),
    "max_adapters": Drawn(2, {"max_adapters": 7}, {"adapters": True}),
    "speculation": Drawn(TWO),
    "offload": Drawn(OFFLOAD, {"num_blocks": 40}, {"shares": True, "rate": 100.0, "count": 80, "longest": 150}),
    "tells_load": Drawn(True, run=several),
    "encoder": Drawn(Encoder(lambda images: (0.01 * len(images), 0.001), 400, 1e-4), {}, {"images": True}),
}
UNSEEN = {"retries_alone": "pages have to be held while nothing runs, which no drawn run has come to"}
"""Fields whose other value changes no run that is known here, and why."""
CASES = [
    *((FcfsPolicy, name, drawn) for name, drawn in FIRST_COME.items()),
    *((PrefillFirstPolicy, name, drawn) for name, drawn in PREFILL_FIRST.items()),
    *((PrefillRules, name, drawn) for name, drawn in RULES.items()),
    *((Replica, name, drawn) for name, drawn in REPLICA.items()),
]


def names_of(kind: Any) -> set[str]:
    return {*kind._fields} if hasattr(kind, "_fields") else {each.name for each in fields(kind)}


@pytest.mark.parametrize(
    ("kind", "drawn"),
    [(FcfsPolicy, FIRST_COME), (PrefillFirstPolicy, PREFILL_FIRST), (PrefillRules, RULES), (Replica, REPLICA)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_every_field_is_drawn(kind: Any, drawn: dict[str, Drawn]) -> None:
    assert {*drawn} == names_of(kind)


@pytest.mark.parametrize("obeyed", [plain.OBEYED_HERE, plain_prefill.OBEYED_HERE])
def test_a_fast_loop_obeys_what_there_is(obeyed: frozenset[str]) -> None:
    assert obeyed <= set[str]().union(*map(names_of, (FcfsPolicy, PrefillFirstPolicy, PrefillRules, Replica)))


def made(kind: Any, changes: Mapping[str, Any]) -> Replica:
    """An engine with these fields, of which some are its policy's, and some the policy's rules'."""
    of_policy = PrefillFirstPolicy if kind in (PrefillFirstPolicy, PrefillRules) else FcfsPolicy
    limits: dict[str, Any] = {"max_num_batched_tokens": 256, "max_num_seqs": 12}
    size, num_blocks = 16, 400
    if of_policy is PrefillFirstPolicy:
        limits, size, num_blocks = {"max_running_requests": 12, "chunked_prefill_size": 256}, 1, 6400
        if rules := {name: changes[name] for name in PrefillRules._fields if name in changes}:
            limits["rules"] = PrefillRules(**rules)
    others: dict[str, Any] = {"num_blocks": num_blocks, "kv_shape": KvShape(size), "launch_spread": 0.1}
    limits |= {name: changes[name] for name in names_of(of_policy) if name in changes}
    others |= {name: changes[name] for name in names_of(Replica) - {"policy"} if name in changes}
    policy = changes.get("policy", of_policy(**limits))
    return Replica(timer=others.pop("timer", timer), policy=policy, **others)


def fresh(replica: Replica) -> Replica:
    return replica if replica.first_uses is None else replace(replica, first_uses=replica.first_uses.copy())


@pytest.mark.parametrize(("kind", "name", "drawn"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_another_value_changes_a_run_in_every_loop(kind: Any, name: str, drawn: Drawn) -> None:
    load = requests(**drawn.load)
    usual, other = made(kind, drawn.others), made(kind, {**drawn.others, name: drawn.value})
    slowly = drawn.run(fresh(other), load, True)
    assert drawn.run(fresh(other), load, False) == slowly, "a fast loop does not obey it"
    if name not in UNSEEN:
        assert drawn.run(fresh(usual), load, True) != slowly, "the value that is drawn changes nothing"
