"""Fit some families of kernels anew and put their models in place of the old ones of an artefact.

    python benchmarks/splice.py DATA --families collective --artifact src/infercast/data/fitted/kernels.npz

Fitting everything takes minutes; where only the physics of one family has changed, all other models stay as they are
to the last bit (reading and writing an artefact loses nothing). Models of a sweep stay
unless ``--sweeps`` names the folder they are of. ``--also`` names a second folder of tables, such as those that name
their kernels: rows of both are fitted together, or those of the second alone where its version of an engine is another.
Hashes of all tables, and of all groups of rows, are added up. Prompts of one token are rows
of decoding, so that both families of attention go together. ``--widths`` takes intervals and errors of models of
several GPUs alone: forests and offsets, and so all estimates, stay.
"""

import argparse
import sys
import tempfile
from collections.abc import Container
from pathlib import Path

import numpy as np
import pandas

sys.path.insert(0, str(Path(__file__).parents[0]))

from infercast.lab.fit.samples import Key, Sample, sweep_samples
from infercast.lab.fit.tables import _version_order
from infercast.lab.fit.train import fit_artifact, origin_of
from infercast.predict.fitted import POOLED, Entry, Forest, load_artifact, read_manifest, save_artifact
from training import revision
from training.tables import FILES, read_samples, table_hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--families", required=True, help="with commas between them, as for `infercast fit`")
    parser.add_argument("--also", type=Path, help="more tables of the same families, by kernel")
    parser.add_argument("--sweeps", type=Path, help="tables of `infercast measure`, to fit their models anew as well")
    parser.add_argument("--gpus", help="with commas between them: own models of these alone")
    parser.add_argument("--engines", help="with commas between them: only models of these, by their tables")
    parser.add_argument("--widths", action="store_true", help="new intervals for models of several GPUs, nothing else")
    parser.add_argument("--artifact", type=Path, required=True)
    asked = parser.parse_args()
    families = asked.families.split(",")
    artifact = load_artifact(asked.artifact, checked=False)  # its physics is about to be what it was fitted to
    hashes, samples = table_hashes(asked.data, families), read_samples(asked.data, families)
    if asked.also is not None:
        more = [family for family in families if (asked.also / FILES[family]).exists()]
        hashes |= {f"{name} ({asked.also.name})": found for name, found in table_hashes(asked.also, more).items()}
        again = versions_of(asked.also, more)
        changed = {
            each for each, version in versions_of(asked.data, more).items() if again.get(each, version) != version
        }
        samples = {key: sample for key, sample in samples.items() if (key[0], key[1], key[2]) not in changed}
        for key, sample in read_samples(asked.also, more).items():
            samples[key] = Sample.joined([samples[key], sample]) if key in samples else sample
    if asked.sweeps is not None:
        samples |= sweep_samples(asked.sweeps, families)
    if asked.engines is not None:
        samples = {key: sample for key, sample in samples.items() if key[2] in asked.engines.split(",")}
    gpus = None if asked.gpus is None else {POOLED, *asked.gpus.split(",")}
    if asked.widths:
        gpus = {POOLED}
    renewed = {(key[0], key[2]) for key in samples}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fitted.npz"
        fit_artifact(samples, path, {}, lambda name: print(name, flush=True), of_gpus=gpus)
        fitted = load_artifact(path)
        new = {entry.key: fitted.find(*entry.key) for entry in fitted.entries}
        if asked.widths:
            new = {key: with_widths(artifact.find(*key), model) for key, model in new.items() if artifact.find(*key)}
        kept = {
            entry.key: artifact.find(*entry.key)
            for entry in artifact.entries
            if asked.widths or stays(entry, renewed, new) or (gpus is not None and entry.gpu not in gpus)
        }
        models = [model for _, model in sorted((kept | new).items(), key=lambda item: (item[0][1] == POOLED, item[0]))]
        provenance = {name: value for name, value in artifact.header.items() if name not in ("schema", "models")}
        provenance["data"] |= {name: found[:16] for name, found in hashes.items()}
        origin = origin_of(read_manifest(asked.artifact)["tables"] | hashes, revision())
        groups = np.union1d(artifact.fitted_groups, fitted.fitted_groups)
        save_artifact(asked.artifact, models, provenance, groups, origin=origin)
    print(f"{asked.artifact}: {len(new)} of {len(models)} models are new")


def with_widths(old: tuple[Entry, Forest], new: tuple[Entry, Forest]) -> tuple[Entry, Forest]:
    entry = new[0]
    return old[0]._replace(low=entry.low, high=entry.high, held_out_error=entry.held_out_error, near=entry.near), old[1]


def versions_of(folder: Path, families: list[str]) -> dict[tuple[str, str, str], str]:
    """The newest version of each family, GPU and engine."""
    found = {}
    for family in families:
        table = pandas.read_parquet(folder / FILES[family], columns=["gpu", "engine", "engine_version"])
        for (gpu, engine), rows in table.groupby(["gpu", "engine"]):
            found[family, gpu, engine] = max(rows.engine_version.unique(), key=_version_order)
    return found


def stays(entry: Entry, renewed: set[tuple[str, str]], new: Container[Key]) -> bool:
    """Models of other families and engines, such as those of a sweep that was not read again."""
    return (entry.family, entry.engine) not in renewed and entry.key not in new


if __name__ == "__main__":
    main()
