"""Which measured kernels stand for those of a GPU that was not measured."""

from infercast.hardware import load_gpu
from infercast.predict.identity import kernel_profile


def test_rtx_blackwell_borrows_dense_products_from_all_and_attention_from_ada():
    profile = kernel_profile()
    assert profile.stands_alone("blackwell-rtx", "gemm", "bf16")
    assert not profile.stands_alone("blackwell-rtx", "gemm", "fp8")
    assert not profile.stands_alone("blackwell-rtx", "attention_decode", "")
    assert profile.generations["blackwell-rtx"] == ("ada",)


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
