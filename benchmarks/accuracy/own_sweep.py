"""How far what `infercast estimate` shows is from rows of a sweep, and how models of it do on rows they did not see.

    pip install 'infercast[fit]' && python benchmarks/accuracy/own_sweep.py measurements [--shown]

With ``--shown`` only the first: the public estimate against all rows, kernels alone against the time of a burst, and
sustained ones against the time under the power limit where that held a row at least half of the time. Models were
fitted to these rows, so errors are smaller, and more of them inside the interval, than for other shapes.

Then five folds; a group is one (n, k) pair, one head layout, one expert layout, one width of a memory-bound kernel.
Prints mean, median and 90th percentile of the absolute error of latency and the share inside the 80 % interval, in per
cent.
Then models of nothing but the first points of the sweep, as `infercast measure` orders them, scored on all others.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

import infercast
from infercast.lab.fit.samples import Key, Sample, key_of, sample_of, sweep_samples
from infercast.lab.fit.tables import read_sweep, sweep_folders
from infercast.lab.fit.train import FEWEST, fit_measured
from infercast.lab.measure.rows import sweep_cases
from infercast.predict.fitted import Entry, Forest

FOLDS = 5
BEGINNINGS = (200, 600, 2000, 6000)
TABLES = {"memory_bound": "elementwise"}
"""Where a family's rows lie, if not in a table of its name."""
SPARSE = dict.fromkeys(("index_scores", "top_k", "sparse_attention"), "sparse")


def main() -> None:
    folder = Path(sys.argv[1])
    as_shown(folder)
    if "--shown" in sys.argv[2:]:
        return
    print()
    held_out(folder)
    print()
    first_points(folder)


class Score(NamedTuple):
    """The public estimate of one kind of kernel against measured rows."""

    name: str
    condition: str
    source: str
    rows: int
    mean: float
    median: float
    p90: float
    inside: float


def as_shown(folder: Path) -> None:
    print("| | condition | source | rows | mean | median | 90th percentile | in the interval |")
    print("| --- | --- | --- | --: | --: | --: | --: | --: |")
    for gpu in sweep_folders(folder):
        for each in scored(gpu):
            figures = " | ".join(f"{100 * share:.1f}" for share in each[4:7])
            words = f"{each.name} | {each.condition} | {each.source} | {each.rows:,}"
            print(f"| {words} | {figures} | {100 * each.inside:.0f} |", flush=True)


def scored(
    folder: Path, families: tuple[str, ...] | None = None, sample: int | None = None, every: int = 1
) -> Iterator[Score]:
    """By kind and condition; ``sample``: at most so many rows of each reading, of every so many-th one."""
    found = defaultdict(list)
    for rows in (sampled(each, sample) for each in islice(read_sweep(folder, families), 0, None, every)):
        table = table_of(folder / f"{TABLES.get(rows.family, SPARSE.get(rows.family, rows.family))}.parquet")
        table = table.loc[rows.index]
        for condition, column, which in (
            ("alone", "burst_us", np.full(len(table), fill_value=True)),
            ("sustained", "latency_us", table.capped.to_numpy()),
        ):
            if not which.any():
                continue
            estimate = infercast.estimate(rows.op, rows.gpu, condition=condition)
            ends = [np.ravel(end)[which] for end in (estimate.seconds, estimate.low, estimate.high)]
            kind = f"{rows.family} {rows.dtype.partition('/')[0]}" if rows.family == "moe" else name_of_rows(rows)
            found[kind, condition, str(estimate.source)].append((*ends, 1e-6 * table[column].to_numpy()[which]))
    for (kind, condition, source), parts in found.items():
        seconds, low, high, measured = map(np.concatenate, zip(*parts, strict=True))
        error = np.abs(seconds / measured - 1.0)
        inside = float(np.mean((low <= measured) & (measured <= high)))
        figures = (float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.9)))
        yield Score(kind, condition, source, error.size, *figures, inside)


@cache
def table_of(path: Path) -> Any:
    return pandas.read_parquet(path)


def sampled(rows: Any, most: int | None) -> Any:
    """At most so many of the rows."""
    if most is None or len(rows.seconds) <= most:
        return rows
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows.seconds))[:most])
    return replace(rows, op=taken(rows.op, chosen), seconds=rows.seconds[chosen], index=rows.index[chosen])


def taken(op: Any, which: np.ndarray) -> Any:
    """The same operator of some of its shapes."""
    long = {
        each.name: getattr(op, each.name)[which]
        for each in fields(op)
        if isinstance(getattr(op, each.name), np.ndarray) and len(getattr(op, each.name)) > 1
    }
    return replace(op, **long)


def name_of_rows(rows: Any) -> str:
    return f"{rows.family} {rows.kernel or rows.dtype}"


def held_out(folder: Path) -> None:
    everything = []
    print("| | rows | mean | median | 90th percentile | in the interval |\n| --- | --: | --: | --: | --: | --: |")
    for key, sample in sweep_samples(folder).items():
        errors, inside = [], []
        for fold in range(FOLDS):
            hidden = sample.group % FOLDS == fold
            error, within = score(fit_measured(key, sample.part(~hidden)), sample.part(hidden))
            errors.append(error)
            inside.append(within)
        error = np.concatenate(errors)
        everything.append(error)
        figures = (error.mean(), np.median(error), np.quantile(error, 0.9))
        covered = f"{100 * np.concatenate(inside).mean():.0f}"
        print(
            f"| {name_of(key)} | {error.size:,} | {' | '.join(f'{100 * each:.1f}' for each in figures)} | {covered} |",
            flush=True,
        )
    error = np.concatenate(everything)
    print(f"| all | {error.size:,} | {100 * error.mean():.1f} | {100 * np.median(error):.1f} | | |")


def first_points(folder: Path) -> None:
    samples, places = placed_samples(folder)
    print("| first points | " + " | ".join(map(name_of, samples)) + " | all |\n| --: |" + " --: |" * (len(samples) + 1))
    for count in BEGINNINGS:
        cells, errors = [], []
        for key, sample in samples.items():
            seen = places[key] < count
            if np.count_nonzero(seen) < FEWEST:
                cells.append("")
                continue
            error, _ = score(fit_measured(key, sample.part(seen)), sample.part(~seen))
            errors.append(error)
            cells.append(f"{100 * error.mean():.1f} ({np.count_nonzero(seen)})")
        print(f"| {count:,} | {' | '.join(cells)} | {100 * np.concatenate(errors).mean():.1f} |", flush=True)


def placed_samples(folder: Path) -> tuple[dict[Key, Sample], dict[Key, np.ndarray]]:
    """Rows as learners see them, and at which place of a sweep each comes."""
    order = {case.key: place for place, case in enumerate(sweep_cases())}
    samples, places = defaultdict(list), defaultdict(list)
    for gpu in sweep_folders(folder):
        for rows in read_sweep(gpu):
            name = TABLES.get(rows.family, rows.family)
            table = pandas.read_parquet(gpu / f"{name}.parquet").loc[rows.index]
            shapes = table.loc[:, :"latency_us"].drop(columns=["gpu", "engine", "latency_us"]).to_dict("records")
            found = [order.get(f"{name} {json.dumps(shape, sort_keys=True)}", len(order)) for shape in shapes]
            samples[key_of(rows)].append(sample_of(rows))
            places[key_of(rows)].append(found)
    joined = {key: Sample.joined(parts) for key, parts in samples.items()}
    return joined, {key: np.concatenate(parts) for key, parts in places.items()}


def score(model: tuple[Entry, Forest], sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors, and whether each is inside of the interval."""
    entry, forest = model
    misses = sample.residual - forest.predict(sample.features)
    return np.abs(np.exp(-misses) - 1.0), (misses >= entry.low) & (misses <= entry.high)


def name_of(key: Key) -> str:
    return " ".join(part for part in (key[0], key[3]) if part)


if __name__ == "__main__":
    main()
