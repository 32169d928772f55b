"""Models for GPUs that nobody measured: whose rows they are of, and how far they are believed."""

from pathlib import Path

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.lab.fit.samples import Sample
from infercast.lab.fit.train import GENERATION, Source, fit_pooled, pools_of
from infercast.ops import Gemm
from infercast.predict.fitted import FEATURES, POOLED, Artifact, Entry, silent_forest
from infercast.predict.identity import any_kernel, is_same_kernel, is_written_by_engine, kernel_profile
from infercast.predict.kernels import borrowed
from infercast.predict.learned import Learned

ROWS = 60
COLUMNS = len(FEATURES["attention_decode"])


def sample(residual: float, seed: int = 0) -> Sample:
    random = np.random.default_rng(seed)
    noise = random.normal(size=ROWS) * 0.02
    return Sample(
        random.normal(size=(ROWS, COLUMNS)), residual + noise, np.arange(ROWS) // 3, np.ones(ROWS), np.ones(ROWS)
    )


@pytest.fixture(scope="module")
def pools():
    return pools_of(
        {
            ("attention_decode", "a100-sxm", "vllm", "fa2"): sample(0.1, 1),
            ("attention_decode", "l40s", "vllm", "fa2"): sample(0.2, 2),
            ("attention_decode", "h200-sxm", "vllm", "fa3"): sample(-0.3, 3),
            ("attention_decode", "h200-sxm", "sweep", ""): sample(0.0, 4),
            ("memory_bound", "h200-sxm", "vllm", "quantise"): sample(0.0, 5),
        }
    )


def test_a_kernel_is_pooled_over_the_gpus_that_have_it(pools):
    assert {source.gpu for source in pools["attention_decode", "vllm", "fa2"]} == {"a100-sxm", "l40s"}
    assert {source.gpu for source in pools["attention_decode", "vllm", "fa3"]} == {"h200-sxm"}
    assert len(pools["attention_decode", "vllm", "any"]) == 3


def test_one_gpu_is_no_pool_of_a_sweep_nor_of_families_without_kernels(pools):
    assert len(pools) == 3


def test_a_new_kernel_is_half_believed_faster_and_less_certain(pools):
    known, _ = fit_pooled(("attention_decode", POOLED, "vllm", "fa2"), pools["attention_decode", "vllm", "fa2"])
    new, _ = fit_pooled(("attention_decode", POOLED, "vllm", "any"), pools["attention_decode", "vllm", "any"])
    assert new.shrink == 0.5 < known.shrink
    assert new.high - new.low > known.high - known.low
    assert known.offset == pytest.approx(0.15, abs=0.02)
    assert new.offset == pytest.approx(GENERATION["attention_decode"], abs=0.02)


def test_a_kernel_of_one_gpu_has_an_interval_all_the_same(pools):
    entry, _ = fit_pooled(("attention_decode", POOLED, "vllm", "fa3"), pools["attention_decode", "vllm", "fa3"])
    assert entry.low < -0.05
    assert entry.high > 0.05


def test_siblings_are_left_out_together_and_near_their_own():
    """H100 says of H200 nothing that it would of another architecture; both say much of a third Hopper."""
    key = ("attention_decode", POOLED, "vllm", "fa2")
    a100, h100, h200 = (
        Source(gpu, "fa2", sample(residual, seed))
        for seed, (gpu, residual) in enumerate({"a100-sxm": 0.0, "h100-sxm": 0.3, "h200-sxm": 0.3}.items())
    )
    with_twin, _ = fit_pooled(key, [a100, h100, h200])
    without, _ = fit_pooled(key, [a100, h200])
    assert with_twin.high - with_twin.low == pytest.approx(without.high - without.low, rel=0.1)
    assert set(with_twin.near) == {"ampere", "hopper"}
    near = with_twin.on("hopper")
    assert near.high - near.low < 0.6 * (with_twin.high - with_twin.low)
    assert with_twin.on("volta") == with_twin
    alone, _ = fit_pooled(key, [h100, h200])
    assert alone.high > 0.2, "one architecture says nothing of how others differ"


def test_the_interval_is_that_of_the_architecture_that_is_asked_for():
    entry = Entry("gemm", POOLED, "vllm", "bf16", 9, 0.0, 0.0, -0.4, 0.5, 0.2, {"hopper": (-0.1, 0.2)})
    artifact = Artifact(Path("pooled"), {}, {}, {}).with_models([(entry, silent_forest())])
    predictor = Learned(artifact, kernel_profile().preferring("vllm"), tier="unseen", as_tabled=True)
    found = {gpu: predictor.choose(Gemm(64, 4096, 4096), load_gpu(gpu)) for gpu in ("h100-sxm", "a100-sxm")}
    assert found["h100-sxm"].interval == (-0.1, 0.2)
    assert found["a100-sxm"].interval == (-0.4, 0.5)
    assert found["h100-sxm"].is_near(load_gpu("h100-sxm"))
    assert not found["a100-sxm"].is_near(load_gpu("a100-sxm"))


def test_prompts_of_a_sibling_with_the_same_die_differ_less_than_shapes_do():
    entry = Entry("attention_prefill", "h200-sxm", "vllm", "fa3", 9, 0.0, 1.0, -0.1, 0.1, 0.05)
    forest, h200 = silent_forest(), load_gpu("h200-sxm")
    assert borrowed(load_gpu("h100-sxm"), h200, entry, forest).interval == (-0.1, 0.1)
    assert borrowed(load_gpu("h20"), h200, entry, forest).interval[1] > 0.12
    decode = entry._replace(family="attention_decode")
    assert borrowed(load_gpu("h100-sxm"), h200, decode, forest).interval[1] > 0.12


def test_what_stands_for_a_kernel():
    assert any_kernel("attention_prefill", "trtllm") == "any"
    assert any_kernel("moe", "fp8/trtllm") == "fp8/any"
    assert (
        any_kernel("gemm", "bf16") == any_kernel("collective", "NCCL") == any_kernel("attention_decode", "latent") == ""
    )
    assert is_same_kernel("moe", "bf16/trtllm", "fp8/trtllm")
    assert not is_same_kernel("moe", "bf16/trtllm", "bf16/triton")
    assert is_written_by_engine("moe", "bf16/triton")
    assert not is_written_by_engine("attention_decode", "fa2")


def test_a_chip_of_an_architecture_with_constants_only_adds_to_what_others_say_of_a_kernel() -> None:
    blackwell = {("attention_prefill", "b200-sxm", "vllm", "triton"): sample(0.5, 1)}
    others = {("attention_prefill", "a100-sxm", "vllm", "fa2"): sample(0.1, 2)}
    found = pools_of(blackwell | others)
    assert {source.gpu for sources in found.values() for source in sources} == {"a100-sxm"}
    found = pools_of(blackwell | others | {("attention_prefill", "l40s", "vllm", "triton"): sample(0.3, 3)})
    assert {source.gpu for source in found["attention_prefill", "vllm", "triton"]} == {"b200-sxm", "l40s"}
    assert {source.gpu for source in found["attention_prefill", "vllm", "any"]} == {"a100-sxm", "l40s"}
