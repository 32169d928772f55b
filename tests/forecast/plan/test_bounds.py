"""Bounds are optimistic: nothing that they rule out would have won."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from infercast.errors import InfercastError
from infercast.forecast.plan.evaluate import evaluate
from infercast.forecast.plan.question import Question, deployed, own_timer
from infercast.forecast.plan.screening import bounds_of, least_replicas, most_headroom, stems_of

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "qwen3-0.6b", "gpt-oss-20b")


@pytest.mark.parametrize("model", MODELS)
def test_no_step_is_faster_than_its_bound(ask: Callable[..., Question], model: str) -> None:
    question = ask(model, gpus=("l40s", "h100-sxm"), max_gpus=2, max_model_len=4096)
    seen = 0
    for unit in question.units():
        try:
            timer = own_timer(question.shared, unit)
        except InfercastError:
            continue
        bounds, seen = bounds_of(question, unit), seen + 1
        step = timer.decode(1, 512, lambda: [512], 1).gpu_seconds[0]
        tokens = min(4096, deployed(question.shared, unit).settings.max_num_batched_tokens)
        prompt = timer.compute([(tokens, 0)], 1, 0, 0, list).gpu_seconds[0] / unit.layout.pipeline
        assert step > bounds.step > 0
        assert prompt > tokens * bounds.token > 0
    assert seen


@pytest.mark.parametrize("slo", ["tpot_p95<12ms", "ttft_p50<25ms,tpot_p50<30ms", "e2e_mean<900ms"])
def test_no_candidate_that_bounds_rule_out_keeps_the_slo(ask: Callable[..., Question], slo: str) -> None:
    question = ask(gpus=("a10", "l40s", "h100-sxm"), slo=slo, max_gpus=2)
    stems, ruled_out = stems_of(question)
    assert ruled_out or stems
    for row in ruled_out:
        for count in range(1, question.max_gpus // row.candidate.layout.gpus + 1):
            assert not evaluate(row.candidate.times(count), question).holds
    # The other way round: what keeps it has a bound that allows it.
    for stem in stems:
        unit = stem.units[0]
        row = evaluate(unit, question)
        if row.figures is not None:
            bounds = bounds_of(question, unit)
            assert most_headroom(question, bounds)[0] > row.figures.headroom


def test_fewer_replicas_than_the_bound_cannot_keep_up(ask: Callable[..., Question]) -> None:
    question = ask(gpus=("l40s",), rate=400.0, count=300, max_gpus=16)
    unit = next(iter(question.units()))
    least = least_replicas(question, bounds_of(question, unit))
    assert least > 1
    assert not evaluate(unit.times(least - 1), question).holds


def test_a_trace_has_no_bound_on_its_rate(ask: Callable[..., Question]) -> None:
    question = ask()
    trace = question.at_rate(1.0).workload
    ended = replace(question, workload=replace(trace, rate=None, drawn=None))
    assert bounds_of(ended, next(iter(ended.units()))).rate == float("inf")
