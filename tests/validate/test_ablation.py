"""Parts of a forecast that are turned off, one at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.engines.sglang.settings import SglangSettings
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import UnknownNameError
from infercast.forecast.deploy import deploy
from infercast.lab.validate.compare import PARTS, deployment_without, served_alone, settings_without, validate
from infercast.lab.validate.measured import read_measured
from infercast.ops import Collective
from infercast.serve import Replica, Request, Workload, simulate
from infercast.serve.scheduler.base import FcfsPolicy
from infercast.serve.step import constant_timer


def test_each_part_changes_what_it_should(document: Any, write: Any) -> None:
    path: Path = write(document)
    found = {part: validate([read_measured(path)], without=part).runs for part in (None, *PARTS)}
    batch = {part: runs[0] for part, runs in found.items()}
    assert batch["host"].ttft_p50.predicted < batch[None].ttft_p50.predicted
    assert batch["scheduler"].ttft_p50.predicted < batch[None].ttft_p50.predicted, "four prompts do not wait"
    assert batch["overlap"].tpot_p50.predicted > batch[None].tpot_p50.predicted  # type: ignore[union-attr]
    assert batch["communication"].ttft_p50.predicted == batch[None].ttft_p50.predicted, "there is one GPU"
    assert {part for part, run in batch.items() if run.ttft_p50.interval is None} == {*PARTS}


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="part to leave out 'hosts'"):
        validate([], without="hosts")


def test_collectives_take_no_time() -> None:
    deployment = deploy("qwen3-8b", "h200-sxm", tensor_parallel_size=2, predictor="roofline")
    free = deployment_without("communication", deployment)
    op = Collective("all_reduce", np.array([1e6]), gpus=2)
    assert np.all(deployment.predictor.seconds(op, deployment.gpu) > 0)
    assert np.all(free.predictor.seconds(op, free.gpu) == 0)
    assert np.all(free.predictor.estimate(op, free.gpu).seconds == 0)


@pytest.mark.parametrize("asked", [EngineSettings(), SglangSettings()])
def test_each_engine_has_a_switch_for_overlap(asked: Any) -> None:
    plain = settings_without("overlap", asked)
    steps = (deploy("qwen3-0.6b", "h200-sxm", each, predictor="roofline").replica() for each in (asked, plain))
    assert [each.steps_under_way for each in steps] == [2, 1]
    assert settings_without("host", asked) == asked


def test_requests_alone_are_put_back_to_when_they_were_sent() -> None:
    policy = FcfsPolicy(max_num_batched_tokens=512, max_num_seqs=8)

    def replica() -> Replica:
        return Replica(timer=constant_timer(0.01), policy=policy, num_blocks=1000)

    requests = tuple(Request(0.001 * place, 100, 5) for place in range(6))
    alone = served_alone(replica(), Workload(requests))
    one = simulate(replica(), Workload(requests[:1]))
    np.testing.assert_allclose(alone.sent_at, [each.arrival for each in requests], atol=1e-9)
    np.testing.assert_allclose(alone.ttft, one.ttft[0], atol=1e-9)
    clients = served_alone(replica(), Workload(requests, concurrency=2))
    whole = float(one.last_token[0] - one.sent_at[0])
    np.testing.assert_allclose(clients.sent_at, np.repeat([0.0, whole, 2 * whole], 2), atol=1e-9)
