"""A diagnosis ranks kernels by what users would gain, and finds nothing where nothing can be gained."""

from dataclasses import replace

import pytest

import infercast
from infercast.forecast.explain.diagnose import diagnose
from infercast.predict.ceilings import AtCeiling, default_ceilings
from infercast.serve.workload.synthetic import synthetic_workload

WORKLOAD = synthetic_workload(concurrency=8, count=40, input_lengths=600, output_lengths=60)


@pytest.fixture(scope="module")
def diagnosis() -> object:
    return diagnose(infercast.deploy("llama-3.1-8b", "l40s"), WORKLOAD)


def test_findings_are_ranked_and_add_up(diagnosis) -> None:  # type: ignore[no-untyped-def]
    savings = [finding.saving.end_to_end for finding in diagnosis.findings]
    assert savings == sorted(savings, reverse=True)
    assert savings[0] > 0.01
    # In a closed loop without a queue, gaps closed one by one save about as much as all of them at once.
    assert sum(savings) == pytest.approx(diagnosis.everything.end_to_end, rel=0.2)


def test_gaps_lie_between_limit_and_forecast(diagnosis) -> None:  # type: ignore[no-untyped-def]
    for finding in diagnosis.findings:
        for gap in finding.gaps:
            assert 0 < gap.limit <= gap.ceiling <= gap.seconds
            assert 0 < gap.share < 1
            assert 0 <= gap.loss < gap.share


def test_every_kernel_is_judged_or_named(diagnosis) -> None:  # type: ignore[no-untyped-def]
    assert diagnosis.not_judged == ("sampling",)


def test_kernels_at_their_ceilings_have_nothing_to_gain() -> None:
    deployment = infercast.deploy("llama-3.1-8b", "h200-sxm")
    closed = replace(deployment, predictor=AtCeiling(deployment.predictor, default_ceilings()))
    found = diagnose(closed, WORKLOAD)
    assert found.findings == ()
    assert found.everything.end_to_end == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("gpu", "predictor"), [("h200-sxm", "roofline"), ("mi300x", "learned")])
def test_estimates_of_the_roofline_cannot_be_judged(gpu: str, predictor: str) -> None:
    with pytest.raises(infercast.InputError, match="needs learned estimates"):
        diagnose(infercast.deploy("llama-3.1-8b", gpu, predictor=predictor), WORKLOAD)


def test_several_copies_are_refused() -> None:
    deployment = infercast.deploy("llama-3.1-8b", "h200-sxm", data_parallel_size=2, predictor="roofline")
    with pytest.raises(infercast.InputError, match="one copy"):
        diagnose(deployment, WORKLOAD)
