"""A calibration: factors that measured results told, of which deployment, and from what."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import exp
from typing import NamedTuple

from infercast.engines.corrections import Factor
from infercast.engines.deployment import Deployment
from infercast.shown import Answer

EIGHTY = 1.2816
"""Standard deviations on either side that hold 80 % of a normal distribution."""
TOLD = 0.7
"""A factor is learned where results leave at most this share of what was unknown before (as standard deviations)."""


class Learned(NamedTuple):
    """One factor, before and after."""

    value: float
    """A factor on times, or seconds."""
    spread: float
    """Its standard deviation (of the logarithm of a factor) after the results were seen ..."""
    before: float
    """... and before, when its value was 1, or 0 seconds."""

    @property
    def is_told(self) -> bool:
        """Whether the results said anything about it."""
        return self.spread <= TOLD * self.before

    def ends(self, side: int, *, before: bool = False) -> float:
        """What the upper (1) or the lower (-1) end of its 80 % interval is over its middle."""
        return exp(side * EIGHTY * (self.before if before else self.spread))

    @property
    def factor(self) -> Factor:
        """As a deployment takes it."""
        return Factor(self.value, self.spread)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The deployment that results were measured on."""

    engine: str
    model: str
    gpu: str
    layout: str
    weights: str
    kv_cache: str
    api_server: bool
    host: str
    """The machine whose host times the factor is on top of."""

    @staticmethod
    def of(deployment: Deployment) -> Fingerprint:
        """Of a deployment without corrections."""
        model = deployment.model
        return Fingerprint(
            engine=deployment.engine.name,
            model=model.name,
            gpu=deployment.gpu.name,
            layout=str(deployment.layout),
            weights=model.weights.name,
            kv_cache=model.cache_dtype,
            api_server=deployment.over_http,
            host=deployment.host.title,
        )


class Pair(NamedTuple):
    """One quantity of one result: measured, forecast without the calibration, and with it."""

    quantity: str
    measured: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Source:
    """A result that was learned from."""

    file: str
    sha256: str
    kind: str
    load: str
    requests: int
    pairs: tuple[Pair, ...] = ()
    """What it says itself, and forecasts of it."""
    left_out: tuple[Pair, ...] = ()
    """The same with factors from the other results only; empty where there are none."""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(Answer):
    """Factors with their uncertainty, and where they come from."""

    deployment: Fingerprint
    host: Learned
    prefill: Learned
    decode: Learned
    path: Learned
    results: tuple[Source, ...]
    prefix_hit_rate: float | None = None
    """Share of prompt tokens that were found in the cache, where a result tells."""
    acceptance_length: float | None = None
    """Tokens that a step of speculative decoding yields, where a result tells."""
    version: str = ""
    """Of infercast."""
    title: str = ""
    """For people: the file's name."""

    def _words(self) -> str:
        told = [name for name, learned in self.factors.items() if learned.is_told]
        return f"of {len(self.results)} results: {', '.join(told) or 'nothing'} told"

    @property
    def factors(self) -> dict[str, Learned]:
        """By name."""
        return {name: getattr(self, name) for name in FACTORS}


FACTORS = tuple(each.name for each in fields(Calibration) if each.name in ("host", "prefill", "decode", "path"))
TITLES = {
    "host": "host time",
    "prefill": "GPU time of steps with prompts",
    "decode": "GPU time of decode steps",
    "path": "API server and network",
}
"""For people."""
