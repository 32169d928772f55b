"""Learn what the best implementations reach, and how well that holds for kernels and GPUs that were left out.

    pip install 'infercast[fit]' && python benchmarks/accuracy/fit_ceilings.py TABLES measurements [OUT.npz]

Prints for each family and format the share of hidden kernels (whole groups) that beat a ceiling, which should be a
tenth; then for each GPU the same with the whole GPU left out, and the share of the ceiling that its median kernel
reaches. With OUT it writes the ceilings there: src/infercast/data/fitted/ceilings.npz comes from it.
"""

import sys
import tempfile
from pathlib import Path

from ceilings import QUANTILE, fit_ceilings, leave_out, read_measured

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.lab.fit.train import origin_of, sweep_hashes
from training import revision
from training.tables import FILES, table_hashes


def main() -> None:
    tables, sweeps = Path(sys.argv[1]), Path(sys.argv[2])
    measured = read_measured(tables, sweeps)
    tabled = {**table_hashes(tables, list(FILES)), **sweep_hashes(sweeps)}
    provenance = {
        "what": f"quantile {QUANTILE} of log(measured / (hard limit + launch floor)) over GPUs and engines",
        "held_out_error": "the share of hidden kernels that beat the ceiling",
        "data": {name: found[:16] for name, found in tabled.items()},
        "gpus": sorted({str(gpu) for rows in measured.values() for gpu in rows.gpu}),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(folder) / "ceilings.npz"
        print("| family | rows | beaten by, % |\n| --- | --: | --: |")
        for entry in fit_ceilings(measured, out, provenance, origin_of(tabled, revision())):
            print(f"| {entry.family} {entry.variant} | {entry.rows:,} | {100 * entry.held_out_error:.0f} |", flush=True)
    gpus = provenance["gpus"]
    print(f"\n| | {' | '.join(gpus)} |\n| --- |{' --: |' * len(gpus)}")
    for (family, variant), rows in measured.items():
        cells = []
        for gpu in gpus:
            found = leave_out(rows, gpu)
            cells.append("" if found is None else f"{100 * found[0]:.0f} / {100 * found[1]:.0f}")
        print(f"| {family} {variant} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
