"""Artefacts: what is written is what is read, and what is damaged is said in one sentence."""

import json

import numpy as np
import pytest

from infercast.errors import FileFormatError
from infercast.predict.fitted import POOLED, Entry, load_artifact, save_artifact


def entry(**changes):
    values = {"family": "gemm", "gpu": "h200-sxm", "engine": "vllm", "variant": "bf16", "rows": 10, "offset": 0.1}
    return Entry(**{**values, "shrink": 1.0, "low": -0.1, "high": 0.2, "held_out_error": 0.05, **changes})


@pytest.fixture
def path(tmp_path, random_forest):
    path = tmp_path / "kernels.npz"
    models = [(entry(), random_forest()), (entry(gpu=POOLED, shrink=0.8), random_forest(trees=5))]
    save_artifact(path, models, {"gpus": ["h200-sxm"]}, np.array([3, 1, 2]))
    return path


def test_round_trip(path, random_forest):
    artifact = load_artifact(path)
    assert artifact.entries == (entry(), entry(gpu=POOLED, shrink=0.8))
    assert artifact.header["gpus"] == ["h200-sxm"]
    assert artifact.fitted_groups.tolist() == [1, 2, 3]
    found, forest = artifact.find("gemm", POOLED, "vllm", "bf16")
    rows = np.random.default_rng(0).normal(size=(20, 7))
    assert found.shrink == 0.8
    assert np.allclose(forest.predict(rows), random_forest(trees=5).predict(rows), atol=0.02)  # half precision


def test_what_is_not_there_is_not_found(path):
    assert load_artifact(path).find("gemm", "a100-sxm", "vllm", "bf16") is None


def test_nothing_else_is_left_beside_it(path):
    assert sorted(each.name for each in path.parent.iterdir()) == ["kernels.json", "kernels.npz"]


def test_another_schema_is_refused(path):
    with np.load(path) as arrays:
        content = dict(arrays)
    header = json.loads(content["header"].tobytes())
    content["header"] = np.frombuffer(json.dumps({**header, "schema": 99}).encode(), dtype=np.uint8)
    np.savez(path, **content)
    with pytest.raises(FileFormatError, match=r"schema 99.*fit it again"):
        load_artifact(path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 torn"])
def test_damage_is_named(tmp_path, content):
    path = tmp_path / "torn.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"torn\.npz"):
        load_artifact(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_artifact(tmp_path / "nothing.npz")


def test_a_truncated_artefact_is_named(path):
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FileFormatError, match=r"kernels\.npz"):
        load_artifact(path)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, header=np.array([object()], dtype=object))
    with pytest.raises(FileFormatError):
        load_artifact(path)


def test_models_that_were_fitted_since_take_the_place_of_others(path, random_forest):
    artifact = load_artifact(path).with_models(
        [(entry(rows=99), random_forest()), (entry(family="moe"), random_forest())]
    )
    assert artifact.find("gemm", "h200-sxm", "vllm", "bf16")[0].rows == 99
    assert artifact.find("gemm", POOLED, "vllm", "bf16")[0].rows == 10
    assert [each.family for each in artifact.entries] == ["gemm", "gemm", "moe"]
