"""How the models of a sweep do on groups of its rows that they did not see.

    pip install 'infercast[fit]' && python benchmarks/accuracy/own_sweep.py measurements

Five folds; a group is one (n, k) pair, one head layout, one expert layout. Prints mean, median and 90th percentile of
the absolute error of latency and the share inside the 80 % interval, in per cent.
"""

import sys
from pathlib import Path

import numpy as np

from infercast.fit.train import fit_measured, sweep_samples

FOLDS = 5


def main() -> None:
    everything = []
    print("| | rows | mean | median | 90th percentile | in the interval |\n| --- | --: | --: | --: | --: | --: |")
    for key, sample in sweep_samples(Path(sys.argv[1])).items():
        errors, inside = [], []
        for fold in range(FOLDS):
            hidden = sample.group % FOLDS == fold
            entry, forest = fit_measured(key, sample.part(~hidden))
            misses = sample.residual[hidden] - forest.predict(sample.features[hidden])
            errors.append(np.abs(np.exp(-misses) - 1.0))
            inside.append((misses >= entry.low) & (misses <= entry.high))
        error = np.concatenate(errors)
        everything.append(error)
        figures = (error.mean(), np.median(error), np.quantile(error, 0.9))
        covered = f"{100 * np.concatenate(inside).mean():.0f}"
        name = " ".join(part for part in (key[0], key[3]) if part)
        print(
            f"| {name} | {error.size:,} | {' | '.join(f'{100 * each:.1f}' for each in figures)} | {covered} |",
            flush=True,
        )
    error = np.concatenate(everything)
    print(f"| all | {error.size:,} | {100 * error.mean():.1f} | {100 * np.median(error):.1f} | | |")


if __name__ == "__main__":
    main()
