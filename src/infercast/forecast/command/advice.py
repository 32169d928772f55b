"""Advice on a command: each setting around it tried with the same requests, ranked by what users would gain.

A change counts where it is more than chance (draws of requests that are served before and after it) and, where other
kernels run, more than their estimates may be off. What changes the model's answers or the number of GPUs is told, and
never put into the command that is recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from infercast.errors import InfercastError
from infercast.forecast.command.changes import Change, changes_around
from infercast.forecast.command.point import Point, Timers
from infercast.forecast.command.trials import (
    DRAWS,
    HEADROOM,
    Effect,
    Load,
    Trial,
    differs,
    effects,
    try_further,
    try_point,
)
from infercast.forecast.memory import Fit
from infercast.serve import Workload

LEAST_GAIN = 0.002
"""Of the mean over all numbers, below which a change is not worth its place in a command."""
TRADE = 0.05
"""The recommended command makes no number worse by more than this, or than what is gained on average."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, and what it does."""

    change: Change
    effects: tuple[Effect, ...]
    """All that were watched; those that may be noise gain nothing."""

    @property
    def real(self) -> list[Effect]:
        """What is more than noise, the largest first."""
        return sorted((each for each in self.effects if each.is_real), key=lambda each: -abs(each.change))

    @property
    def gain(self) -> float:
        """The mean gain over all numbers, as a logarithm; the headroom of a promise counts as much as all others."""
        rooms, others = (
            [each.gain for each in self.effects if (each.name == HEADROOM) is which] for which in (True, False)
        )
        means = [sum(gains) / len(gains) for gains in (rooms, others) if gains]
        return sum(means) / max(1, len(means))

    @property
    def worst(self) -> float:
        """The largest loss: of the headroom of what is promised, or of any number where nothing is."""
        judged = [each.gain for each in self.effects if each.name == HEADROOM] or [each.gain for each in self.effects]
        return min(judged, default=0.0)


@dataclass(frozen=True, slots=True)
class Advised:
    """All that was tried."""

    ranked: tuple[Advice, ...]
    """What helps on the same GPUs, best first."""
    other_gpus: tuple[Advice, ...]
    """The same with more or fewer GPUs, whatever it does."""
    worse: tuple[Advice, ...]
    """What makes things worse."""
    without_effect: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    """What the engine would not start with, and why."""
    applied: dict[str, Any]
    """The values of the recommended command that differ from the given one ..."""
    together: Advice | None
    """... and what they do together."""


def advise(
    point: Point, fit: Fit, loads: Sequence[Load], timers: Timers, tell: Callable[[str], None] = lambda _: None
) -> Advised:
    """Try every change around a point that fits."""
    deployment = point.deploy()
    draws = [load.draws(timers.system(deployment).pools[0].replica) for load in loads]
    base = try_point(deployment, draws, timers, most=DRAWS)
    draws = _telling_first(draws, base)
    found: list[Advice] = []
    quiet: list[str] = []
    refused: list[tuple[str, str]] = []
    for change in changes_around(point, fit):
        tell(change.label)
        try:
            trial = try_point(point.changed(change.values).deploy(), draws, timers)
        except InfercastError as problem:
            refused.append((change.label, str(problem)))
            continue
        if not differs(base, trial, loads):
            quiet.append(change.label)
            continue
        try_further(trial, draws)
        advice = Advice(change, tuple(effects(base, trial, loads, kernels=change.kernels)))
        if advice.real:
            found.append(advice)
        else:
            quiet.append(change.label)
    found.sort(key=lambda advice: -advice.gain)
    same = [each for each in found if each.change.gpus == 1.0]
    helpful = tuple(each for each in same if each.gain > LEAST_GAIN)
    applied, together = _combine(point, base, helpful, loads, draws, timers)
    return Advised(
        ranked=helpful,
        other_gpus=tuple(each for each in found if each.change.gpus != 1.0),
        worse=tuple(each for each in same if each.gain <= LEAST_GAIN),
        without_effect=tuple(quiet),
        refused=tuple(refused),
        applied=applied,
        together=together,
    )


def _telling_first(draws: Sequence[list[Workload]], base: Trial) -> list[list[Workload]]:
    """The draws of each load with the one first in which requests wait longest: what a limit does shows there."""
    ordered = []
    for number, of_load in enumerate(draws):
        longest = [float(seen.ttft.max()) for seen in base.seen[number]]
        order = sorted(range(len(of_load)), key=lambda at: -longest[at])
        base.seen[number] = [base.seen[number][at] for at in order]
        ordered.append([of_load[at] for at in order])
    return ordered


def _combine(
    point: Point,
    base: Trial,
    ranked: Sequence[Advice],
    loads: Sequence[Load],
    draws: Sequence[Sequence[Workload]],
    timers: Timers,
) -> tuple[dict[str, Any], Advice | None]:
    """Add one change after the other, best first, as long as users gain and nothing gets much worse."""
    applied: dict[str, Any] = {}
    best: Advice | None = None
    axes: set[str] = set()
    for advice in ranked:
        change = advice.change
        if change.answers or change.axis in axes:
            continue
        values = {**applied, **change.values}
        try:
            trial = try_point(point.changed(values).deploy(), draws, timers, most=DRAWS)
        except InfercastError:
            continue
        kernels = change.kernels or (best is not None and best.change.kernels)
        label = change.label if best is None else f"{best.change.label}, {change.label}"
        both = Change("together", values, label, kernels)
        now = Advice(both, tuple(effects(base, trial, loads, kernels=kernels)))
        if now.worst > -max(TRADE, now.gain) and now.gain > (0.0 if best is None else best.gain) + LEAST_GAIN:
            applied, best = values, now
            axes.add(change.axis)
    return applied, best
