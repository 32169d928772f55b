"""Fit the bundled artefacts: every published table, and our own sweeps.

python benchmarks/training/fit.py DATA --out kernels.npz [--gpus a,b] [--families gemm,moe] [--measurements DIR]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.cli.options import known_names
from infercast.hardware import load_gpu
from infercast.lab.fit.samples import sweep_samples
from infercast.lab.fit.train import fit_artifact, origin_of, sweep_hashes
from training import revision
from training.tables import FAMILIES, FILES, read_samples, table_hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus")
    parser.add_argument("--families")
    parser.add_argument("--measurements", type=Path)
    given = parser.parse_args()
    chosen = known_names("family", given.families or "", FAMILIES) or tuple(
        each for each in FAMILIES if (given.data / FILES[each]).exists()
    )
    gpus = None if given.gpus is None else [load_gpu(name).name for name in known_names("GPU", given.gpus)]
    samples, hashes = read_samples(given.data, chosen, gpus), table_hashes(given.data, chosen)
    sweeps = {} if given.measurements is None else sweep_hashes(given.measurements, chosen)
    if given.measurements is not None:
        samples |= sweep_samples(given.measurements, chosen)
    provenance = {
        "data": {name: found[:16] for name, found in hashes.items()},
        "gpus": sorted({key[1] for key in samples}),
        "engines": sorted({key[2] for key in samples}),
        "licence": "facts and figures; see docs/predict.md",
    }
    fitted = fit_artifact(samples, given.out, provenance, print, origin_of({**hashes, **sweeps}, revision()))
    print(f"{given.out}: {len(fitted)} models")


if __name__ == "__main__":
    main()
