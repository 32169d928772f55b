"""How GPUs without direct links are joined."""

import pytest

from infercast import estimate
from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.forecast.deploy import deploy
from infercast.forecast.memory import fit_memory
from infercast.hardware import load_gpu
from infercast.hardware.gpu import ECC_SHARE, TOPOLOGIES, has_inline_ecc, is_left_open, ring_rate, with_topology

BOARD = load_gpu("l40s")
MESSAGE = {"bytes": 24_600_000, "gpus": 4}


def test_rates_of_each_kind_of_server():
    rates = {name: [ring_rate(with_topology(BOARD, name), gpus) for gpus in (2, 4, 8)] for name in TOPOLOGIES}
    assert rates["switch"][0] == rates["switch"][2] == pytest.approx(0.75 * BOARD.pcie_bandwidth)
    assert rates["sockets"][0] > 3 * rates["sockets"][1] > 9 * rates["sockets"][2]
    assert rates["host"][0] < rates["sockets"][0]
    assert ring_rate(BOARD, 4) == rates["sockets"][1]


def test_left_open_the_interval_holds_every_kind_of_server():
    wide = estimate("all_reduce", BOARD, **MESSAGE)
    assert wide.low < 0.4 * wide.seconds
    for name in TOPOLOGIES:
        known = estimate("all_reduce", with_topology(BOARD, name), **MESSAGE)
        assert 0.75 * wide.low <= known.seconds <= 1.35 * wide.high
        assert (known.high - known.low) / known.seconds < (wide.high - wide.low) / wide.seconds
    assert is_left_open(BOARD, 4)
    assert not is_left_open(load_gpu("h200-sxm"), 4)


def test_what_was_measured_stands_for_its_own_kind_of_server_alone():
    assert estimate("all_reduce", with_topology(BOARD, "sockets"), **MESSAGE).source == "measured"
    assert estimate("all_reduce", with_topology(BOARD, "switch"), **MESSAGE).source == "physics"


def test_boards_that_cannot_read_each_other_leave_reducing_to_the_library():
    short = {"bytes": 65_536, "gpus": 2}
    assert load_gpu("rtx-5090").pcie_topology == "host"
    through_host = estimate("all_reduce", with_topology(BOARD, "host"), **short)
    assert through_host.seconds > 2 * estimate("all_reduce", with_topology(BOARD, "switch"), **short).seconds


def test_codes_inside_gddr_take_a_part_of_its_rate():
    assert has_inline_ecc(BOARD)
    assert not any(has_inline_ecc(load_gpu(name)) for name in ("rtx-4090", "rtx-6000-ada", "rtx-pro-6000", "h200-sxm"))
    shape = {"m": 16, "n": 28_672, "k": 4096}
    ratio = estimate("gemm", "rtx-6000-ada", **shape).seconds / estimate("gemm", BOARD, **shape).seconds
    datasheets = BOARD.dram_bandwidth / load_gpu("rtx-6000-ada").dram_bandwidth
    assert ratio == pytest.approx(ECC_SHARE * datasheets, rel=0.03)


def test_a_file_may_say_how_its_gpus_are_joined(tmp_path):
    file = tmp_path / "chip.toml"
    file.write_text('base = "l40s"\npcie_topology = "switch"\n')
    assert load_gpu(file).pcie_topology == "switch"
    file.write_text('base = "l40s"\npcie_topology = "ring"\n')
    with pytest.raises(FileFormatError, match="pcie_topology must be one of switch, sockets, host, not 'ring'"):
        load_gpu(file)
    with pytest.raises(UnknownNameError, match="unknown PCIe topology 'ring'"):
        deploy("llama-3.1-8b", "l40s", tensor_parallel_size=2, pcie_topology="ring")


def test_a_collective_beyond_a_node_needs_a_network():
    with pytest.raises(InputError, match="a collective of 16 GPUs needs a network: a node of h200-sxm has 8"):
        estimate("all_reduce", "h200-sxm", bytes=1 << 20, gpus=16)
    across = estimate("all_reduce", "h200-sxm", bytes=1 << 20, gpus=16, network="infiniband-ndr")
    assert across.seconds > estimate("all_reduce", "h200-sxm", bytes=1 << 20, gpus=8).seconds


def test_gpus_that_the_engine_does_not_run_on_are_refused():
    for ask in (deploy, fit_memory):
        with pytest.raises(InputError, match=r"vLLM does not run on p100: its compute capability is 6\.0, and 7\.0"):
            ask("qwen2.5-0.5b", "p100")
    assert deploy("qwen2.5-0.5b", "v100-sxm").gpu.name == "v100-sxm"
    assert deploy("qwen2.5-0.5b", "mi300x").gpu.name == "mi300x"
