"""What estimates on a GPU rest on."""

import pytest

from infercast.hardware import load_gpu
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import KnownKernel, default_artifact, in_short, known_kernels


def known(name: str) -> dict[str, KnownKernel]:
    found = known_kernels(load_gpu(name), default_artifact(), kernel_profile())
    return {each.kind: each for each in found}


def test_a_measured_gpu_rests_on_its_own_rows_and_says_nothing_more() -> None:
    found = known("h200-sxm")
    assert {each.status for each in found.values()} == {"measured"}
    assert found["decoding, bf16 cache"].chips == ("h200-sxm",)
    assert in_short(list(found.values())) == ""


def test_a_gpu_that_nobody_measured_has_larger_errors_and_names_the_chips() -> None:
    own, other = known("b200-sxm")["products, bf16"], known("gb200-nvl72")["products, bf16"]
    assert other.words == "known kernel"
    assert "b200-sxm" in other.chips
    assert other.error > own.error
    assert "known kernel" in in_short(list(known("gb200-nvl72").values()))


def test_formats_that_a_chip_lacks_are_not_listed() -> None:
    assert not any("fp8" in kind for kind in known("a100-sxm"))


@pytest.mark.parametrize(("name", "words"), [("mi300x", "published"), ("mi355x", "published"), ("r9700", "bound")])
def test_other_vendors_are_known_from_what_was_published_or_not_at_all(name: str, words: str) -> None:
    assert {each.words for each in known(name).values()} == {words}


def test_published_kernels_are_named_and_as_good_as_their_intervals() -> None:
    kernels = known("mi300x")
    assert kernels["products, bf16"].kernel == "hipblaslt"
    assert kernels["products, fp8_block"].error < kernels["decoding, bf16 cache"].error < 0.4
