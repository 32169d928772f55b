"""Which measured kernels stand for those of a GPU that was not measured."""

from pathlib import Path

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.predict.families.family import stated_interval
from infercast.predict.fitted import Artifact
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned


def test_rtx_blackwell_borrows_large_kernels_from_all_and_small_ones_from_ada():
    profile = kernel_profile()
    for family, variant in (("gemm", "fp8"), ("attention_decode", "fa2"), ("moe", "int4/marlin")):
        assert profile.stands_alone("blackwell-rtx", family, variant)
    assert not profile.stands_alone("blackwell-rtx", "scan", "gdn/triton")
    assert profile.generations["blackwell-rtx"] == ("ada",)


def test_constants_of_an_architecture_stand_for_its_kernels_where_no_chip_of_it_was_measured():
    nothing = Artifact(Path("none"), {}, {}, {})
    predictor = Learned(nothing, kernel_profile(), tier="unseen", as_tabled=True)
    product = Gemm(64, 4096, 4096, "nvfp4")
    ultra, rtx = (predictor.estimate(product, load_gpu(name)) for name in ("b300-sxm", "rtx-5090"))
    low, high = stated_interval("gemm", "nvfp4", "blackwell")
    assert (ultra.source, rtx.source) == ("unseen", "physics")
    assert ultra.low / ultra.seconds == pytest.approx(np.exp(low))
    assert ultra.high / ultra.seconds == pytest.approx(np.exp(high))


def test_the_datacentre_generations_stand_together():
    profile = kernel_profile()
    ultra = load_gpu("b300-sxm")
    assert not profile.stands_alone(ultra.kernels, "gemm", "bf16")
    assert profile.generations[ultra.kernels] == ("blackwell",)


def test_preferring_an_engine_changes_the_order_of_tables_only():
    profile = kernel_profile()
    preferring = profile.preferring("vllm")
    assert preferring.tables["gemm"] == ("vllm", "sweep", "sglang")
    assert (preferring.generations, preferring.exceptions) == (profile.generations, profile.exceptions)
