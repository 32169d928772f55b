"""Collectives inside a node and between nodes."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu, with_network
from infercast.ops import Collective
from infercast.predict.families.collective import COLLECTIVE, RANK_SKEW
from infercast.predict.learned import make_predictor

SIZES = 2.0 ** np.arange(8, 30)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def seconds(kind, message, gpus, gpu, **options):
    return COLLECTIVE.physics(Collective(kind, message, gpus, **options), gpu).seconds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a100-sxm", "h100-pcie", "l40s", "b200-sxm"])
def test_large_messages_take_their_bytes_over_the_links(kind, name):
    gpu = load_gpu(name)
    op = Collective(kind, SIZES, 4)
    times = COLLECTIVE.physics(op, gpu).seconds
    assert (times > 0).all()
    assert times[-1] > 0.9 * op.link_bytes[-1] / gpu.link_bandwidth(4)
    assert times[-1] > 20 * times[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_node_costs_time(kind):
    gpu = with_network(load_gpu("h100-sxm"), "infiniband-ndr")
    assert (seconds(kind, SIZES, 16, gpu) > seconds(kind, SIZES, 8, gpu, library="nccl")).all()


def test_a_slower_network_is_slower():
    fast, slow = (with_network(load_gpu("h100-sxm"), name) for name in ("infiniband-xdr", "roce-200"))
    assert (seconds("all_reduce", SIZES, 16, slow) > seconds("all_reduce", SIZES, 16, fast)).all()


def test_each_adapter_carries_its_gpus_share():
    gpu = with_network(load_gpu("h100-sxm"), "infiniband-ndr")
    large = np.array([2.0**32])
    inside = seconds("all_reduce", large, 8, gpu, library="nccl")[0]
    between = seconds("all_reduce", large, 16, gpu)[0] - inside
    assert between == pytest.approx(2 * large[0] / 2 / 8 / (0.85 * 50e9), rel=0.05)


def test_cards_that_no_bridge_joins_talk_over_pcie():
    gpu = load_gpu("h100-pcie")
    bridged, apart = (seconds("all_reduce", np.array([2.0**26]), gpus, gpu)[0] for gpus in (2, 4))
    assert apart > 3 * bridged
    assert apart == seconds("all_reduce", np.array([2.0**26]), 4, replace(gpu, nvlink_bandwidth=0.0))[0]


def test_an_engine_waits_for_the_last_gpu():
    gpu = load_gpu("h200-sxm")
    op = Collective("all_reduce", SIZES, 8)
    waited, alone = (COLLECTIVE.physics(op, gpu, engine=engine).seconds for engine in (True, False))
    assert waited - alone == pytest.approx(3 * RANK_SKEW)


@pytest.mark.parametrize("kind", KINDS)
def test_flags_take_longer_between_chips_of_two_dies(kind):
    gpu = load_gpu("b200-sxm")
    short = np.array([512.0])
    hopper = seconds(kind, short, 8, replace(gpu, kernels="hopper"))[0]
    assert seconds(kind, short, 8, gpu)[0] == pytest.approx(3.0 / 2.3 * hopper, rel=0.02)


@pytest.mark.parametrize(("gpus", "limit"), [(2, 8 << 20), (4, 8 << 20), (8, 256 << 10)])
def test_above_its_limit_an_engine_copies_into_symmetric_memory(gpus, limit):
    gpu = load_gpu("h200-sxm")
    below, above = (seconds("all_reduce", np.array([size]), gpus, gpu)[0] for size in (limit - 1.0, limit * 1.0))
    # Copies cross the memory: a faster one makes them shorter.
    fast = replace(gpu, dram_bandwidth=2 * gpu.dram_bandwidth)
    assert seconds("all_reduce", np.array([limit - 1.0]), gpus, fast)[0] == below
    assert seconds("all_reduce", np.array([limit * 1.0]), gpus, fast)[0] < above


def test_the_switch_carries_less_of_blackwells_links():
    gpu = load_gpu("b200-sxm")
    large = np.array([2.0**32])
    hopper = seconds("all_reduce", large, 8, replace(gpu, kernels="hopper"), library="nccl")[0]
    assert seconds("all_reduce", large, 8, gpu, library="nccl")[0] == pytest.approx(0.85 / 0.74 * hopper, rel=0.01)


def test_between_nodes_nothing_counts_as_measured():
    gpu = with_network(load_gpu("h200-sxm"), "infiniband-ndr")
    predictor = make_predictor()
    sources = [predictor.estimate(Collective("all_reduce", 2.0**20, gpus), gpu).source for gpus in (8, 16)]
    assert sources == ["measured", "physics"]
