"""Every command that an answer stands for gives the same numbers, to the last digit."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "robustness"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)


# Seeds that draw small models and few requests.
SEEDS = {
    "plans": 15, "sweeps": 7, "layouts": 39, "energy": 55, "speculation": 7, "advice": 1, "python": 7, "pools": 7,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "seed"), SEEDS.items(), ids=SEEDS)
def test_printed_numbers_are_those_of_their_command(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    printed = importlib.import_module("printed")
    claims = [*getattr(printed, kind)(printed.Random(seed))]
    assert claims
    assert not [(claim.command, claim.differing) for claim in claims if claim.differing]
