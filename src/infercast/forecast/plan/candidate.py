"""A deployment that might be the answer: what runs where, how often, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from infercast.engines.base import DEFAULT_ENGINE, engine_named
from infercast.forecast.plan.figures import Figures
from infercast.models.layout import ParallelLayout
from infercast.shown import Shown

Settings = tuple[tuple[str, Any], ...]
"""Names and values, in order of names, so that equal ones are equal."""

ONE_GPU = ParallelLayout()
ACCEPTANCE = "acceptance"
DRAFTS = (ACCEPTANCE, "speculative_config")
"""Settings of speculative decoding; the first is ours alone."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Equal replicas of one deployment; with ``prefill`` they decode what that pool has computed the prompts of."""

    engine: str
    """With its version, such as ``vllm@0.25``."""
    gpu: str
    """A bundled name or a file."""
    layout: ParallelLayout = ONE_GPU
    """Of one replica; its ``data`` copies share experts, where a model has any."""
    replicas: int = 1
    quantization: str | None = None
    """None: as the checkpoint has it."""
    kv_cache_dtype: str = "auto"
    settings: Settings = ()
    """Of the engine, by its own names, where they are not its choice."""
    power_limit: float | None = None
    """Watts that each GPU's board may draw; None: as many as it takes."""
    prefill: Candidate | None = None

    @property
    def pools(self) -> tuple[Candidate, ...]:
        """What computes prompts and what decodes, or the one pool that does both."""
        return (self,) if self.prefill is None else (self.prefill, replace(self, prefill=None))

    @property
    def gpus(self) -> int:
        return sum(pool.replicas * pool.layout.gpus for pool in self.pools)

    @property
    def stem(self) -> Candidate:
        """What step times depend on: the same for all numbers of replicas and all settings."""
        prefill = None if self.prefill is None else self.prefill.stem
        return replace(self, replicas=1, settings=(), prefill=prefill)

    @property
    def unit(self) -> Candidate:
        prefill = None if self.prefill is None else self.prefill.unit
        return replace(self, replicas=1, prefill=prefill)

    def times(self, replicas: int) -> Candidate:
        """So many replicas of it (of the decode pool, where there are two)."""
        return replace(self, replicas=replicas)

    def with_settings(self, **values: Any) -> Candidate:
        """With other settings; None gives one back to the engine."""
        merged = {**dict(self.settings), **values}
        return replace(self, settings=tuple(sorted((key, each) for key, each in merged.items() if each is not None)))

    def options(self) -> dict[str, Any]:
        """Flags of the command that starts one replica, without dashes; True stands for a flag without a value.

        The engine's own choices are left out. Of two pools, ask each of `pools`.
        """
        engine = engine_named(self.engine)
        commands, found = engine.commands, dict[str, Any]()
        found |= {name.replace("_", "-"): value for name, value in engine.sizes_for(self.layout).items()}
        if self.quantization is not None:
            found["quantization"] = self.quantization
        if self.kv_cache_dtype != "auto":
            found["kv-cache-dtype"] = commands.kv_cache_dtypes.get(self.kv_cache_dtype, self.kv_cache_dtype)
        for name, value in self.settings:
            if name == ACCEPTANCE:
                continue  # the engine finds out
            flag = name.replace("_", "-")
            if value is not False:
                found[flag] = value
            elif commands.negates:
                found[f"no-{flag}"] = True
        return found

    @property
    def formats(self) -> str:
        """Formats of weights and, if it is not the weights' own choice, of keys and values."""
        keys = "" if self.kv_cache_dtype == "auto" else f", KV {self.kv_cache_dtype}"
        return f"{self.quantization or 'as published'}{keys}"

    def __str__(self) -> str:
        if self.prefill is not None:
            return f"prefill {self.prefill} + decode {replace(self, prefill=None)}"
        unsaid = (engine_named(self.engine).bounds[2], *DRAFTS)  # which all candidates of a question have in common
        settings = "".join(f", {name} {_word(value)}" for name, value in self.settings if name not in unsaid)
        by = "" if self.engine == DEFAULT_ENGINE else f" by {self.engine}"
        held = "" if self.power_limit is None else f" at {self.power_limit:g} W"
        return f"{self.replicas} x {self.layout} on {self.gpu}{held}{by} ({self.formats}{settings})"


def _word(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


class Stage(Enum):
    """How far a candidate came."""

    REFUSED = "refused"
    """It does not fit, or the engine would not start it."""
    BOUND = "bound"
    """No hardware of this kind can keep the promise, or not for less than what is known to keep it."""
    ESTIMATED = "estimated"
    """A quick estimate placed it behind others."""
    SCREENED = "screened"
    """A short simulation placed it behind others."""
    SIMULATED = "simulated"
    """The whole workload was simulated."""


@dataclass(frozen=True, slots=True, repr=False)
class Row(Shown):
    """One candidate and what became of it."""

    candidate: Candidate
    stage: Stage
    cost: float | None = None
    """Money an hour; None where a price is not known."""
    figures: Figures | None = None
    """Of a simulation, short or whole."""
    headroom: float | None = None
    """As the last stage has it: a bound from above, an estimate or a simulation."""
    reason: str = ""
    """Why it is not the winner; empty for the winner."""
    rate: float | None = None
    """Requests a second that it serves within the SLO, where throughput was the objective."""

    def _words(self) -> str:
        return f"{self.candidate}: {self.stage.value}"

    @property
    def gpus(self) -> int:
        return self.candidate.gpus

    @property
    def holds(self) -> bool:
        """Whether the whole workload was simulated and the SLO held."""
        return self.stage is Stage.SIMULATED and self.figures is not None and self.figures.holds

    @property
    def verdict(self) -> str:
        """What became of it in a few words that follow its name, the same wherever it is told."""
        figures = self.figures
        if self.holds or figures is None:
            return self.reason or "keeps the SLO"
        if figures.state in ("overloaded", "filling"):
            return f"is {figures.state} at this rate" if figures.state == "overloaded" else "is still filling up"
        if figures.headroom <= 1.0:
            return f"misses {figures.tightest} by {format_share(1.0 / figures.headroom - 1.0)}"
        if figures.beyond:
            return figures.beyond
        return f"keeps the SLO with a probability of {format_share(figures.odds or 0.0)} only"


def format_share(share: float) -> str:
    return f"{100.0 * share:.0f} %" if share >= 0.005 else "less than 1 %"
