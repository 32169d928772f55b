"""``infercast measure`` as users call it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infercast.cli.commands import measure
from infercast.engines.base import engine_named
from infercast.lab.measure.rows import sweep_cases

MOE = len(sweep_cases(["moe"]))
PYTHON_AT = engine_named().default_host().python_at
SAME = {
    "python": {"dict_loop_20k_us": {"p50": 1513.0, "p10": 1400.0, "p90": 3000.0}, "objects_5k_us": {"p50": 738.0}},
    "machine": {"cpu": {"Model name": "a fast one", "CPU(s)": "16"}, "python": "3.12.3"},
}


def sentence(result: tuple[Any, str, str]) -> str:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("infercast: ")
    assert err.count("\n") == 1
    return err


def test_without_torch_nothing_is_written(infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for words in ((), ("--engine", "torch")):
        assert "measuring needs torch" in sentence(infercast("measure", "--out", tmp_path / "new", *words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--minutes", "0"), "--minutes must be above 0, not 0"),
        (("--minutes", "-3"), "--minutes must be above 0, not -3"),
        (("--minutes", "nan"), "--minutes must be above 0, not nan"),
        (("--families", "gem"), "unknown kernel family 'gem'; did you mean gemm?"),
        (("--families", ","), "--families names none of gemm"),
        (("--engine", "sglang"), "unknown engine 'sglang'; known: torch, vllm"),
        (("--host", "--families", "gemm"), "--host times no kernels"),
    ],
)
def test_what_makes_no_sense_is_said(infercast: Any, tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    assert expected in sentence(infercast("measure", "--out", tmp_path / "new", *words))
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(infercast: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in sentence(infercast("measure", "--out", tmp_path / "file"))


def test_a_sweep_ends_with_a_table_and_the_next_command(infercast: Any, gpu: Any, tmp_path: Path) -> None:
    gpu.unable = {"attention_mixed": NotImplementedError("PyTorch alone has no kernel for that")}
    code, out, err = infercast("measure", "--out", tmp_path, "--families", "moe,attention_mixed", "--minutes", "60")
    assert (code, err) == (0, "")
    assert f"{MOE:,}" in out
    assert "attention_mixed: PyTorch alone has no kernel for that" in out
    assert f"infercast fit DATA --measurements {tmp_path} --out kernels.npz" in " ".join(out.split())
    assert (tmp_path / "h200-sxm" / "moe.parquet").exists()


def test_the_same_as_json(infercast: Any, gpu: Any, tmp_path: Path) -> None:
    gpu.seconds_a_case = 1.0
    code, out, err = infercast("measure", "--out", tmp_path, "--families", "moe", "--minutes", "2", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["rows"] == {"moe": result["measured"]}
    assert result["left"] == MOE - result["measured"] > 0
    assert (result["gpu"], result["engine"], result["skipped"]) == ("h200-sxm", "torch", {})
    _, text, _ = infercast("measure", "--out", tmp_path, "--families", "moe", "--minutes", "1")
    assert "shapes left: the same command goes on with them" in text


def test_ctrl_c_is_no_loss(infercast: Any, gpu: Any, tmp_path: Path) -> None:
    gpu.interrupt_after = 1
    code, out, err = infercast("measure", "--out", tmp_path, "--families", "moe")
    assert (code, out) == (130, "")
    assert "the same command takes the sweep up again" in err


def test_a_bar_on_a_terminal_only(infercast: Any, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, err = infercast("measure", "--out", tmp_path, "--families", "moe", "--json")
    assert code == 0
    assert json.loads(out)["measured"] == MOE
    assert "measuring" in err


def test_time_left_is_the_sooner_of_two_ends() -> None:
    assert measure.seconds_left(0, 100, 0.0, 600.0) == 600.0
    assert measure.seconds_left(50, 100, 30.0, 600.0) == 30.0
    assert measure.seconds_left(1, 100, 30.0, 600.0) == 570.0
    assert measure.seconds_left(1, 100, 700.0, 600.0) == 0.0


def test_the_host_is_told_and_written_where_it_was_asked(
    infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "probe_host", lambda: SAME)
    monkeypatch.chdir(tmp_path)
    code, out, _ = infercast("measure", "--host")
    assert code == 0
    text = " ".join(out.split())
    assert "1.00 times as long as on the reference host" in text
    assert "its speed changed meanwhile" in text
    assert "infercast simulate MODEL --gpu GPU --rate 8 --host host.json" in text
    assert json.loads(Path("host.json").read_text()) == SAME
    for where, path in (("mine", "mine/host.json"), ("one/two.json", "one/two.json")):
        found = json.loads(infercast("measure", "--host", "--out", where, "--json")[1])
        assert (found["file"], found["launch"], found["probe"]) == (path, None, SAME)
        assert found["factors"]["python"] == pytest.approx(PYTHON_AT**-0.06)
        assert json.loads(Path(path).read_text()) == SAME


def test_tables_need_a_folder(infercast: Any) -> None:
    assert "--out DIR" in sentence(infercast("measure"))
