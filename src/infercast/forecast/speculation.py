"""Speculative decoding in a simulated run: drafts and what was accepted, and the load at which it stops paying.

Verifying drafts costs next to nothing while a step waits for weights to be read. The more sequences decode together,
the more of a step is arithmetic, which drafts that are rejected waste.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.settings import changed
from infercast.engines.speculation import Drafting
from infercast.errors import InputError
from infercast.forecast.explain.kernels import Phase
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate
from infercast.models.lower import DRAFT_PREFIX
from infercast.serve import Workload
from infercast.serve.speculation import DraftCounts

VERIFYING = ("lm_head", "logits_gather", "sampling", "rejection")
"""Kernels of the target that see a row for every draft."""
TARGET, VERIFY, DRAFT = "target", "verify", "draft"


class DraftRun(NamedTuple):
    """Of all replicas that draft."""

    drafting: Drafting
    counts: DraftCounts
    drafted_per_second: float
    accepted_per_second: float
    parts: dict[str, float]
    """Shares of the GPU's time in steps without prompts: the target's layers, its head and sampling, and drafting."""


def drafts_of(forecast: Forecast) -> DraftRun | None:
    pool = forecast.pools[-1]
    drafting = pool.deployment.drafting
    if drafting is None:
        return None
    counts = DraftCounts()
    for record in pool.records:
        counts.add(record.drafts)
    seconds = forecast.duration
    return DraftRun(
        drafting,
        counts,
        counts.num_draft_tokens / seconds,
        counts.num_accepted / seconds,
        _parts(pool.phases),
    )


def _parts(phases: tuple[Phase, ...]) -> dict[str, float]:
    found = {TARGET: 0.0, VERIFY: 0.0, DRAFT: 0.0}
    for phase in phases:
        if phase.name != "decode":
            continue
        for family in phase.families:
            for kernel, seconds in family.kernels:
                part = DRAFT if kernel.startswith(DRAFT_PREFIX) else VERIFY if kernel in VERIFYING else TARGET
                found[part] += seconds
    whole = sum(found.values())
    return {name: seconds / whole for name, seconds in found.items()} if whole else {}


OFF = {"speculative_config": None, "acceptance": None}
"""Settings of an engine that does not draft."""
USUAL_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class LoadPoint(NamedTuple):
    """One number of clients, each of which sends its next request when it has its answer."""

    clients: int
    plain: Forecast
    drafted: Forecast

    @property
    def speed_up(self) -> float:
        """How many times as many tokens a second there are with drafts."""
        return self.drafted.output_tokens_per_second / self.plain.output_tokens_per_second

    @property
    def tpot_ratio(self) -> float | None:
        """How many times as long a token takes without drafts."""
        if self.plain.tpot is None or self.drafted.tpot is None:
            return None
        return self.plain.tpot.p50 / self.drafted.tpot.p50


class BreakEven(NamedTuple):
    """Loads with and without speculative decoding, and where it stops paying."""

    drafting: Drafting
    title: str
    workload: str
    points: tuple[LoadPoint, ...]

    @property
    def clients(self) -> float | None:
        """Where both serve as much; None where one of the two is better at every load that was tried."""
        for before, after in reversed([*pairwise(self.points)]):
            if before.speed_up > 1.0 >= after.speed_up:
                share = log(before.speed_up) / (log(before.speed_up) - log(after.speed_up))
                return exp(log(before.clients) + share * (log(after.clients) - log(before.clients)))
        return None

    @property
    def sentence(self) -> str:
        drafting, first, last = self.drafting, self.points[0], self.points[-1]
        what = (
            f"{drafting.title[:1].upper()}{drafting.title[1:]} with {drafting.num_drafts} "
            f"draft{'s' if drafting.num_drafts > 1 else ''} a step and {drafting.acceptance.length:.2f} tokens accepted"
        )
        best = max(self.points, key=lambda point: point.speed_up)
        most = f"at most {best.speed_up:.2f} times as many tokens/s, with {_clients(best.clients)}"
        if self.clients is not None:
            rates = [point.plain.output_tokens_per_second for point in self.points]
            rate = np.interp(log(self.clients), [log(point.clients) for point in self.points], rates)
            return (
                f"{what} pays up to about {self.clients:,.0f} clients at the same time, near {rate:,.0f} output "
                f"tokens/s: {most}, and {last.speed_up:.2f} times with {last.clients:,}."
            )
        if last.speed_up > 1.0:
            return f"{what} pays at every load up to {_clients(last.clients)}: {most}, {last.speed_up:.2f} times there."
        if first.speed_up <= 1.0 and best.speed_up <= 1.0:
            return f"{what} does not pay at any load: {most}."
        return f"{what} pays at some loads only: {most}, and {last.speed_up:.2f} times with {last.clients:,} clients."


def break_even(
    asked: partial[Deployment],
    workload: Callable[[int], Workload],
    clients: Sequence[int] | None = None,
    tell: Callable[[str], None] | None = None,
) -> BreakEven:
    """Simulate loads on a deployment that drafts and on the same one that does not.

    ``asked`` is a call of `deploy` with settings as its third argument, ``workload`` makes that of so many clients.
    """
    drafted = asked()
    if drafted.drafting is None:
        raise InputError("nothing drafts here; say how with --speculative-config")
    model, gpu, settings = asked.args
    plain = partial(asked.func, model, gpu, changed(settings, **OFF), **asked.keywords)()
    if clients is None:
        clients = [each for each in USUAL_CLIENTS if each <= drafted.settings.max_num_seqs]
    points = []
    for number in clients:
        if tell is not None:
            tell(f"{number:,} clients")
        points.append(_point(number, plain, drafted, workload(number)))
    first = points[0].drafted
    words = first.workload.description
    return BreakEven(drafted.drafting, first.title, words.partition(" clients, ")[2] or words, tuple(points))


def _point(clients: int, plain: Deployment, drafted: Deployment, load: Workload) -> LoadPoint:
    """Both with the same requests, as many as the one takes that takes more, so that luck is the same."""
    without = simulate(plain, load)
    drafting = simulate(drafted, without.workload)
    if len(drafting.workload.requests) > len(without.workload.requests):
        without = simulate(plain, replace(drafting.workload, open_ended=False), steady=drafting.steady_only)
    return LoadPoint(clients, without, drafting)


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count:,} clients"
