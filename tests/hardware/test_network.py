"""Networks between nodes, and which GPUs direct links join."""

import pytest

from infercast.errors import UnknownNameError
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
