"""Measured runs with a probe of their machine: its host times stand in for the bundled ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infercast.bundled import read_data
from infercast.errors import FileFormatError, InputError
from infercast.forecast.deploy import deploy
from infercast.hardware.host import probe_of
from infercast.lab.validate.compare import Validation, validate
from infercast.lab.validate.measured import read_measured
from infercast.report.accuracy import render_totals
from infercast.report.terminal import Paragraph, Section

REFERENCE = read_data("hosts/probe.toml")["reference"]["python"]


def probe(factor: float) -> dict[str, Any]:
    return {"python": {name: {"p50": factor * value} for name, value in REFERENCE.items()}}


def slower(document: Any, write: Any, tmp_path: Path, **options: Any) -> tuple[float, dict[str, str]]:
    found = validate([read_measured(write(document, "runs.json.gz"))], **options)
    return found.runs[0].ttft_p50.predicted, found.hosts


def test_a_probe_in_the_file_or_beside_it_is_used_and_named(document: Any, write: Any, tmp_path: Path) -> None:
    plain, hosts = slower(document, write, tmp_path)
    assert not hosts
    inside = slower({**document, "probe_before": probe(1.0), "probe_after": probe(9.0)}, write, tmp_path)
    (tmp_path / "runs.probe.json").write_text(json.dumps(probe(3.0)))
    (tmp_path / "runs-2.probe.json").write_text("another file's")
    beside = slower(document, write, tmp_path)
    assert beside[0] == pytest.approx(inside[0])
    assert beside[0] > 1.05 * plain
    assert "runs.probe.json" in beside[1]["runs.json.gz"]
    assert "the same file" in inside[1]["runs.json.gz"]
    assert slower(document, write, tmp_path, host="measured")[0] == plain


def test_a_host_json_beside_its_runs_is_their_probe(document: Any, write: Any, tmp_path: Path) -> None:
    (tmp_path / "runs.host.json").write_text(json.dumps(probe(3.0)))
    assert "runs.host.json" in slower(document, write, tmp_path)[1]["runs.json.gz"]


def said(found: Validation) -> str:
    """What the first screen has to say of errors and host times."""
    parts = render_totals(found)
    return " ".join(
        [str(each.title) for each in parts if isinstance(each, Section)][:1]
        + [each.text for each in parts if isinstance(each, Paragraph)]
    )


def test_the_first_screen_says_whose_host_times_these_are(document: Any, write: Any) -> None:
    file = read_measured(write(document, "runs.json.gz"))
    assert "as bundled, no probe was found" in said(validate([file]))
    assert "no probe" not in said(validate([file], host="measured"))
    probed = replace(file, probe=probe_of(probe(2.0), Path("host.json")))
    assert "from host.json" in said(validate([probed]))
    assert "where files have no probe, 1" in said(validate([probed, replace(file, path=Path("other.json"))]))


def test_the_contents_of_a_probe_are_a_host() -> None:
    slow, usual = (deploy("qwen3-0.6b", "h200-sxm", host=probe(factor)).host for factor in (9.0, 1.67))
    assert slow.plan > usual.plan
    with pytest.raises(FileFormatError, match="python is missing"):
        deploy("qwen3-0.6b", "h200-sxm", host={})
    with pytest.raises(InputError, match="host 3 is no CPU's name"):
        deploy("qwen3-0.6b", "h200-sxm", host=3)  # type: ignore[arg-type]


def test_a_wrong_probe_is_named(document: Any, write: Any, tmp_path: Path) -> None:
    (tmp_path / "runs.probe.json").write_text("[]")
    with pytest.raises(FileFormatError, match=r"runs\.probe\.json: must hold one JSON object"):
        slower(document, write, tmp_path)
