"""What to know of a deployment's estimates before comparing them with another's: sentences for people."""

from __future__ import annotations

from infercast.engines.deployment import Deployment
from infercast.hardware.kernels import is_modelled
from infercast.hardware.pcie import TOPOLOGIES, is_left_open
from infercast.predict.adjust.ordering import ordering
from infercast.predict.adjust.typical import Typical


def estimate_notes(deployment: Deployment) -> list[str]:
    """Where an estimate is bound by another GPU's, rests on what is typical, or on a server that nobody named."""
    gpu = deployment.gpu
    if deployment.predictor.is_bound:
        return ["Estimates are the least that the hardware allows; engines take longer."]
    if not is_modelled(gpu):
        return [f"Estimates are {Typical().describe(gpu)}."]
    return [*gpu.announced_notes, *ordering().notes([gpu]), *_of_pcie(deployment)]


def _of_pcie(deployment: Deployment) -> list[str]:
    """Collectives over PCIe, where it is not said how the cards are joined."""
    gpu, joined = deployment.gpu, deployment.layout.tensor
    if joined == 1 or not is_left_open(gpu, joined):
        return []
    known = "; ".join(f"{name}: {each.title}" for name, each in TOPOLOGIES.items())
    return [
        f"{joined} of {gpu.name} talk over PCIe, which servers differ in by up to eight times: estimates are of one "
        f"with two sockets, and intervals hold the others. Say which with --pcie-topology ({known})."
    ]
