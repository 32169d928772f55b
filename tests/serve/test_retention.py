"""What layers with windows keep findable: everything, what is known to be of use, or more at intervals."""

from __future__ import annotations

import pytest

from infercast.serve import FcfsPolicy, Replica, Request, Workload, simulate
from infercast.serve.cache.blocks import KvShape
from infercast.serve.step import constant_timer
from infercast.serve.workload.request import Segment


def cached(*prefixes: int, sparse: bool, every: int = 0) -> list[int]:
    """Tokens that each of some requests finds, which share so many tokens and come one after the other."""
    replica = Replica(
        timer=constant_timer(0.001),
        policy=FcfsPolicy(max_num_batched_tokens=1024, max_num_seqs=8, frees_on_completion=True),
        num_blocks=1000,
        kv_shape=KvShape(4, (0, 8)),
        sparse_windows=sparse,
        retained_every=every,
    )
    requests = [
        Request(float(number), 100, 2, (Segment(0, tokens), Segment(1 + number, 10)))
        for number, tokens in enumerate(prefixes)
    ]
    return simulate(replica, Workload(tuple(requests))).num_cached.tolist()


@pytest.mark.parametrize(
    ("sparse", "every", "found"),
    [
        (False, 0, [0, 52, 52]),
        (True, 0, [0, 0, 52]),  # the second one tells where prompts part
        (True, 16, [0, 48, 52]),
        (True, 8, [0, 52, 52]),  # as long as the window: everything
    ],
)
def test_a_shared_beginning_is_found_from_where_it_was_kept(sparse: bool, every: int, found: list[int]) -> None:
    assert cached(52, 52, 52, sparse=sparse, every=every) == found
