"""Every command that an answer stands for gives the same numbers, to the last digit."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "robustness"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)


@pytest.mark.parametrize("kind", ["plans", "sweeps", "layouts", "energy", "speculation", "advice", "python", "pools"])
def test_printed_numbers_are_those_of_their_command(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    printed = importlib.import_module("printed")
    claims = [*getattr(printed, kind)(printed.Random(7))]
    assert claims
    assert not [(claim.command, claim.differing) for claim in claims if claim.differing]
