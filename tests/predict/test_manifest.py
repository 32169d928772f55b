"""Manifests: an artefact is used only with the archive, the features and the physics that it was fitted with."""

import hashlib
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from infercast.bundled import DATA
from infercast.errors import FileFormatError
from infercast.predict.board_power import POWER
from infercast.predict.ceilings import CEILINGS
from infercast.predict.fitted import (
    KERNELS,
    POOLED,
    Entry,
    load_artifact,
    manifest_path,
    read_manifest,
    save_artifact,
)
from infercast.predict.operators import INPUTS

ROOT = Path(__file__).parents[2]
KINDS = {"kernels": KERNELS, "ceilings": CEILINGS, "power": POWER, "operators": INPUTS}
ARCHIVES = sorted(path.stem for path in (DATA / "fitted").glob("*.npz"))
BUNDLED = [(name, KINDS[name]) for name in ARCHIVES]


@pytest.fixture
def path(tmp_path, random_forest):
    """An artefact of two models."""
    values = {"rows": 10, "offset": 0.1, "shrink": 1.0, "low": -0.1, "high": 0.2, "held_out_error": 0.05}
    entries = [
        Entry("gemm", "h200-sxm", "sweep", "fp8", **values),
        Entry("moe", POOLED, "vllm", "bf16/triton", **values),
    ]
    path, origin = tmp_path / "own.npz", {"date": "2026-11-16", "revision": "abc", "tables": {"gemm.parquet": "12"}}
    save_artifact(path, [(entry, random_forest()) for entry in entries], {}, np.array([1]), origin=origin)
    return path


@pytest.mark.parametrize(("name", "inputs"), BUNDLED)
def test_bundled_artefacts_were_fitted_to_this_source(name, inputs):
    archive = DATA / "fitted" / f"{name}.npz"
    manifest = read_manifest(archive)
    advice = "run python benchmarks/regression/stamp.py, which says whether predictions moved"
    assert manifest["source_sha256"] == inputs.source_hash, advice
    assert load_artifact(archive, inputs).entries
    assert manifest["features"] == {name: list(features) for name, features in inputs.features.items()}


def test_the_measurements_here_are_those_that_were_fitted_on():
    tables = read_manifest(DATA / "fitted/kernels.npz")["tables"]
    published = "sparse-and-recurrent/"  # a folder of tables that are not ours
    own = {name: found for name, found in tables.items() if "/" in name and not name.startswith(published)}
    assert own
    for name, found in own.items():
        if not (ROOT / "measurements").exists():
            pytest.skip("measurements are not part of a source distribution")
        assert hashlib.sha256((ROOT / "measurements" / name).read_bytes()).hexdigest() == found, name


def test_a_manifest_says_what_it_is_of(path):
    manifest = read_manifest(path)
    assert (manifest["date"], manifest["revision"], manifest["tables"]) == ("2026-11-16", "abc", {"gemm.parquet": "12"})
    assert manifest["features"]["moe"] == list(KERNELS.features["moe"])
    assert len(load_artifact(path).entries) == 2


def refusal(path, inputs=KERNELS):
    with pytest.raises(FileFormatError) as refused:
        load_artifact(path, inputs)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_an_artefact_without_a_manifest_is_refused(path):
    manifest_path(path).unlink()
    assert "has no manifest own.json beside it; copy it along, or fit it again" in refusal(path)


def test_the_archive_of_another_fit_is_refused(path):
    path.write_bytes((DATA / "fitted/kernels.npz").read_bytes())
    assert "own.npz: is not the archive that own.json describes; take both from one fit" in refusal(path)


def test_other_features_are_refused_by_name(path):
    features = {**KERNELS.features, "moe": ("something", *KERNELS.features["moe"][1:])}
    first = KERNELS.features["moe"][0]
    said = refusal(path, replace(KERNELS, features=features))
    assert f"(moe, number 1: {first} then, something now); fit it again with `infercast fit`" in said


def test_other_physics_is_refused_and_stamped_where_it_means_the_same(path, regression):
    stamp = regression("stamp").stamp
    changed = replace(KERNELS, sources=("predict/fitted.py",))
    assert "was fitted to other physics" in refusal(path, changed)
    assert "stamp.py" in refusal(path, changed)
    before = manifest_path(path).read_text(encoding="utf-8").splitlines()
    assert stamp(path, changed)
    assert not stamp(path, changed)
    after = manifest_path(path).read_text(encoding="utf-8").splitlines()
    assert [line for line in after if line not in before] == [
        f' "source_sha256": "{changed.source_hash}",', '  "predict/fitted.py"'
    ]  # fmt: skip
    assert load_artifact(path, changed)


def test_ceilings_are_no_kernels(path):
    assert "holds kernels, where ceilings are needed" in refusal(path, CEILINGS)


@pytest.mark.parametrize("text", ["", "{", '{"kind": "kernels"}', "[]", "\xe9"])
def test_a_torn_manifest_is_named(path, text):
    manifest_path(path).write_text(text, encoding="latin-1")
    assert "own.json: " in refusal(path)


@pytest.fixture
def regression(monkeypatch):
    """A program of that folder by its name."""
    folder = ROOT / "benchmarks" / "regression"
    if not folder.exists():
        pytest.skip("benchmarks are not part of a source distribution")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture
def stamping(monkeypatch, path, regression):
    """The command, with one case in place of hundreds and an artefact that was fitted to other physics."""
    stamping = regression("stamp")
    case = regression("cases").Case("kernel h200-sxm gemm m=1 n=4096 k=4096")
    monkeypatch.setattr(stamping, "read_cases", lambda: [case])
    text = manifest_path(path).read_text(encoding="utf-8")
    text = text.replace(KERNELS.source_hash, "0" * 64)
    manifest_path(path).write_text(text, encoding="utf-8")
    expected = regression("predictions").compute([case])
    return lambda **moved: (monkeypatch.setattr(stamping, "read_expected", lambda: expected | moved), stamping.main)[1]


def test_stamping_needs_predictions_that_stand_still(stamping, path, capsys):
    moved = {"kernel h200-sxm gemm m=1 n=4096 k=4096: seconds": 1.0}
    assert stamping(**moved)([str(path)]) == 1
    assert "not stamped" in capsys.readouterr().out
    assert "was fitted to other physics" in refusal(path)
    assert stamping()([str(path)]) == 0
    assert load_artifact(path)


def test_stamping_a_physics_that_moved_must_be_said(stamping, path):
    moved = {"kernel h200-sxm gemm m=1 n=4096 k=4096: seconds": 1.0}
    assert stamping(**moved)(["--moved", str(path)]) == 0
    assert load_artifact(path)
