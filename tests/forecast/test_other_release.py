"""What was not measured is less sure: releases whose costs are another one's, their runners and their kernels."""

from __future__ import annotations

from math import hypot

import pytest

from infercast import deploy
from infercast.engines.base import Deployment
from infercast.forecast.kernels import decode_shape, estimate_step
from infercast.forecast.simulate import simulate_system
from infercast.forecast.system import busiest, system_of
from infercast.forecast.uncertainty import (
    CLOSE_RELEASE,
    EIGHTY,
    HOST_SPREAD,
    NEW_KERNEL_SPREAD,
    NEW_RUNNER_SPREAD,
    OLDER_RELEASE,
    Spread,
    release_spread,
    step_uncertainty,
    uncertainty_of,
)
from infercast.report.caveats import caveats
from infercast.serve.workload.synthetic import synthetic_workload

LOAD = synthetic_workload(rate=8.0, count=20, input_lengths=200, output_lengths=10)
OLD, NEW = "vllm@0.25", "vllm@0.32"


def one(engine: str, model: str = "qwen3-0.6b", gpu: str = "h200-sxm", **options: object) -> Deployment:
    return deploy(model, gpu, engine=engine, predictor="roofline", api_server=False, **options)  # type: ignore[arg-type]


def test_a_release_that_was_not_measured_is_less_sure() -> None:
    assert release_spread(one(OLD).engine) == Spread()
    assert release_spread(one(NEW).engine) == release_spread(one(OLD).engine, (0, 22)) == CLOSE_RELEASE
    assert release_spread(one("vllm@0.11.0").engine) == release_spread(one(OLD).engine, (0, 11)) == OLDER_RELEASE
    assert all(close < older for close, older in zip(CLOSE_RELEASE, OLDER_RELEASE, strict=True))


def host_of(engine: str, model: str) -> float:
    forecast = simulate_system(system_of(one(engine, model)), LOAD)
    return uncertainty_of(forecast.deployment, busiest(forecast.pools[0].records)).host / EIGHTY


def test_so_is_what_a_new_runner_costs_the_host() -> None:
    dense, experts = host_of(NEW, "qwen3-0.6b"), host_of(NEW, "qwen3-30b-a3b")
    assert experts == pytest.approx(hypot(dense, NEW_RUNNER_SPREAD))
    assert host_of(OLD, "qwen3-30b-a3b") == pytest.approx(HOST_SPREAD)


def test_and_what_a_new_kernel_takes() -> None:
    old, new = (
        estimate_step(one(engine, "qwen3-30b-a3b", quantization="int4"), decode_shape(64, 500)) for engine in (OLD, NEW)
    )
    assert not any(kernel.is_new for kernel in old.kernels)
    assert {kernel.family for kernel in new.kernels if kernel.is_new} == {"moe"}
    share = sum(each.seconds for each in new.kernels if each.is_new) / sum(each.seconds for each in new.kernels)
    added = EIGHTY * NEW_KERNEL_SPREAD * share
    assert step_uncertainty(new) == pytest.approx(hypot(step_uncertainty(old), added))


@pytest.mark.parametrize(("gpu", "model", "format", "is_new"), [
    ("h200-sxm", "llama-3.1-8b", "int4", False),  # Machete's
    ("h200-sxm", "llama-3.1-8b", "nvfp4", True),
    ("l40s", "qwen3-30b-a3b", "int4", False),
    ("b300-sxm", "llama-3.3-70b", "fp8", True),  # all-reduces
])  # fmt: skip
def test_which_kernels_are_new(gpu: str, model: str, format: str, is_new: bool) -> None:
    size = 4 if gpu == "b300-sxm" else 1
    deployment = one(NEW, model, gpu, quantization=format, tensor_parallel_size=size)
    step = estimate_step(deployment, decode_shape(16, 200))
    assert any(kernel.is_new for kernel in step.kernels) == is_new


def test_people_are_told() -> None:
    said = {engine: caveats(simulate_system(system_of(one(engine)), LOAD)) for engine in (OLD, NEW)}
    assert any(each.startswith("vllm@0.32 was not measured") for each in said[NEW])
    assert not any("was not measured in full (" in each for each in said[OLD])
