"""A GPU of a known architecture is one file: kernels and runs on it need no line of code."""

import shutil

import pytest

import infercast
from infercast.bundled import DATA
from infercast.hardware import gpu_from_driver_name, gpu_names, load, load_gpu
from infercast.serve.workload.synthetic import synthetic_workload

CHIP = """
title = "NVIDIA H150 SXM"
architecture = "hopper"
aliases = ["NVIDIA H150"]
sms = 120
boost_clock_mhz = 1700
sustained_clock_mhz = 1400
tdp_w = 600
dram_gib = 96
dram_gb_per_s = 3000
l2_mib = 50
nvlink_gb_per_s = 300
pcie_gb_per_s = 63.0
gpus_per_node = 8
"""
OTHER_VENDOR = CHIP.replace("hopper", "rdna4").replace("NVIDIA", "AMD")


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Puts one more file into the folder of bundled GPUs."""
    cached = (load.gpu_names, load._aliases, load._load_bundled)

    def write(text):
        shutil.copytree(DATA / "gpus", tmp_path / "gpus")
        (tmp_path / "gpus/h150.toml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(load, "FOLDER", tmp_path / "gpus")
        for each in cached:
            each.cache_clear()

    yield write
    monkeypatch.undo()
    for each in cached:
        each.cache_clear()


KERNELS = {
    "gemm": {"m": 64, "n": 4096, "k": 4096, "dtype": "fp8"},
    "prefill": {"batch": 1, "q_len": 500, "heads": 32, "kv_heads": 8, "head_dim": 128},
    "decode": {"batch": 8, "kv_len": 500, "heads": 32, "kv_heads": 8, "head_dim": 128},
    "moe": {"tokens": 64, "hidden": 2048, "inter": 768, "experts": 128, "topk": 8},
    "norm": {"rows": 64, "width": 4096},
    "all_reduce": {"bytes": 1 << 20, "gpus": 8},
}


@pytest.mark.parametrize(("text", "sources"), [(CHIP, {"sibling", "unseen"}), (OTHER_VENDOR, {"typical"})])
def test_one_file_is_enough(add, text, sources):
    add(text)
    assert "h150" in gpu_names()
    assert gpu_from_driver_name("AMD H150" if text is OTHER_VENDOR else "NVIDIA H150") is load_gpu("h150")
    found = {infercast.estimate(name, load_gpu("h150"), **sizes).source for name, sizes in KERNELS.items()}
    assert found <= sources
    workload = synthetic_workload(rate=2, input_lengths=100, output_lengths=20, count=20)
    forecast = infercast.simulate(infercast.deploy("qwen3-0.6b", "h150"), workload)
    assert 0 < forecast.ttft.p50 < 1
