"""Networks between nodes, and which GPUs direct links join."""

import pytest

import infercast
from infercast.errors import FileFormatError, UnknownNameError
from infercast.hardware import load_gpu, with_network
from infercast.hardware.load import networks


def test_a_network_is_plugged_in():
    gpu = load_gpu("h100-sxm")
    assert with_network(gpu, None) is gpu
    joined = with_network(gpu, "infiniband-ndr")
    assert (joined.network_bandwidth, joined.network_latency) == (50e9, pytest.approx(5e-6))
    assert joined.name == gpu.name


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown network 'infiniband'; did you mean .* known: efa-400, "):
        with_network(load_gpu("h100-sxm"), "infiniband")


def test_all_networks_are_slower_than_direct_links():
    assert all(0 < network.bandwidth < 450e9 and network.latency > 0 for network in networks().values())


@pytest.mark.parametrize(
    ("name", "linked"), [("h100-sxm", 8), ("h100-pcie", 2), ("h200-nvl", 4), ("l40s", 0), ("gb200", 72)]
)
def test_what_direct_links_join(name, linked):
    gpu = load_gpu(name)
    assert gpu.nvlink_gpus == linked
    assert not gpu.is_linked(linked + 1)
    assert gpu.is_linked(linked) == (linked > 0)


def test_the_link_of_so_many_gpus():
    gpu = load_gpu("h100-pcie")
    assert gpu.link_bandwidth(2) == gpu.nvlink_bandwidth
    assert gpu.link_bandwidth(4) == gpu.pcie_bandwidth
    assert gpu.link_bandwidth(16) == gpu.pcie_bandwidth
    assert with_network(gpu, "ethernet-100").link_bandwidth(16) == 8 * 1.5e9
    assert with_network(gpu, "roce-200").link_bandwidth(16) == gpu.pcie_bandwidth


def network(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text("latency_us = 5\n" + text)
    return with_network(load_gpu("h200-sxm"), str(path))


def test_a_file_says_what_leaves_a_switch_and_which_nodes_are_slower(tmp_path):
    joined = network(tmp_path, "gb_per_s = 50\n[[levels]]\ngpus = 32\noversubscription = 4\n")
    assert [joined.network_rate(gpus) / 1e9 for gpus in (16, 32, 33)] == [50, 50, 12.5]
    assert joined.link_bandwidth(64) == 8 * 12.5e9
    uneven = network(tmp_path, "gb_per_s = [50, 50, 10]\n")
    assert [uneven.network_rate(gpus) / 1e9 for gpus in (8, 16, 24, 400)] == pytest.approx([50, 50, 10, 10])
    exchange = {"bytes": 1e8, "network": str(tmp_path / "own.toml")}
    near, far = (infercast.estimate("all_gather", "h200-sxm", gpus=gpus, **exchange).seconds for gpus in (16, 24))
    assert far > 2.5 * near


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "needs gb_per_s"),
        ("gb_per_s = -1", "gb_per_s must be a rate"),
        ("gb_per_s = 50\nlevels = 3", "levels must be tables"),
        ("gb_per_s = 50\n[[levels]]\noversubscription = 0.5", "levels.oversubscription must be a number of at least 1"),
    ],
)
def test_a_network_that_cannot_be_is_refused(tmp_path, text, problem):
    with pytest.raises(FileFormatError, match=problem):
        network(tmp_path, text)
