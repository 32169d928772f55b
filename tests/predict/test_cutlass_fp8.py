"""vLLM's fp8 products on Hopper: the kernel follows from the shape."""

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.predict.array_api import Arrays, Plain
from infercast.predict.families.gemm import FEATURES as OTHER_FEATURES
from infercast.predict.families.gemm import FP8_FEATURES as FEATURES
from infercast.predict.families.gemm import (
    GEMM,
    KERNELS,
    SHARES,
    Machine,
    _kernel,
    _kernels,
    fp8_products,
    is_known,
    products_of_sweep,
)

GPU = load_gpu("h200-sxm")
SHAPES = np.array(
    [
        *((1, 4096, 4096), (16, 1280, 4096), (17, 1280, 4096), (64, 1344, 4096), (65, 64, 64), (128, 4096, 8192)),
        *((129, 4096, 8192), (8191, 4096, 8192), (8192, 4096, 6144), (8192, 4096, 6128), (300, 4100, 4096)),
    ],
    dtype=float,
)
EXPECTED = [0, 0, 1, 2, 3, 3, 4, 4, 5, 4, 6]


def test_the_kernel_follows_from_the_shape() -> None:
    assert [_kernel(*shape) for shape in SHAPES.tolist()] == EXPECTED
    assert _kernels(*SHAPES.T).tolist() == EXPECTED


def test_one_product_and_many_cost_the_same() -> None:
    machine = Machine(Gemm(1, 64, 64, "fp8"), GPU)
    (seconds, _), values = fp8_products(*SHAPES.T, machine, Arrays)
    for row, shape in enumerate(SHAPES.tolist()):
        (alone, terms), own = fp8_products(*shape, machine, Plain)
        assert seconds[row] == pytest.approx(alone, rel=1e-12)
        assert [float(np.broadcast_to(value, len(SHAPES))[row]) for value in values] == pytest.approx(own, rel=1e-12)
        assert len(terms) == len(SHARES)


def test_one_tile_too_many_costs_a_round() -> None:
    rows, cols, _, cluster, *_ = KERNELS[4]
    columns = int(GPU.sms / cluster)
    (full, over) = (GEMM.physics(Gemm(int(cluster * rows), int(cols * count), 8192, "fp8"), GPU, swept=True).seconds[0]
                    for count in (columns, columns + 1))  # fmt: skip
    assert over > 1.8 * full - 5e-6


def test_only_on_hopper_and_only_in_fp8() -> None:
    assert is_known(Gemm(1, 64, 64, "fp8"), GPU)
    assert not is_known(Gemm(1, 64, 64, "bf16"), GPU)
    assert not is_known(Gemm(1, 64, 64, "fp8"), load_gpu("b200"))
    assert len(GEMM.physics(Gemm(1, 64, 64, "fp8"), GPU, swept=True).features[0]) == len(FEATURES)
    assert len(GEMM.physics(Gemm(1, 64, 64, "fp8"), load_gpu("b200"), swept=True).features[0]) == len(OTHER_FEATURES)
    assert products_of_sweep(Gemm(1, 64, 64, "fp8"), GPU)[0] is fp8_products


@pytest.mark.parametrize(
    ("shape", "microseconds"),
    [((2, 4864, 5376), 9.1), ((2, 5120, 25600), 34.8), ((5, 3072, 12288), 12.4), ((1, 32256, 4864), 40.3)],
)
def test_a_few_dozen_blocks_draw_less_than_all_of_the_bandwidth(
    shape: tuple[int, int, int], microseconds: float
) -> None:
    """Physics alone, beside rows of our sweep: outputs of 3,072 to 5,120 have fewer blocks than the chip has SMs."""
    assert 1e6 * GEMM.physics(Gemm(*shape, "fp8"), GPU, swept=True).seconds[0] == pytest.approx(microseconds, rel=0.08)
