"""Engines that look for new requests now and then."""

from infercast.serve import PrefillFirstPolicy, Replica
from infercast.serve.loop import AdmissionPoll
from infercast.serve.simulation import simulate
from infercast.serve.step import HostCost
from infercast.serve.workload.request import Request, Workload

from .test_timeline import replica


def first_tokens(every: int, *, jump: bool = True) -> list[float]:
    """When first tokens come of a request that decodes for long, and of one that comes meanwhile."""
    base = replica(HostCost(), 1.0)
    engine = Replica(
        timer=base.timer, policy=PrefillFirstPolicy(max_running_requests=8), num_blocks=10_000,
        prefix_caching=False, steps_under_way=1, poll_interval=every,
    )  # fmt: skip
    record = simulate(engine, Workload((Request(0.0, 4, 60), Request(5.5, 4, 4))), jump=jump)
    return record.first_token.tolist()


def test_a_request_waits_for_the_next_look() -> None:
    first, second = first_tokens(1)
    assert (first, second) == (1.0, 7.0)
    assert first_tokens(10) == [1.0, 12.0]  # one step with a prompt, ten of decoding


def test_stretches_of_decoding_end_where_the_engine_looks() -> None:
    assert first_tokens(10) == first_tokens(10, jump=False)


def test_prompts_and_idling_are_followed_by_a_look() -> None:
    looks = AdmissionPoll(5)
    assert looks.due()
    looks.decoded(4)
    assert not looks.due()
    assert looks.steps_left == 1
    looks.poll_next()
    assert looks.due()
    assert AdmissionPoll().every_step
