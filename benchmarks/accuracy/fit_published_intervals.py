"""How far engines of releases of long before may be off: set on published runs so that 80 % lie in their intervals.

    python benchmarks/accuracy/fit_published_intervals.py RUNS.csv [GPU ...]

RUNS.csv is a table of collected runs, of which those of grade A count. What estimates say of steps is taken as it is;
the spreads of steps with prompts, of steps without and of the host come on top, and the middle is moved
(`OLDER_RELEASE` of forecast/uncertainty.py, `SLOWER_BEFORE` of odds.py). By how much TTFT and TPOT move with
each of them is found once, as a slope. Spreads are chosen so that the coverage of every source is near 80 %; each
source is left out in turn, and its own coverage by the choice of the others is printed with the mean half width.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "scoreboard"))
from publishers import as_published
from shorten import shortened, weighed

from infercast.errors import InfercastError
from infercast.forecast.estimate import read_rows
from infercast.forecast.intervals import LEVEL, MOST_REQUESTS, MOST_STEP_BY_STEP, jumps_over, slowed
from infercast.forecast.system import busiest
from infercast.forecast.uncertainty import Spread, is_older, kernel_widths, widened
from published.compare import started, system_for
from published.run import PublishedRun, RowReader
from published.table import read_collected

STEP = 1.1
"""What is made longer by this factor to see what moves."""
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
PROMPTS, DECODES, HOSTS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.6), (0.12, 0.15, 0.17, 0.19, 0.21, 0.25), (0.3, 0.4, 0.5)
SLOWER = (0.0, 0.25, 0.5)
"""How far the middle is above the forecast, in half widths."""
FEWEST = 8
"""A source with fewer values is not counted."""


@dataclass(frozen=True)
class Values:
    """TTFT and TPOT of one run: logarithms of what was measured over the forecast, and slopes."""

    source: str
    steps: tuple[float, float]
    errors: np.ndarray
    slopes: np.ndarray
    """Rows: prompts, decodes, host."""

    def width(self, spread: Spread) -> np.ndarray:
        about = widened(*self.steps, spread)
        by_gpu = about.prompts * self.slopes[0] + about.decodes * self.slopes[1]
        return np.hypot(by_gpu, about.host * self.slopes[2])

    def inside(self, spread: Spread, slower: float) -> np.ndarray:
        """Whether each lies in its interval; not a number where it was not published."""
        width = self.width(spread)
        within = (self.errors >= np.minimum((slower - 1) * width, 0)) & (self.errors <= (slower + 1) * width)
        return np.where(np.isnan(self.errors), np.nan, within)


def look_at(run: PublishedRun) -> Values:
    run, deployment = started(run)
    system = system_for(run, deployment)
    whole, run = run, shortened(run, system)
    served, summed_up = system.serve(run.workload), weighed(run, whole)
    most = MOST_REQUESTS if jumps_over(system) else MOST_STEP_BY_STEP
    short = replace(run.workload, requests=run.workload.requests[:most])

    def moved(**longer: float) -> np.ndarray:
        pools = tuple(pool.of(slowed(pool.replica, **longer)) for pool in system.pools)
        return np.log(summed_up(system._replace(pools=pools).serve(short).clients))[:2]

    base = moved()
    slopes = [(moved(**{name: STEP}) - base) / np.log(STEP) for name in ("prompts", "decodes", "host")]
    measured = np.array([np.nan if each is None else each for each in (run.ttft, run.tpot)])
    errors = np.log(measured / summed_up(served.clients)[:2])
    return Values(run.source, kernel_widths(deployment, busiest(served.records[0])), errors, np.array(slopes))


def read_values(path: Path, gpus: tuple[str, ...]) -> Iterator[Values]:
    for line, row in enumerate(read_rows(path), start=2):
        run = read_collected(RowReader(path, line, as_published(row)))
        if run.problem or run.grade != "A" or run.gpu not in gpus:
            continue
        try:
            if is_older(started(run)[1].engine, run.version):
                yield look_at(run)
        except InfercastError as problem:
            print(f"line {line}: {problem}", file=sys.stderr)


def coverages(values: list[Values], choice: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Share of TTFTs and of TPOTs in their intervals, by source; not a number of too few."""
    *spread, slower = choice
    found = {}
    for source in dict.fromkeys(each.source for each in values):
        inside = np.array([each.inside(Spread(*spread), slower) for each in values if each.source == source])
        counts = np.sum(~np.isnan(inside), axis=0)
        found[source] = np.where(counts >= FEWEST, np.nansum(inside, axis=0) / np.maximum(counts, 1), np.nan)
    return found


def main() -> None:
    values = list(read_values(Path(sys.argv[1]), tuple(sys.argv[2:]) or GPUS))
    choices = list(product(PROMPTS, DECODES, HOSTS, SLOWER))
    by_choice = {choice: coverages(values, choice) for choice in choices}

    def best(left_out: str) -> tuple[float, ...]:
        def off(choice: tuple[float, ...]) -> float:
            shares = [share for source, share in by_choice[choice].items() if source != left_out]
            return float(np.nansum((np.array(shares) - LEVEL) ** 2)) + 1e-3 * sum(choice[:3])

        return min(choices, key=off)

    for source in ("", *by_choice[choices[0]]):
        choice = best(source)
        print(f"{source or 'all'}: prompts, decodes, host, slower {choice}")
        for own, (ttft, tpot) in by_choice[choice].items():
            if source in ("", own):
                widths = [each.width(Spread(*choice[:3])) for each in values if each.source == own]
                wide = np.nanmean(widths, axis=0)
                print(f"  {own}: {ttft:.0%} of TTFTs (+-{wide[0]:.2f}), {tpot:.0%} of TPOTs (+-{wide[1]:.2f}) inside")


if __name__ == "__main__":
    main()
