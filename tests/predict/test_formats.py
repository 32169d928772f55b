"""Products in formats that a chip lacks, and kernels that widen weights."""

import pytest

from infercast.hardware import load_gpu
from infercast.ops import Collective, Gemm, MoE
from infercast.predict.families.collective import COLLECTIVE
from infercast.predict.families.gemm import as_run, is_widened, multiplying
from infercast.predict.families.moe import expert_kernel
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import make_predictor

EXPERTS = MoE(64, 2048, 768, 128, 8, dtype="bf16", weight_dtype="int4")


def test_a_chip_without_a_format_keeps_activations_wide():
    product = Gemm(8, 4096, 4096, "nvfp4")
    on_ada = as_run(product, load_gpu("rtx-4090"))
    assert (on_ada.dtype, on_ada.weight_dtype) == ("bf16", "nvfp4")
    assert as_run(product, load_gpu("b200-sxm")) is product
    plain = Gemm(8, 4096, 4096)
    assert as_run(plain, load_gpu("v100-sxm")) is plain


def test_such_products_cost_what_weights_of_that_size_cost():
    estimate, gpu = make_predictor().estimate, load_gpu("a100-sxm")
    fp8 = estimate(Gemm(8, 8192, 8192, "fp8"), gpu)
    assert fp8.seconds == pytest.approx(estimate(Gemm(8, 8192, 8192, "bf16", "fp8"), gpu).seconds)
    assert fp8.seconds < 0.75 * estimate(Gemm(8, 8192, 8192), gpu).seconds


def test_widening_kernels_lose_nothing_by_a_rate_that_was_cut():
    assert is_widened(EXPERTS)
    assert not is_widened(MoE(64, 2048, 768, 128, 8))
    geforce, whole = load_gpu("rtx-4090"), load_gpu("l40s")
    assert multiplying(EXPERTS, geforce) == pytest.approx(2 * geforce.dense_flops("bf16"), rel=0.01)
    assert multiplying(EXPERTS, whole) == whole.dense_flops("bf16")
    assert multiplying(MoE(64, 2048, 768, 128, 8), geforce) == geforce.dense_flops("bf16")


@pytest.mark.parametrize(
    ("gpu", "stored", "kernel"),
    [
        ("a100-sxm", "mxfp4", "marlin"),
        ("a100-sxm", "fp8", "marlin"),
        ("h200-sxm", "nvfp4", "marlin"),
        ("h200-sxm", "mxfp4", "triton"),
        ("b300-sxm", "bf16", "trtllm"),
        ("rtx-5090", "mxfp4", "marlin"),
        ("rtx-5090", "nvfp4", "cutlass"),
        ("v100-sxm", "int4", "triton"),
    ],
)
def test_whose_kernel_multiplies_experts(gpu, stored, kernel):
    op = MoE(64, 2048, 768, 128, 8, dtype="bf16", weight_dtype=stored)
    assert expert_kernel(op, load_gpu(gpu), kernel_profile()) == kernel


def test_marlin_is_one_kernel_whatever_the_format():
    """Its rows of ten layouts as int4 stand for every format, and come from the engine that has them."""
    predictor = make_predictor()
    for gpu in ("a100-sxm", "l40s", "rtx-5090"):
        for stored in ("int4", "mxfp4"):
            choice = predictor.choose(MoE(64, 2880, 2880, 32, 4, dtype="bf16", weight_dtype=stored), load_gpu(gpu))
            assert (choice.entry.variant, choice.entry.engine) == ("int4/marlin", "sglang")


def test_an_engine_leaves_all_reduces_over_pcie_to_the_library():
    profile, boards = kernel_profile(), load_gpu("l40s")
    assert COLLECTIVE.variants(Collective("all_reduce", 1 << 20, 4), boards, profile) == ("NCCL",)
    assert COLLECTIVE.variants(Collective("all_reduce", 1 << 20, 2), boards, profile)[0] == "vLLM_custom_graph"


@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "rtx-pro-6000", "gb10", "h200-sxm"])
@pytest.mark.parametrize("rows", [1, 16, 256])
def test_scales_by_blocks_cost_a_product_of_few_rows_little(gpu: str, rows: int) -> None:
    """Weights are most of what it reads, and they are the same bytes."""
    device, predictor = load_gpu(gpu), make_predictor()
    block, row = (predictor.estimate(Gemm(rows, 7168, 4096, dtype), device) for dtype in ("fp8_block", "fp8"))
    assert block.seconds < 2.0 * row.seconds
    assert 7168 * 4096 / device.dram_bandwidth <= block.seconds
