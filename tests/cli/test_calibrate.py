"""``infercast calibrate``, ``--calibration`` and ``--save-result`` on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

MODEL, GPU = "qwen2.5-0.5b", "l4"
LOAD = ("-n", 40, "--input-len", 200, "--output-len", 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrate")


@pytest.fixture
def result(infercast: Any, tmp_path: Path) -> Path:
    """A forecast, saved as the benchmark saves a run."""
    path = tmp_path / "run.json"
    infercast("simulate", MODEL, "--gpu", GPU, "--rate", 4, *LOAD, "--save-result", path, "--save-detailed")
    return path


def test_a_saved_forecast_calibrates_to_nothing_new(infercast: Any, result: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.toml"
    found = infercast("calibrate", result, "--model", MODEL, "--gpu", GPU, "--out", out, "--json").json
    assert {each.get("factor", 1.0) for each in found["factors"].values()} == {1.0}
    assert found["factors"]["path"]["extra_ms"] == 0
    assert found["error_left_out"] is None
    assert out.read_text().startswith("# What measured results say")
    shown = infercast("calibrate", result, "--model", MODEL, "--gpu", GPU, "--out", out)
    assert "What the results say" in shown.out
    assert "One result" in shown.out
    command = f"vllm serve {MODEL} --max-num-seqs 64"
    pasted = infercast("calibrate", result, "--command", command, "--gpu", GPU, "--out", out, "--json").json
    assert pasted["deployment"]["model"] == MODEL


def test_every_command_that_simulates_takes_a_calibration(infercast: Any, result: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.toml"
    infercast("calibrate", result, "--model", MODEL, "--gpu", GPU, "--out", out, "--json")
    out.write_text(
        out.read_text().replace("[decode]  # GPU time of decode steps\nfactor = 1", "[decode]\nfactor = 2", 1)
    )
    base = ("--gpu", GPU, *LOAD, "--json")
    plain = infercast("simulate", MODEL, "--rate", 4, *base).json
    slow = infercast("simulate", MODEL, "--rate", 4, *base, "--calibration", out).json
    assert slow["tpot_ms"]["p50"] > 1.1 * plain["tpot_ms"]["p50"]
    assert any("calibrated with calibration.toml" in text for text in slow["caveats"])
    other = infercast("simulate", MODEL, "--rate", 4, *base, "--calibration", out, "--quantization", "fp8").json
    assert any("host factors alone" in text for text in other["caveats"])
    for words in (
        ("sweep", MODEL, "--rates", "2,4", *base),
        ("layouts", MODEL, "--gpus", "1", *base),
        ("explain-command", f"vllm serve {MODEL}", "--rate", 4, "--no-advice", *base),
        ("disaggregate", MODEL, "--prefill-gpu", GPU, "--decode-gpu", GPU, "--rate", 4, *LOAD, "--json"),
    ):
        before, after = (infercast(*words, *more) for more in ((), ("--calibration", out)))
        assert after.code == 0, after.err
        assert after.out != before.out, words[0]


def test_a_result_is_named_in_a_folder_as_the_benchmark_does(infercast: Any, tmp_path: Path) -> None:
    infercast("simulate", MODEL, "--gpu", GPU, "--concurrency", 4, *LOAD, "--save-result", tmp_path)
    (written,) = tmp_path.iterdir()
    assert written.name == f"openai-infqps-concurrency4-{MODEL}-19700101-000000.json"
    document = json.loads(written.read_text())
    assert document["max_concurrency"] == 4
    assert document["request_rate"] == "inf"
    assert "ttfts" not in document


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("calibrate", "none.json", "--model", MODEL, "--gpu", GPU), "cannot be read"),
        (("calibrate", "none.json", "--gpu", GPU), "say what was served"),
        (("calibrate", "none.json", "--model", MODEL, "--gpu", GPU, "--out", "x.json"), "must end in .toml"),
        (
            ("calibrate", "none.json", "--model", MODEL, "--gpu", GPU, "--calibration", "x.toml"),
            "what this command writes",
        ),
        (("simulate", MODEL, "--gpu", GPU, "--rate", 1, "--calibration", "none.toml"), "no such file"),
        (("simulate", MODEL, "--gpu", GPU, "--rate", 1, "--save-detailed"), "needs --save-result"),
        (("simulate", MODEL, "--gpu", GPU, "--rate", 1, "--save-result", "run.txt"), "must end in .json"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    infercast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[Any, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in infercast(*words).sentence


def test_a_small_model_is_bound_by_its_host(infercast: Any) -> None:
    words = ("simulate", "qwen2.5-0.5b", "--gpu", "h200-sxm", "--rate", 4, *LOAD)
    assert infercast(*words, "--json").json["host_bound"] is True
    assert "bound by the host" in infercast(*words, "--full").out
