"""Collectives inside a node and between nodes."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu, with_network
from infercast.ops import Collective
from infercast.predict.physics.collective import RANK_SKEW, collective, engine_collective

SIZES = 2.0 ** np.arange(8, 30)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def seconds(kind, message, gpus, gpu, **options):
    return collective(Collective(kind, message, gpus, **options), gpu).seconds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a100-sxm", "h100-pcie", "l40s", "b200-sxm"])
def test_large_messages_take_their_bytes_over_the_links(kind, name):
    gpu = load_gpu(name)
    op = Collective(kind, SIZES, 4)
    times = collective(op, gpu).seconds
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
    assert engine_collective(op, gpu).seconds - collective(op, gpu).seconds == pytest.approx(3 * RANK_SKEW)
