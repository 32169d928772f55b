"""The bundled GPU files: complete, sane, and consistent with their architecture."""

import math
import re
import tomllib
from importlib.resources import files
from itertools import pairwise

import pytest

from infercast.hardware import Gpu, gpu_from_driver_name, gpu_names, load_gpu

EXPECTED = """
    p100 v100-sxm v100-sxm-16gb v100-pcie t4 a10 a10g a30 a40 a100-sxm a100-sxm-40gb a100-pcie-40gb a100-pcie-80gb
    rtx-a6000 rtx-3090 l4 l20 l40 l40s rtx-4090 rtx-6000-ada rtx-5090 rtx-pro-6000 h20 h800-sxm h100-pcie h100-sxm
    h100-nvl h200-sxm h200-nvl gh200 gh200-96gb b200-sxm gb200 b300-sxm gb300 mi300x mi325x mi355x
    rtx-5060-ti rtx-5060-ti-8gb rtx-5070 rtx-5070-ti rtx-5080 rtx-5000-ada rtx-pro-4500 r9700 gb10 mi350x arc-pro-b60
    rubin-announced rtx-4060 rtx-4060-ti rtx-4060-ti-8gb rtx-4070 rtx-4070-super rtx-4070-ti rtx-4070-ti-super
    rtx-pro-5000 rtx-pro-5000-72gb jetson-agx-orin jetson-thor gaudi-3 trainium2 tpu-v6e mi308x
"""

# Products whose tensor cores run below their architecture's rate a clock: formats (none: all) and the share left.
CUT_DOWN = {
    "a10g": ((), 0.5),  # the AWS variant of the A10
    "l20": ((), 0.5),
    "l40": ((), 0.5),
    "h20": ((), 0.25),  # export variant
    "rtx-3090": (("tf32", "bf16", "fp16"), 0.5),  # GeForce: fp32 accumulation at half rate
    "rtx-4090": (("tf32", "bf16", "fp16", "fp8"), 0.5),
    **dict.fromkeys(
        (
            "rtx-4060",
            "rtx-4060-ti",
            "rtx-4060-ti-8gb",
            "rtx-4070",
            "rtx-4070-super",
            "rtx-4070-ti",
            "rtx-4070-ti-super",
        ),
        (("tf32", "bf16", "fp16", "fp8"), 0.5),
    ),
    **dict.fromkeys(
        ("rtx-5060-ti", "rtx-5060-ti-8gb", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-5090"),
        (("tf32", "bf16", "fp16", "fp8"), 0.5),
    ),
}
# Rates that NVIDIA rounds coarsely for systems of many GPUs: int8 is what Blackwell Ultra gave up.
COARSE = {("b300-sxm", "int8"): 0.10, ("gb300", "int8"): 0.10}

ACCELERATORS = ("gaudi3", "trainium2", "tpu-v6e")  # No GPUs: a core of theirs stands for a multiprocessor
ARCHITECTURES = tomllib.loads((files("infercast") / "data" / "architectures.toml").read_text("utf-8"))
all_gpus = pytest.mark.parametrize("gpu", [load_gpu(name) for name in gpu_names()], ids=lambda gpu: gpu.name)


def test_every_expected_gpu_is_there() -> None:
    assert not set(EXPECTED.split()) - set(gpu_names())
    assert list(gpu_names()) == sorted(gpu_names())


@all_gpus
def test_sizes_and_rates_are_sane(gpu: Gpu) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", gpu.name)
    assert gpu.vendor in gpu.title
    assert gpu.sources
    is_gpu, on_board = gpu.architecture not in ACCELERATORS, gpu.name.startswith("jetson")
    assert (16 if on_board else 20) <= gpu.sms <= 320 or not is_gpu
    assert 1.0e9 <= gpu.sustained_clock * 1.2 <= gpu.boost_clock * 1.2 <= 3.6e9
    assert 0.90 <= gpu.driver_bytes / gpu.dram_bytes <= 1.0
    assert 8 * 2**30 <= gpu.dram_bytes <= 300 * 2**30
    assert 0.2e12 <= gpu.dram_bandwidth <= (25e12 if gpu.announced else 8.2e12)
    assert gpu.dram_bandwidth < gpu.l2_bandwidth < (60e12 if gpu.announced else 30e12)
    assert 4 * 2**20 <= gpu.l2_bytes <= 256 * 2**20
    links = gpu.pcie_bandwidth + gpu.nvlink_bandwidth
    assert 15e9 < gpu.pcie_bandwidth <= links < (2.8e12 if gpu.announced else 1.4e12)
    assert (60 if on_board else 70) <= gpu.tdp <= (2300 if gpu.announced else 1400)
    assert gpu.tensor_flops["fp32"] == gpu.fma_flops
    assert all(math.isfinite(rate) and rate > 0 for rate in gpu.tensor_flops.values())


@all_gpus
def test_narrower_formats_are_not_slower(gpu: Gpu) -> None:
    order = ("fp32", "tf32", "fp16", "fp8", "fp4")
    rates = [gpu.tensor_flops[dtype] for dtype in order if gpu.supports(dtype)]
    assert all(narrow > 0.99 * wide for wide, narrow in pairwise(rates))
    assert gpu.tensor_flops.get("bf16", gpu.tensor_flops["fp16"]) == gpu.tensor_flops["fp16"]


@all_gpus
def test_datasheet_agrees_with_architecture_and_clock(gpu: Gpu) -> None:
    per_clock = ARCHITECTURES[gpu.architecture]["tensor_flops_per_sm_clock"]
    formats, share = CUT_DOWN.get(gpu.name, (("none",), 1.0))
    assert set(gpu.tensor_flops) == {"fp32", *per_clock}
    for dtype, rate in per_clock.items():
        expected = rate * gpu.sms * gpu.boost_clock * (share if not formats or dtype in formats else 1.0)
        assert gpu.tensor_flops[dtype] == pytest.approx(expected, rel=COARSE.get((gpu.name, dtype), 0.03)), dtype


@pytest.mark.parametrize("twin", ["h200-sxm", "h800-sxm", "gh200", "gh200-96gb"])
def test_one_die_has_one_set_of_on_chip_rates(twin: str) -> None:
    first, second = load_gpu("h100-sxm"), load_gpu(twin)
    for field in (
        "sms", "boost_clock", "sustained_clock", "tensor_flops", "fma_flops", "special_rate", "l2_bandwidth",
        "shared_memory_per_sm", "registers_per_sm", "compute_capability",
    ):  # fmt: skip
        assert getattr(first, field) == getattr(second, field), field


def test_published_rates() -> None:
    """Figures that vendors print and that here follow from the architecture."""
    assert load_gpu("a100-sxm").l2_bandwidth == pytest.approx(5120 * 1.41e9)
    assert load_gpu("v100-sxm").fma_flops == pytest.approx(15.7e12, rel=0.01)
    assert load_gpu("mi300x").fma_flops == pytest.approx(163.4e12, rel=0.01)
    assert load_gpu("mi300x").l2_bandwidth == pytest.approx(17.2e12, rel=0.01)
    assert load_gpu("gb200").special_rate == pytest.approx(5e12, rel=0.05)
    assert load_gpu("gb300").special_rate == pytest.approx(10.7e12, rel=0.10)
    assert load_gpu("h20").dense_flops("bf16") == 148e12
    assert load_gpu("h200-sxm").driver_bytes == 143155 * 2**20


def test_announced_figures_say_so_by_name_title_and_note() -> None:
    rubin = load_gpu("rubin")
    assert rubin.name.endswith("announced")
    assert "announced" in rubin.title
    assert "announced" in rubin.announced_notes[0]
    assert not load_gpu("h200-sxm").announced_notes


def test_names_and_aliases_are_unique() -> None:
    aliases = [
        alias.lower().replace("_", "-").replace(" ", "-") for name in gpu_names() for alias in load_gpu(name).aliases
    ]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(gpu_names())


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti"),
        ("NVIDIA GB10", "gb10"),
    ],
)
def test_driver_names(driver_name: str, name: str) -> None:
    assert gpu_from_driver_name(driver_name).name == name
