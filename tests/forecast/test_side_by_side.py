"""Two engines side by side: their steps, one step in both, and why they differ."""

from __future__ import annotations

from functools import partial

import pytest

from infercast import deploy
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.compare import SideBySide, reasons, side_by_side
from infercast.forecast.deploy import deploy_changed, for_engine, parse_changes
from infercast.forecast.explain.step_log import Watched, watch_run
from infercast.forecast.system import system_of
from infercast.serve.workload.synthetic import synthetic_workload

LOAD = synthetic_workload(rate=30.0, count=60, input_lengths=900, output_lengths=40)


def run(engine: str, model: str = "llama-3.1-8b") -> Watched:
    return watch_run(system_of(deploy(model, "h200-sxm", engine=engine)), LOAD)


@pytest.fixture(scope="module")
def both() -> SideBySide:
    return side_by_side((run("vllm@0.25"), run("sglang")), ("vllm", "sglang"))


def test_steps_of_all_kinds_are_counted(both: SideBySide) -> None:
    for side in both.sides:
        assert sum(kind.share for kind in side.kinds) == pytest.approx(1.0)
        computed = sum(kind.steps * kind.prompt_tokens for kind in side.kinds)
        assert computed == pytest.approx(60 * 900)
        assert 0.5 < sum(kind.of_gaps for kind in side.kinds) < 1.0 + 1e-9


def test_one_engine_mixes_prompts_and_decoding_and_the_other_does_not(both: SideBySide) -> None:
    first, second = both.sides
    assert first.kind("mixed") is not None
    assert second.kind("mixed") is None
    assert any(each.startswith("sglang stops decoding while prompts are computed: ") for each in reasons(both))


def test_both_are_given_the_same_steps(both: SideBySide) -> None:
    assert len(both.steps) == 2
    for step in both.steps:
        for number, cost in enumerate(step.costs):
            parts = sum(seconds[number] for _, *seconds in step.families)
            assert parts == pytest.approx(cost.seconds)
    decode, prompt = both.steps
    assert decode.shape.is_decode
    assert prompt.title.startswith("one prompt of ")


def test_what_is_alike_is_said_to_be() -> None:
    runs = run("vllm@0.31"), run("vllm@0.33")
    alike, *unsure = reasons(side_by_side(runs, ("a", "b")))
    assert alike == "Steps, kernels and cache of both are alike."
    assert [each.split()[0] for each in unsure] == ["vllm@0.31", "vllm@0.33"]


def test_an_engine_is_a_change() -> None:
    changes = parse_changes("engine=sglang")
    assert changes.is_engine_alone
    assert not parse_changes("engine=sglang,gpu=b200-sxm").is_engine_alone
    asked = partial(deploy, "llama-3.1-8b", "h200-sxm", None, engine="vllm@0.25")
    assert deploy_changed(asked, changes).engine.title == "SGLang"
    assert deploy_changed(asked, parse_changes("engine=vllm")).engine.name == "vllm@0.33"
    with pytest.raises(InputError, match="TGI is not modelled"):
        parse_changes("engine=tgi")
    with pytest.raises(InputError, match="is no setting of SGLang"):
        deploy_changed(asked, parse_changes("engine=sglang,max_num_seqs=8"))


def test_both_run_on_the_same_machine() -> None:
    slow = engine_named("vllm@0.25").default_host().on_cpu("epyc-7502p")
    asked = partial(deploy, "qwen3-0.6b", "h200-sxm", None, engine="vllm@0.25", host="epyc-7502p")
    other = deploy_changed(asked, parse_changes("engine=sglang"))
    assert other.host.title == slow.title
    measured = engine_named("sglang").default_host()
    assert other.host.wake_up == pytest.approx(measured.on_cpu("epyc-7502p").wake_up)
    with pytest.raises(InputError, match="was fitted for another engine"):
        deploy_changed(partial(asked, host=slow), parse_changes("engine=sglang"))


def test_bounds_that_were_given_go_along() -> None:
    vllm = engine_named("vllm@0.25")
    settings, other = for_engine(vllm.settings({"max_num_seqs": 7, "max_model_len": 4096}), vllm, "sglang")
    assert other.title == "SGLang"
    names = dict(zip(vllm.bounds, other.bounds, strict=True))
    assert getattr(settings, names["max_num_seqs"]) == 7
    assert getattr(settings, names["max_model_len"]) == 4096
    assert getattr(settings, names["max_num_batched_tokens"]) is None


def test_prefixes_that_windows_forget_are_named() -> None:
    load = synthetic_workload(concurrency=2, count=8, input_lengths=3000, output_lengths=4, prefix_length=2048)
    runs = [
        watch_run(system_of(deploy("gemma-3-1b", "h200-sxm", engine=engine)), load)
        for engine in ("vllm@0.25", "vllm@0.33")
    ]
    said = reasons(side_by_side((runs[0], runs[1]), ("old", "new")))
    assert any(each.startswith("new finds ") and "of prompt tokens in its cache, old " in each for each in said)
