"""Random engines and workloads, small enough that batches, blocks and places run out; a seed gives one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from random import Random
from typing import Any

from infercast.serve.cache.blocks import KvShape, StateRules
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.step import Contexts, GroupShape, HostCost, Prompts, StepEstimate, StepShape
from infercast.serve.timeline import WarmupCosts
from infercast.serve.workload.request import Request, Segment, Workload

Scenario = tuple[Replica, Workload]


def batch_timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    """Dense work by tokens, attention by every context, its place and the longest, and a host that may be slower."""
    assert steps >= 1
    assert steps == 1 or shape.is_decode
    contexts = [computed + new for computed, new in zip(shape.computed, shape.new_tokens, strict=True)]
    batch, total, longest = len(contexts), sum(contexts), max(contexts)
    placed, places = sum([place * each for place, each in enumerate(contexts)]), batch * (batch - 1) // 2
    dense = 0.0071 * shape.num_tokens + 0.0013 * shape.num_sampled
    attention = [
        0.00037 * (total + batch * step) + 0.011 * sqrt(longest + step) + 0.000013 * (placed + places * step)
        for step in range(steps)
    ]
    by_hand = 0.0 if shape.is_decode else 0.031
    host = HostCost(0.0031 + 0.0011 * batch, 0.0077, 0.013 + by_hand, 0.0023 + 0.0029 * batch, 0.041)
    return StepEstimate([dense + each for each in attention], [[dense] * steps, attention], host)


class Groups:
    """The same for who knows decoding sequences by their sums; it answers for at most seven steps in a row."""

    def __call__(self, shape: StepShape, steps: int = 1) -> StepEstimate:
        """By the shape alone."""
        return batch_timer(shape, min(steps, 7))

    def decode(self, count: int, computed: int, contexts: Contexts, steps: int) -> StepEstimate:
        """The sums have to fit the contexts."""
        return self.compute((), 0, count, computed, contexts, steps)

    def compute(
        self, prefills: Prompts, num_first: int, count: int, computed: int, contexts: Contexts, steps: int = 1
    ) -> StepEstimate:
        """With others beside them."""
        each = contexts()
        assert (len(each), sum(each)) == (count, computed)
        return self(GroupShape(count, computed, contexts, prefills, num_first), steps)


def heavy_timer(shape: StepShape, steps: int = 1) -> StepEstimate:
    """Prompts make the GPU's clock go down."""
    estimate = batch_timer(shape, steps)._replace(rows=(0,))
    return estimate if shape.is_decode else estimate._replace(target=0.3, throttled=0.8 * estimate.gpu_seconds[0])


def small(seed: object, **changes: Any) -> Scenario:
    """A few requests, of which every kind of engine has to make its way."""
    rng = Random(f"small {seed}")
    requests = [_request(rng) for _ in range(rng.randint(1, 7))]
    return _scenario(rng, requests, changes)


def crowd(seed: object, **changes: Any) -> Scenario:
    """Many at once, some of which begin alike, so that many give way at once."""
    rng = Random(f"crowd {seed}")
    bursts = [rng.choice([0.0, 0.0, 9 * rng.random()]) for _ in range(rng.randint(1, 5))]
    most_input, most_output = rng.choice([4, 12, 30]), rng.choice([2, 12, 12, 60])
    requests = []
    for _ in range(rng.randint(30, 60)):
        prefix = (Segment(rng.randint(0, 1), rng.choice([5, 8])),) if rng.random() < 0.5 else ()
        own = rng.randint(not prefix, most_input)
        arrival = rng.choice(bursts) + rng.choice([0.0, 0.0, 0.1 * rng.random()])
        num_input = sum([segment.num_tokens for segment in prefix]) + own
        requests.append(Request(arrival, num_input, rng.randint(1, most_output), prefix, rng.choice([None, 3])))
    changes = {"max_num_seqs": rng.choice([4, 16, 40]), "tokens": rng.choice([8, 40, 200]), **changes}
    return _scenario(rng, requests, changes)


def tree(seed: object, **changes: Any) -> Scenario:
    """Prompts that part late from each other, and go on with answers."""
    rng = Random(f"tree {seed}")
    requests: list[Request] = []
    for _ in range(rng.randint(3, 14)):
        asked = [Segment(rng.randint(0, 1), rng.choice([1, 2, 3, 6, 9])) for _ in range(rng.randint(1, 6))]
        if requests and rng.random() < 0.6:
            before = rng.choice(requests)
            kept = before.prefix[: rng.randint(0, len(before.prefix))]
            if before.answer is not None and kept == before.prefix:
                kept = (*kept, Segment(before.answer, rng.choice([before.num_output, rng.randint(1, 9)])))
            asked = [*kept[:9], *asked[: rng.randint(0, 2)]] or asked
        num_input = sum([segment.num_tokens for segment in asked]) + rng.choice([0, 0, rng.randint(0, 7)])
        answer = rng.choice([None, 0, 1, 2])
        requests.append(Request(rng.choice([0.0, 4 * rng.random()]), num_input, rng.randint(1, 15), (*asked,), answer))
    return _scenario(rng, requests, {"prefix_caching": True, **changes})


def pipeline(seed: object, **changes: Any) -> Scenario:
    """Several batches under way, prompts first, or one token of a sequence at a time."""
    rng = Random(f"pipeline {seed}")
    depth = rng.randint(1, 4)
    kind: dict[str, Any] = {
        "waits_for_tokens": (waits := rng.random() < 0.3),
        "prompts_first": rng.random() < 0.25,
        "steps_under_way": depth if waits else rng.choice([depth, depth + 1]),
    }
    if rng.random() < 0.8:
        kind["stages"] = tuple(rng.choice([1.0, 0.7, 1.6]) / depth for _ in range(depth))
        kind["stages_in_turn"] = rng.random() < 0.2
        kind["decode_stride"] = 1 if waits else rng.choice([1, depth])
    make = rng.choice([small, small, tree, crowd])
    return make(rng.random(), **kind, **changes)


def states(seed: object, **changes: Any) -> Scenario:
    """Recurrent layers whose states can be found again: at the end of every block, or of steps that end with one."""
    rng = Random(f"states {seed}")
    size, windows = rng.randint(1, 5), rng.choice([(0, 2), (2, 2, 0), (2, 0, 2), (2, 2, 2, 0)])
    groups = tuple(group for group, window in enumerate(windows) if window)
    is_new = rng.random() < 0.4
    kind: dict[str, Any] = {
        "kv_shape": KvShape(
            size, windows, states=groups, aligned=is_new or rng.random() < 0.6, rules=StateRules(renews=is_new)
        ),
        "prefix_caching": True,
        "chunked_prefill": True,
        "frees_on_completion": is_new,
        "allow_partial_block": is_new,
        "long_prefill_token_threshold": rng.choice([0, 0, size, 3 * size]),
        "tokens": rng.randint(size, 24),
    }
    make = rng.choice([small, tree, tree, crowd])
    return make(rng.random(), **kind, **changes)


def stops(seed: object) -> Scenario:
    """Answers of which the engine learns with their last token that they have ended."""
    rng = Random(f"stops {seed}")
    replica, workload = rng.choice([small, small, crowd, tree, states, pipeline])(rng.random())
    declared = [rng.choice([None, None, each.num_output + rng.randint(0, 9)]) for each in workload.requests]
    requests = tuple(
        replace(each, stops=rng.random() < 0.8, declared=most)
        for each, most in zip(workload.requests, declared, strict=True)
    )
    longer = rng.choice([0, 0, 1, 50])
    return replace(replica, max_model_len=(replica.max_model_len or 0) + longer), replace(workload, requests=requests)


def prefill(seed: object) -> Scenario:
    """Prompts first, with answers that are declared longer than they are, and a cache that overflows now and then."""
    rng = Random(f"prefill {seed}")
    replica, workload = rng.choice([small, crowd, tree])(rng.random())
    declared = [rng.choice([None, None, each.num_output + rng.randint(0, 30)]) for each in workload.requests]
    requests = tuple(replace(each, declared=most) for each, most in zip(workload.requests, declared, strict=True))
    page = rng.choice([1, 1, 2, 4])
    size = rng.choice([None, page * rng.randint(1, 6), page * 8, 1000 // page * page])
    policy = PrefillFirstPolicy(
        max_running_requests=rng.choice([1, 2, 4, 8, 40]),
        chunked_prefill_size=size,
        max_prefill_tokens=rng.choice([16, 64, 16384]),
        mixed_chunk=rng.random() < 0.4 and size is not None and size > 64,
        order=rng.choice(["arrival", "arrival", "longest_match"]),
        first_ratio=rng.choice([0.7, 0.3, 1.0, 0.1]),
        least_ratio=rng.choice([0.05, 0.098]),
        ratio_decay=rng.choice([0.001, 0.01, 0.05]),
        max_reserved_output=rng.choice([4096, 4096, 8]),
        ignores_end=rng.random() < 0.3,
        tries_always=rng.random() < 0.2,
    )
    longest = max([each.num_input + each.num_output for each in requests])
    room = rng.choice([0, rng.randint(0, 8), rng.randint(0, 60), rng.randint(0, 8 * len(requests))])
    pages = -(-(longest + 2 * page + 2) // page) + room
    changes: dict[str, Any] = {"policy": policy, "kv_shape": KvShape(page), "num_blocks": pages}
    return replace(replica, **changes, max_model_len=longest + 2), replace(workload, requests=requests)


def talk(seed: object) -> Scenario:
    """Requests that are turns of conversations, which wait for answers and then for a while."""
    rng = Random(f"talk {seed}")
    replica, workload = rng.choice([small, tree, tree, crowd, states])(rng.random())
    sessions = rng.randint(1, len(workload.requests))
    requests = tuple(
        replace(each, session=rng.choice([None, *range(sessions)]), think=rng.choice([0.0, 0.3, rng.random()]))
        for each in workload.requests
    )
    return replica, replace(workload, requests=requests, in_turns=True)


def _request(rng: Random) -> Request:
    prefix = tuple(Segment(rng.randint(0, 2), rng.randint(1, 9)) for _ in range(rng.randint(0, 3)))
    num_input = sum([segment.num_tokens for segment in prefix]) + rng.randint(not prefix, 12)
    num_output = rng.choice([rng.randint(1, 12), rng.randint(1, 12), rng.randint(30, 80)])
    arrival = rng.choice([0.0, float(rng.randint(0, 8)), 6 * rng.random()])
    return Request(arrival, num_input, num_output, prefix, rng.choice([None, None, 0, 1]))


def _scenario(rng: Random, requests: Sequence[Request], changes: dict[str, Any]) -> Scenario:
    """Requests and an engine for them; ``changes`` are fields of the policy or of the engine."""
    requests = sorted(requests, key=lambda request: request.arrival)
    longest = max([request.num_input + request.num_output for request in requests])
    tokens = changes.pop("tokens", rng.randint(1, 24))
    policy = FcfsPolicy(
        max_num_batched_tokens=tokens,
        max_num_seqs=rng.randint(1, 6),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5]),
        chunked_prefill=rng.random() < 0.75,
        threshold_exempts_single_request=rng.random() < 0.5,
        frees_on_completion=rng.random() < 1 / 3,
    )
    rules = {name: changes.pop(name) for name in FcfsPolicy.__dataclass_fields__ if name in changes}
    policy = replace(policy, **rules)
    if not policy.chunked_prefill:
        policy = replace(policy, max_num_batched_tokens=longest + rng.randint(0, 8))
    windows = rng.choice([(0,), (0,), (0,), (0, 0), (6,), (0, 5), (0, 4, 9), (3, 3, 0), (2, 0, 1)])
    shape = changes.pop("kv_shape", KvShape(rng.randint(1, 5), windows, state_blocks=rng.choice([0, 0, 0, 2])))
    steps_under_way = changes.pop("steps_under_way", rng.randint(1, 2))
    # At least what the longest request needs, seldom enough for all of them.
    held = policy.max_num_batched_tokens * (steps_under_way if policy.frees_on_completion else 1)
    room = rng.choice([0, rng.randint(0, 8), rng.randint(0, 8), rng.randint(0, 8 * len(requests))])
    is_cold, is_heavy = rng.random() < 0.2, rng.random() < 0.2
    replica = Replica(
        timer=heavy_timer if is_heavy else rng.choice([batch_timer, Groups()]),
        policy=policy,
        num_blocks=shape.most_blocks(longest - 1, held) + room,
        kv_shape=shape,
        prefix_caching=rng.random() < 0.7,
        sparse_windows=policy.frees_on_completion,
        steps_under_way=steps_under_way,
        request_path_seconds=rng.choice([0.0, 0.07]),
        request_token_seconds=rng.choice([0.0, 0.003]),
        token_path_seconds=rng.choice([0.0, 0.013]),
        token_turn_seconds=rng.choice([0.0, 0.0017]),
        wake_up_seconds=rng.choice([0.0, 0.019]),
        first_uses=WarmupCosts(4, policy.max_num_batched_tokens, policy.max_num_seqs) if is_cold else None,
        max_model_len=longest,
        settle_seconds=5.0 if is_heavy else 0.0,
        launch_spread=0.3 if is_heavy else 0.0,
    )
    concurrency = rng.choice([None, None, rng.randint(1, 3), len(requests)])
    return replace(replica, **changes), Workload(tuple(requests), concurrency)


KINDS = {
    "small": small, "crowd": crowd, "tree": tree, "pipeline": pipeline, "states": states, "prefill": prefill,
    "stops": stops, "talk": talk,
}  # fmt: skip
