"""How far engines that nobody looked at may be off: set on published runs so that 80 % of their means lie in intervals.

    python benchmarks/accuracy/fit_published_intervals.py runs.csv

What estimates say of steps is taken as it is; the spreads of steps with prompts, of steps without and of the host come
on top (`ELSEWHERE` of forecast/intervals/uncertainty.py). By how much means move with each of them is found once, as a
slope. Every GPU is left out in turn: spreads are chosen on the others, and the means of the one left out are counted.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from infercast.forecast.intervals.intervals import LEVEL, MOST_REQUESTS
from infercast.forecast.intervals.slowed import slowed
from infercast.forecast.intervals.uncertainty import ELSEWHERE, MEASURED, Spread, uncertainty_of, widened
from infercast.forecast.system import System, busiest, system_of
from infercast.validate.published.deployments import deployment_of
from infercast.validate.published.results import means_of
from infercast.validate.published.table import PublishedRun, read_published

STEP = 1.1
"""What is made longer by this factor to see what moves."""
PROMPTS, DECODES, HOSTS = np.arange(0, 0.301, 0.005), np.arange(0, 0.301, 0.005), (0.1, 0.2, 0.3)


@dataclass(frozen=True)
class Means:
    """Mean TTFT and TPOT of one run: logarithms of what was measured over the forecast, and slopes."""

    gpu: str
    prompts: float
    decodes: float
    errors: np.ndarray
    slopes: np.ndarray
    """Rows: prompts, decodes, host."""

    def inside(self, spread: Spread) -> np.ndarray:
        """Whether each lies in its interval; not a number where it was not published."""
        about = widened(self.prompts, self.decodes, spread)
        by_gpu = about.prompts * self.slopes[0] + about.decodes * self.slopes[1]
        width = np.hypot(by_gpu, about.host * self.slopes[2])
        return np.where(np.isnan(self.errors), np.nan, np.abs(self.errors) <= width)


def look_at(run: PublishedRun) -> Means:
    deployment = deployment_of(run)
    system = system_of(deployment)
    served, pool = system.serve(run.workload), system.pools[0]
    estimates = uncertainty_of(deployment, busiest(served.records[0]), MEASURED)
    short = replace(run.workload, requests=run.workload.requests[:MOST_REQUESTS])

    def moved(**longer: float) -> np.ndarray:
        other = pool.of(slowed(pool.replica, **longer))
        return np.log(means_of(System((other,)).serve(short).clients))[:2]

    slopes = [(moved(**{name: STEP}) - moved()) / np.log(STEP) for name in ("prompts", "decodes", "host")]
    measured = np.array([np.nan if each is None else each for each in (run.ttft, run.tpot)])
    errors = np.log(measured / means_of(served.clients)[:2])
    return Means(run.gpu, estimates.prompts, estimates.decodes, errors, np.array(slopes))


def coverage(means: list[Means], spread: Spread) -> np.ndarray:
    """Share of TTFTs and of TPOTs in their intervals."""
    return np.nanmean([each.inside(spread) for each in means], axis=0)


def best_spread(means: list[Means]) -> Spread:
    """The narrowest spreads with the wanted coverage: of TPOTs by decodes, of TTFTs by prompts and host."""

    def off(spread: Spread, quantity: int) -> float:
        return round(abs(float(coverage(means, spread)[quantity]) - LEVEL), 3)

    spread = ELSEWHERE
    for _ in range(2):
        choices = [spread._replace(prompts=float(prompts), host=host) for host in HOSTS for prompts in PROMPTS]
        spread = min(choices, key=lambda each: (off(each, 0), each.host, each.prompts))
        spread = min(
            (spread._replace(decodes=float(each)) for each in DECODES), key=lambda each: (off(each, 1), each.decodes)
        )
    return spread


def show(name: str, means: list[Means], spread: Spread) -> None:
    ttft, tpot = coverage(means, spread)
    of = f"prompts {spread.prompts:.3f}, decodes {spread.decodes:.3f}, host {spread.host:.2f}"
    print(f"{name:22} {of}: {ttft:.0%} of TTFTs, {tpot:.0%} of TPOTs inside")


runs = [look_at(run) for run in read_published(Path(sys.argv[1]))]
counted = []
for gpu in dict.fromkeys(each.gpu for each in runs):
    chosen = best_spread([each for each in runs if each.gpu != gpu])
    own = [each for each in runs if each.gpu == gpu]
    counted += [each.inside(chosen) for each in own]
    show(f"without {gpu}", own, chosen)
print(f"left out: {np.nanmean(counted, axis=0)[0]:.0%} of TTFTs, {np.nanmean(counted, axis=0)[1]:.0%} of TPOTs inside")
show("all", runs, best_spread(runs))
show("as it is", runs, ELSEWHERE)
show("what estimates say", runs, MEASURED)
