"""``infercast fit`` as users call it, and the errors of what it wrote."""

import hashlib
import json
import sys

import pytest

from infercast.cli.main import run
from infercast.predict.fitted import read_manifest
from training import evaluate


@pytest.fixture
def infercast(monkeypatch, capsys):
    """Run a command, or the script that scores; returns its exit code, output and errors."""

    def call(*words):
        scores = words[0] == "evaluate"
        monkeypatch.setattr(sys, "argv", [*(["evaluate.py", *words[1:]] if scores else ["infercast", *words])])
        sys.argv[:] = map(str, sys.argv)
        code = 0
        try:
            (evaluate.main if scores else run)()
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def fitted(tables, tmp_path_factory):
    return tmp_path_factory.mktemp("own") / "own.npz"


def test_fit_then_evaluate_then_estimate(infercast, tables, fitted):
    code, out, _ = infercast("fit", tables, "--out", fitted, "--gpus", "a100-sxm,h100-sxm", "--families", "gemm")
    assert (code, "3 models of 686 rows" in out) == (0, True)
    manifest = read_manifest(fitted)
    assert manifest["tables"] == {"gemm.parquet": hashlib.sha256((tables / "gemm.parquet").read_bytes()).hexdigest()}
    assert manifest["versions"]["catboost"][0].isdigit()
    assert manifest["features"]["gemm"][0] == "log_m"
    code, out, _ = infercast(
        "evaluate", tables, "--artifact", fitted, "--gpus", "h200-sxm", "--families", "gemm", "--json"
    )
    assert code == 0
    scores = json.loads(out)["families"]["gemm"]["gpus"]["h200-sxm"]
    assert set(scores) == {"rows", "mape", "median_ape", "p90_ape", "coverage80", "by_dtype"}
    code, out, _ = infercast("evaluate", tables, "--artifact", fitted, "--gpus", "h200-sxm", "--families", "gemm")
    assert (code, "h200-sxm" in out) == (0, True)
    few = ("--tier", "few-shot", "--anchors", 16, "--gpus", "h200-sxm", "--families", "gemm", "--json")
    code, out, _ = infercast("evaluate", tables, "--artifact", fitted, *few)
    assert json.loads(out)["overall"]["rows"] == 343 - 16
    sizes = ("--m", 64, "--n", 2048, "--k", 2048)
    words = ("estimate", "gemm", *sizes, "--gpu", "a100-sxm", "--predictor", fitted, "--json")
    assert json.loads(infercast(*words)[1])["source"] == "measured"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--families", "gem"), "unknown family 'gem'; did you mean gemm?"),
        (("--tier", "best"), "unknown tier 'best'"),
        (("--gpus", "a100-sxm", "--families", "gemm", "--artifact", "gone.npz"), "gone.npz"),
    ],
)
def test_what_makes_no_sense_is_said(infercast, tables, words, sentence):
    code, out, err = infercast("evaluate", tables, *words)
    assert (code, out) == (2, "")
    assert sentence in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fit", "nowhere", "--out", "x.npz"), "DATA: nowhere is not a folder"),
        (("evaluate", "nowhere"), "DATA: nowhere is not a folder"),
        (("fit", "TABLES", "--out", "nowhere/x.npz"), "--out: nowhere is not a folder"),
        (("fit", "TABLES", "--out", "x.npz", "--gpus", "h999"), "unknown GPU 'h999'"),
        (("fit", "TABLES", "--out", "x.npz", "--gpus", "b200"), "has no rows of the chosen GPUs and families"),
        (("evaluate", "TABLES", "--tier", "few-shot", "--anchors", "0"), "--anchors must be at least 1, not 0"),
    ],
)
def test_what_is_not_there_is_said(infercast, tables, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = infercast(*(tables if word == "TABLES" else word for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_in_other_units_is_refused(infercast, make_gemm_table, tmp_path):
    table = make_gemm_table()
    mixed = table.latency_us.where(table.gpu != "h100-sxm", table.latency_us / 1000)
    table.assign(latency_us=mixed).to_parquet(tmp_path / "gemm.parquet")
    for words in (("fit", tmp_path, "--out", tmp_path / "x.npz"), ("evaluate", tmp_path, "--tier", "measured")):
        code, out, err = infercast(*words, "--families", "gemm")
        assert (code, out) == (2, "")
        assert "gemm.parquet: row 343, column 'latency_us'" in err
        assert "milliseconds" in err
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("damage", ["empty", "half", "middle", "text"])
def test_a_damaged_artefact_is_named(infercast, artifact, tables, tmp_path, damage):
    content = artifact.path.read_bytes()
    third = len(content) // 3
    path = tmp_path / "damaged.npz"
    path.write_bytes(
        {
            "empty": b"",
            "half": content[: len(content) // 2],
            "middle": content[:third] + bytes(len(content) - third - 4096) + content[-4096:],
            "text": b"not an artefact",
        }[damage]
    )
    words = ("--artifact", path, "--gpus", "h200-sxm", "--families", "gemm", "--tier", "unseen")
    code, out, err = infercast("evaluate", tables, *words)
    assert (code, out) == (2, "")
    assert "damaged.npz" in err
    assert err.count("\n") == 1


def test_nothing_is_left_of_a_fit_that_fails(infercast, tables, tmp_path):
    code, _, err = infercast("fit", tables, "--out", tmp_path / "x.npz", "--families", "moe")
    assert code == 2
    assert "moe.parquet" in err
    assert list(tmp_path.iterdir()) == []


def test_anchors_correct_a_gpu_that_was_not_measured(infercast, artifact, make_gemm_table, tmp_path):
    # A few points of an L40S that runs everything at half the speed that physics says.
    table = make_gemm_table(["l40s"]).iloc[::12]
    table.assign(latency_us=2.0 * table.latency_us).to_parquet(tmp_path / "gemm.parquet")
    words = ("estimate", "gemm", "--m", 1024, "--n", 2048, "--k", 2048, "--gpu", "l40s", "--predictor", artifact.path)
    before = json.loads(infercast(*words, "--json")[1])
    after = json.loads(infercast(*words, "--anchors", tmp_path, "--json")[1])
    assert (before["source"], after["source"]) == ("unseen", "few-shot")
    assert after["seconds"] / before["seconds"] == pytest.approx(2.0, rel=0.15)


def test_anchors_of_another_gpu_are_refused(infercast, artifact, tables):
    words = ("estimate", "gemm", "--m", 1, "--n", 2, "--k", 3, "--gpu", "l40s", "--predictor", artifact.path)
    code, _, err = infercast(*words, "--anchors", tables)
    assert (code, "no kernel family with at least 4 rows of l40s" in err) == (2, True)
    assert "leave out --predictor roofline" in infercast(*words[:-1], "roofline", "--anchors", tables)[2]
