"""Advice on a command: every single change tried on the requests of each load, ranked by what users would gain.

A gain counts if it exceeds chance and the error of other kernels' estimates. Changes of the model's answers or of the
number of GPUs are shown and never recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from typing import Any, NamedTuple

from infercast.errors import InfercastError
from infercast.forecast.diagnosis.changes import ANSWERS, FREE, GPUS, Change, changes_of
from infercast.forecast.diagnosis.trials import Gain, Trials
from infercast.forecast.parallel import on_all_cores
from infercast.forecast.progress import OVER, note_cut, time_left
from infercast.forecast.result import Forecast

LEAST = 0.02  # Smaller changes of a number are not worth a setting ...
LEAST_GAIN = 0.002  # ... and of the mean over all numbers, not its place in a command.


class Effect(NamedTuple):
    load: str
    of: Gain
    is_aim: bool  # Whether it is what matters most under this load

    @property
    def is_real(self) -> bool:
        return abs(self.of.gain) > max(self.of.error, LEAST)

    @property
    def gain(self) -> float:
        """Positive where it is better; nothing where it may be noise."""
        return self.of.gain if self.is_real else 0.0

    @property
    def name(self) -> str:
        return self.of.aim.name

    @property
    def change(self) -> float:
        return self.of.ratio - 1.0

    @property
    def noise(self) -> float:
        return exp(self.of.error) - 1.0


@dataclass(frozen=True, slots=True)
class Advice:
    change: Change
    gpus: float  # Times as many GPUs
    effects: tuple[Effect, ...]

    @property
    def label(self) -> str:
        return self.change.label

    @property
    def answers(self) -> bool:
        return self.change.cost == ANSWERS

    @property
    def real(self) -> list[Effect]:
        return sorted((each for each in self.effects if each.is_real), key=lambda each: -abs(each.of.gain))

    @property
    def gain(self) -> float:
        """The mean over all numbers, as a logarithm; what matters most counts as much as all others."""
        parts = [[each.gain for each in self.effects if each.is_aim is which] for which in (True, False)]
        means = [sum(gains) / len(gains) for gains in parts if gains]
        return sum(means) / max(1, len(means))

    @property
    def worst(self) -> float:
        return min((each.gain for each in self.effects), default=0.0)


@dataclass(frozen=True, slots=True)
class Advised:
    ranked: tuple[Advice, ...]  # What helps on the same GPUs, best first
    other_gpus: tuple[Advice, ...]  # The same with more or fewer GPUs, whatever it does
    worse: tuple[Advice, ...]
    without_effect: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]  # What the engine would not start with, and why
    applied: dict[str, Any]  # The values of the recommended command that differ from the given one ...
    together: Advice | None  # ... and what they do together.
    untried: tuple[str, ...] = ()  # What the time limit left no time for


def advise(loads: Sequence[tuple[str, Forecast]], tell: Callable[[str], None] = lambda _: None) -> Advised:
    trials = [(name, Trials(forecast)) for name, forecast in loads]
    found: list[Advice] = []
    quiet: list[str] = []
    refused: list[tuple[str, str]] = []
    # A balancer of its own is nothing that a command starts.
    changes = [each for each in changes_of(loads[-1][1]) if each.router is None]
    untried: list[str] = []
    for change, advice in zip(changes, on_all_cores(partial(_tried, trials=trials), changes, later=1.0), strict=True):
        tell(change.label)
        if advice is None:
            untried.append(change.label)
            note_cut("advice")
        elif isinstance(advice, InfercastError):
            refused.append((change.label, str(advice)))
        elif advice.real:
            found.append(advice)
        else:
            quiet.append(change.label)
    found.sort(key=lambda advice: -advice.gain)
    same = [each for each in found if each.change.cost != GPUS]
    helpful = tuple(each for each in same if each.gain > LEAST_GAIN)
    together = _combine(helpful, trials)
    return Advised(
        ranked=helpful,
        other_gpus=tuple(each for each in found if each.change.cost == GPUS),
        worse=tuple(each for each in same if each.gain <= LEAST_GAIN),
        without_effect=tuple(quiet),
        refused=tuple(refused),
        applied={} if together is None else dict(together.change.values),
        together=together,
        untried=tuple(untried),
    )


def _tried(change: Change, trials: Sequence[tuple[str, Trials]]) -> Advice | InfercastError | None:
    """What a change does, why the engine refuses it, or None if the time is over."""
    if time_left() <= OVER:
        return None
    try:
        return _try(change, trials)
    except InfercastError as problem:
        return problem


def _try(change: Change, trials: Sequence[tuple[str, Trials]]) -> Advice:
    before = trials[0][1].forecast.system
    system = change.applied(before)
    effects = [
        Effect(name, gain, gain.aim == trial.aim) for name, trial in trials for gain in trial.change(change, system)[1]
    ]
    return Advice(change, system.gpus / before.gpus, tuple(effects))


def _combine(ranked: Sequence[Advice], trials: Sequence[tuple[str, Trials]]) -> Advice | None:
    """Add one change after the other, best first, as long as users gain and nothing gets much worse."""
    best: Advice | None = None
    trade = 0.05  # The recommended command makes no number worse by more than this, or than what is gained on average
    for advice in ranked:
        change = advice.change
        if time_left() <= 0.0:
            break
        taken = {} if best is None else best.change.values
        if change.cost != FREE or {*change.values} & {*taken}:
            continue
        both = change._replace(values={**taken, **change.values}, kernels=True)
        try:
            now = _try(both, trials)
        except InfercastError:
            continue
        if now.worst > -max(trade, now.gain) and now.gain > (0.0 if best is None else best.gain) + LEAST_GAIN:
            best = now
    return best
