"""Images wait for the encoder's budget and cache, are encoded once, and take their time in the step that needs them."""

import numpy as np
import pytest

from infercast.serve import simulate
from infercast.serve.loop import Replica
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.scheduler.encoder import Encoder, EncoderCache
from infercast.serve.step import constant_timer
from infercast.serve.workload.classes import with_images
from infercast.serve.workload.request import Image, Request, Workload
from infercast.serve.workload.synthetic import extended, redrawn, session_workload, synthetic_workload

IMAGE = Image(102, 100, (1, 20, 20), 160_000)


def showing(arrival, *images, text=50, output=4):
    start, placed = 10, []
    for number, image in enumerate(images):
        placed.append(image._replace(start=start, content=id(images) + number))
        start += image.num_tokens
    return Request(arrival, start + text, output, images=tuple(placed))


def replica(policy, most=200, cost=0.5):
    encoder = Encoder(lambda images: (cost * len(images), 0.0), most)
    return Replica(timer=constant_timer(0.1), policy=policy, num_blocks=1000, encoder=encoder)


def steps_of(replica, workload):
    found = []
    simulate(
        replica, workload, jump=False,
        observe=lambda scheduler, plan: found.append((plan.new_tokens[:], len(scheduler.encoder.planned))),
    )  # fmt: skip
    return found


def test_prompt_stops_before_an_image_beyond_the_budget():
    policy = FcfsPolicy(max_num_batched_tokens=1000, max_num_seqs=8)
    steps = steps_of(replica(policy), Workload((showing(0.0, *[IMAGE] * 5),)))
    # Two images fit the budget of 200; the tokens between them and the next are computed, too.
    assert [step for step in steps if step[1]] == [([214], 2), ([204], 2), ([152], 1)]


def test_others_wait_behind_an_image_that_cannot_be_encoded():
    policy = FcfsPolicy(max_num_batched_tokens=1000, max_num_seqs=8)
    requests = (showing(0.0, IMAGE, IMAGE), showing(0.0, IMAGE), Request(0.0, 30, 4))
    steps = steps_of(replica(policy), Workload(requests))
    # The second request gets the tokens before its image, so the third is not held up.
    assert steps[0] == ([264, 10, 30], 2)
    # Its image waits until the step with the others has ended, one step after it could be planned.
    assert steps[1:3] == [([1], 0), ([152, 1], 1)]


def test_encoding_takes_its_time_and_pixels_come_before():
    policy = FcfsPolicy(max_num_batched_tokens=1000, max_num_seqs=8)
    engine, text = replica(policy), Request(0.0, 264, 4)
    plain, seen = (simulate(engine, Workload((each,))) for each in (text, showing(0.0, IMAGE, IMAGE)))
    assert seen.ttft[0] - plain.ttft[0] == pytest.approx(1.0)
    slow = Replica(
        timer=constant_timer(0.1), policy=policy, num_blocks=1000,
        encoder=engine.encoder._replace(pixel_seconds=1e-6),
    )  # fmt: skip
    assert simulate(slow, Workload((showing(0.0, IMAGE, IMAGE),))).ttft[0] - seen.ttft[0] == pytest.approx(0.32)
    assert simulate(slow, Workload((text,))).ttft[0] == plain.ttft[0]


def test_prefill_first_engines_encode_what_a_chunk_touches():
    policy = PrefillFirstPolicy(max_running_requests=8, chunked_prefill_size=128)
    steps = steps_of(replica(policy, most=10**9), Workload((showing(0.0, IMAGE, IMAGE),)))
    # The second image begins in the first chunk.
    assert [images for _, images in steps if images] == [2]


def test_what_is_encoded_is_kept_until_the_room_is_needed():
    cache = EncoderCache(200)
    first, second, third = (IMAGE._replace(content=number) for number in range(3))
    cache.images = {1: (first,), 2: (first,), 3: (second, third._replace(start=102))}
    cache.begin()
    assert cache.reach(1, 0, 500) == 500
    cache.take(1)
    cache.release(1)
    cache.begin()
    assert cache.reach(2, 0, 500) == 500  # the same image again
    assert not cache._pending
    assert cache.reach(3, 0, 500) == 102  # beside the first in use there is room for one more
    cache.end(2)
    assert cache.reach(3, 0, 500) == 500  # what none needs leaves
    cache.take(3)
    assert [image.content for image in cache.planned] == [1, 2]


def test_mix_is_drawn_and_drawn_again():
    plain = synthetic_workload(rate=5.0, count=400, prefix_length=64, seed=3)
    workload = with_images(plain, [(0.5, IMAGE), (2.0, IMAGE._replace(num_tokens=30))], seed=3)
    counts = [len(request.images) for request in workload.requests]
    assert {*counts} == {2, 3}
    assert np.mean(counts) == pytest.approx(2.5, abs=0.1)
    for before, after in zip(plain.requests, workload.requests, strict=True):
        assert after.num_input == before.num_input + sum(image.num_tokens for image in after.images)
        assert after.images[0].start == 64
    assert redrawn(workload, seed=3, count=400).requests == workload.requests
    longer = extended(with_images(synthetic_workload(rate=5.0), [(1.0, IMAGE)]), 2000, 10**6)
    assert all(len(request.images) == 1 for request in longer.requests)
    assert len({image.content for request in longer.requests for image in request.images}) == 2000


def test_images_of_a_session_are_in_its_history():
    sessions = session_workload(
        rate=2.0, count=60, turns=3, input_lengths=50, turn_lengths=20, output_lengths=10, prefix_length=32
    )
    workload = with_images(sessions, [(1.0, IMAGE)])
    by_session = {}
    for request in workload.requests:
        assert [image.start for image in request.images] == [32]
        assert sum(segment.num_tokens for segment in request.prefix) == request.num_input
        by_session.setdefault(request.session, set()).add(request.images[0].content)
    assert all(len(contents) == 1 for contents in by_session.values())
    steps = []
    engine = replica(FcfsPolicy(max_num_batched_tokens=1000, max_num_seqs=8), cost=0.0)
    simulate(engine, workload, jump=False, observe=lambda scheduler, _: steps.append(len(scheduler.encoder.planned)))
    assert sum(steps) == len(by_session)  # later turns find the image in the prefix cache
