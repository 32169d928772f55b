"""Fit some families of kernels anew and put their models in place of the old ones of an artefact.

    python benchmarks/splice.py DATA --families collective --artifact src/infercast/data/fitted/kernels.npz

Fitting everything takes minutes; where only the physics of one family has changed, all other models stay as they are
to the last bit (reading and writing an artefact loses nothing). The tables must be those of the artefact: its list of
fitted groups and the hash of its data are kept.
"""

import argparse
import tempfile
from pathlib import Path

from infercast.errors import InputError
from infercast.fit.provenance import origin_of, table_hashes
from infercast.fit.samples import read_samples
from infercast.fit.train import fit_artifact
from infercast.predict.artifact.artifact import load_artifact, save_artifact
from infercast.predict.artifact.manifest import read_manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--families", required=True, help="with commas between them, as for `infercast fit`")
    parser.add_argument("--artifact", type=Path, required=True)
    asked = parser.parse_args()
    families = asked.families.split(",")
    artifact = load_artifact(asked.artifact, checked=False)  # its physics is about to be what it was fitted to
    for name, found in table_hashes(asked.data, families).items():
        if artifact.header["data"].get(name) != found[:16]:
            raise InputError(f"{asked.artifact} was not fitted on {asked.data / name}; fit all of it anew")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fitted.npz"
        fit_artifact(read_samples(asked.data, families), path, {})
        fitted = load_artifact(path)
        new = {entry.key: fitted.find(*entry.key) for entry in fitted.entries}
        models = [new.pop(entry.key, None) or artifact.find(*entry.key) for entry in artifact.entries]
        if new:
            raise InputError(f"{asked.artifact} has no models of {', '.join(map(str, new))}; fit all of it anew")
        provenance = {name: value for name, value in artifact.header.items() if name not in ("schema", "models")}
        origin = origin_of(read_manifest(asked.artifact)["tables"])
        save_artifact(asked.artifact, models, provenance, artifact.fitted_groups(), origin=origin)
    print(f"{asked.artifact}: {len(fitted.entries)} of {len(models)} models replaced")


if __name__ == "__main__":
    main()
