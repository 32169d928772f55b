"""Say that the physics of the artefacts still means what it meant when they were fitted, after its source has changed.

    python benchmarks/regression/stamp.py                 refuses if any prediction of predictions.txt moved
    python benchmarks/regression/stamp.py --moved         stamps all the same: forests now correct another physics
    python benchmarks/regression/stamp.py MINE.npz        an artefact of your own, by the same proof

Only the hashes of the source change in a manifest. Where features or archive differ, an artefact must be fitted again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cases import read_cases
from infercast.bundled import DATA
from infercast.predict.board_power import POWER
from infercast.predict.ceilings import CEILINGS
from infercast.predict.fitted import KERNELS, Inputs, load_artifact, manifest_path, read_manifest, write_document
from infercast.predict.identity import kernel_profile
from infercast.predict.learned import Learned
from infercast.predict.operators import INPUTS
from moves import describe, moves_between
from predictions import compute, read_expected

FITTED = DATA / "fitted"


def stamp(archive: Path, inputs: Inputs) -> bool:
    """Say in a manifest that the sources as they are now mean the same; False if it says so already."""
    known = read_manifest(archive)
    stamped = known | {"source_sha256": inputs.source_hash, "sources": [*inputs.sources]}
    if stamped != known:
        write_document(manifest_path(archive), stamped)
    return stamped != known


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Stamp artefacts whose physics changed its form alone.")
    parser.add_argument("artifacts", nargs="*", type=Path, metavar="FILE.npz")
    parser.add_argument("--moved", action="store_true", help="stamp although predictions moved")
    asked = parser.parse_args(words)
    predictor = Learned(load_artifact(FITTED / "kernels.npz", checked=False), kernel_profile())
    known = read_expected()
    moved = moves_between(known, compute(read_cases(), predictor))
    print(describe(moved, known))
    if moved and not asked.moved:
        print(
            "\nnot stamped: fit the artefacts again, or say --moved if forests shall correct this physics as they are"
        )
        return 1
    for path in asked.artifacts or sorted(FITTED.glob("*.npz")):
        inputs = {each.kind: each for each in (CEILINGS, POWER, INPUTS)}.get(read_manifest(path)["kind"], KERNELS)
        print(f"{path}: {'stamped' if stamp(path, inputs) else 'is stamped already'}")
        load_artifact(path, inputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
