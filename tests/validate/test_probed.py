"""Measured runs with a probe of their machine: its host times stand in for the bundled ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from infercast.bundled import read_data
from infercast.errors import FileFormatError
from infercast.lab.validate.compare import validate
from infercast.lab.validate.measured import read_measured

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


def test_a_wrong_probe_is_named(document: Any, write: Any, tmp_path: Path) -> None:
    (tmp_path / "runs.probe.json").write_text("[]")
    with pytest.raises(FileFormatError, match=r"runs\.probe\.json: must hold one JSON object"):
        slower(document, write, tmp_path)
