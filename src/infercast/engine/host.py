"""What the CPU costs a step and a request: constants for now, from a data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from infercast.engine.graphs import Launch
from infercast.units import MILLI


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of host time."""

    title: str
    source: str
    request_path: float
    token_path: float
    full_graph_step: float
    other_step: float
    other_layer: float

    def step_seconds(self, launch: Launch, num_layers: int) -> float:
        """What the host needs for one step; it hides behind the GPU where that takes longer."""
        if launch is Launch.FULL_GRAPH:
            return self.full_graph_step
        return self.other_step + self.other_layer * num_layers


def default_host() -> Host:
    """The host that was measured."""
    text = resources.files("infercast").joinpath("data/hosts/default.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    seconds = {key.removesuffix("_ms"): value * MILLI for key, value in values.items() if key.endswith("_ms")}
    return Host(title=values["title"], source=values["source"], **seconds)
