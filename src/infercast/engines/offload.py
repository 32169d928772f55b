"""A KV cache in the host's memory: how fast its blocks travel.

Measured by this project on an H200 (PCIe 5.0 x16) with vLLM's own copies: 53.6 GB/s to the GPU and 54.7 GB/s to the
host, in both directions at once 7 % less. Copies and other traffic of the GPU's memory do not slow each other by more
than 1 %; products of a burst took 2 to 10 % longer beside them, which is left out. A copy of many pieces does not begin
before all of them are handed over, which takes a thread of the host 1 us each.
"""

from __future__ import annotations

from infercast.hardware import Gpu
from infercast.serve.links import LinkSpeed

LINK_SHARE = 0.86
"""Of the link's bytes a second, those that large copies reach."""
LATENCY = 10e-6
MOST_AT_FULL_SPEED = 4
"""GPUs of a server that copy at the full speed of their links at the same time; more of them share what these have.
Nobody measured that here."""


def host_link(gpu: Gpu, gpus: int, submit_seconds: float, submit_piece_seconds: float) -> LinkSpeed:
    """The link of each of so many GPUs to the host, in one direction."""
    share = min(1.0, MOST_AT_FULL_SPEED / min(gpus, gpu.gpus_per_node))
    return LinkSpeed(LINK_SHARE * share * gpu.pcie_bandwidth, LATENCY, submit_seconds, submit_piece_seconds)
