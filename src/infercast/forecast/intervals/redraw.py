"""Random requests drawn again, as far as an engine takes them."""

from __future__ import annotations

from dataclasses import replace

from infercast.serve import Replica, Workload
from infercast.serve.workload.redraw import redrawn


def redraw(workload: Workload, replica: Replica, *, seed: int, count: int) -> Workload | None:
    """What another seed would have drawn, cut to what the engine takes; None where chance made none of it."""
    other = redrawn(workload, seed=seed, count=count)
    return None if other is None else _shortened(other, longest_taken(workload, replica))


def longest_taken(workload: Workload, replica: Replica) -> int:
    """Tokens of the longest request that the engine is known to take."""
    if replica.max_model_len is not None and replica.policy.chunked_prefill:
        blocks = replica.kv_shape.most_blocks(replica.max_model_len, replica.policy.max_num_batched_tokens)
        if blocks <= replica.num_blocks:
            return replica.max_model_len
    return max(request.num_input + request.num_output for request in workload.requests)


def _shortened(workload: Workload, longest: int) -> Workload:
    requests = tuple(
        request
        if request.num_input + request.num_output <= longest
        else replace(request, num_input=(kept := min(request.num_input, longest - 1)), num_output=longest - kept)
        for request in workload.requests
    )
    return replace(workload, requests=requests)
