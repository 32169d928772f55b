"""The answer to a question of planning: the best deployment, what it was chosen from, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from infercast.forecast.intervals.intervals import Intervals
from infercast.forecast.latency import Percentiles
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.power import Drawn
from infercast.forecast.plan.question import Question
from infercast.shown import Answer, Shown


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


@dataclass(frozen=True, slots=True)
class Figures:
    """What users of a candidate would see; times in seconds, rates a second."""

    ttft: Percentiles
    tpot: Percentiles | None
    end_to_end: Percentiles
    output_tokens_per_second: float
    requests_per_second: float
    attainment: float
    """The share of requests that keep every limit of the SLO."""
    goodput: float
    """Requests a second that do."""
    headroom: float
    """The smallest limit / forecast; above 1 the SLO holds."""
    tightest: str
    """The limit that it is the headroom of, such as ``ttft_p99``."""
    state: str
    """``stable``, ``backlogged`` or ``overloaded``."""
    capacity: float | None
    """Requests a second that can be served, where it is known."""
    busy: float
    """Share of the time in which the busiest replica computes."""
    kv_peak: float
    """Most of the KV cache that was in use at a time."""
    bottleneck: str
    """What limits it, in words."""
    source: str
    """What the weakest of the estimates that count rests on."""
    intervals: Intervals | None = None
    """80 % intervals of latencies and rates; None where nobody asked."""
    odds: float | None = None
    """The probability that the SLO holds; None where there are no intervals."""
    asked_odds: float = 0.0
    """What that has to be at least."""
    drawn: Drawn | None = None
    """What all its GPUs draw; None where their power is not known."""
    beyond: str = ""
    """Which budget it breaks, in words; empty if none."""

    @property
    def holds(self) -> bool:
        """Whether the SLO does, by the forecast's own numbers, as surely as it is asked for, and within the budgets."""
        is_steady = self.state not in ("overloaded", "filling")
        kept = is_steady and self.headroom > 1.0 and (self.odds or 0.0) >= self.asked_odds
        return kept and not self.beyond


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
        """GPUs of all pools."""
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
    """A share in a sentence."""
    return f"{100.0 * share:.0f} %" if share >= 0.005 else "less than 1 %"


class Nearest(NamedTuple):
    """The nearest question that has an answer."""

    row: Row
    """What would be the answer."""
    sentence: str
    """What would have to be asked instead."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Answer):
    """The answer; rows are sorted, best first, and `winner` is the first of them if there is one."""

    question: Question
    winner: Row | None
    front: tuple[Row, ...]
    """Those that keep the SLO and that no other beats in cost, TTFT and TPOT together; cheapest first."""
    rows: tuple[Row, ...]
    """Every candidate that was looked at, best first, those that were refused last."""
    runner_up: Row | None
    why: str
    """Why the runner-up lost, or which constraint fails if there is no winner; one sentence."""
    changes: tuple[str, ...]
    """What would change the decision, a sentence each."""
    nearest: tuple[Nearest, ...] = ()
    """What is nearest to an answer, if there is no winner."""
    notes: tuple[str, ...] = ()
    num_candidates: int = 0
    """Number of candidates that the question allows, also those that were never looked at one by one."""

    def _words(self) -> str:
        what = f"{self.question.model}, {self.question.slo}"
        return f"{what}: {self.why if self.winner is None else self.winner.candidate}"

    @property
    def num_unseen(self) -> int:
        """Candidates that nobody had to look at, because others do with fewer GPUs or for less."""
        return max(0, self.num_candidates - len(self.rows))

    def count(self, stage: Stage) -> int:
        """Candidates that came so far and no further."""
        return sum(row.stage is stage for row in self.rows)
