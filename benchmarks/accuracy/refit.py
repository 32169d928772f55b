"""Fit some of our own sweep's models again, after their physics or their rows changed; all others stay as they are.

    python benchmarks/accuracy/refit.py MEASUREMENTS FAMILY VARIANT [VARIANT ...]
    python benchmarks/accuracy/refit.py measurements gemm fp8

Other models of the artefact keep their forests, so their physics must be what it was:
benchmarks/regression/predictions.py shows what moved. A whole fit (`benchmarks/training/fit.py`) gives the same models.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infercast.bundled import DATA
from infercast.lab.fit.samples import sweep_samples
from infercast.lab.fit.train import fit_measured, sweep_hashes
from infercast.predict.fitted import KERNELS, load_artifact, read_manifest, save_artifact
from infercast.predict.identity import SWEEP
from training import revision

ARTEFACT = DATA / "fitted" / "kernels.npz"


def main(measurements: Path, family: str, variants: list[str]) -> None:
    """Write the artefact with these models fitted anew."""
    old, manifest = load_artifact(ARTEFACT, checked=False), read_manifest(ARTEFACT)
    samples = {key: each for key, each in sweep_samples(measurements, [family]).items() if key[0] == family}
    models = []
    for entry in old.entries:
        found = old.find(*entry.key)
        assert found is not None
        if entry.key[0] == family and entry.engine == SWEEP and entry.variant in variants:
            found = fit_measured(entry.key, samples[entry.key])
            errors = " -> ".join(f"{100 * each.held_out_error:.2f} %" for each in (entry, found[0]))
            print(*entry.key, f"{found[0].rows} rows, error of hidden ones {errors}")
        models.append(found)
    provenance = {name: value for name, value in old.header.items() if name not in ("schema", "models")}
    origin = {name: manifest[name] for name in ("date", "revision", "versions", "tables")}
    origin["tables"] |= sweep_hashes(measurements, [family])
    origin["revision"] = f"{manifest['revision'].partition(';')[0]}; {family} {' '.join(variants)} of {revision()}"
    save_artifact(ARTEFACT, models, provenance, old.fitted_groups, inputs=KERNELS, origin=origin)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
