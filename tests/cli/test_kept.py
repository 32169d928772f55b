"""A question that is asked again is answered from the disk, and only then."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infercast.cli import kept
from infercast.cli.commands import COMMANDS
from infercast.engines import tables
from infercast.forecast import progress
from infercast.forecast.system import System
from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.predict.learned import Learned, make_predictor

ASKED = ("simulate", "qwen2.5-0.5b", "--gpu", "l4", "--rate", "2", "-n", "30", "--output-len", "9", "--json")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The requests of every simulation that is run, with answers kept in a folder of this test."""
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "answers"))
    monkeypatch.setattr(progress, "_cuts", [])
    found: list[int] = []
    serve = System.serve

    def counted(self: System, workload: Any, *others: Any) -> Any:
        found.append(len(workload.requests))
        return serve(self, workload, *others)

    monkeypatch.setattr(System, "serve", counted)
    return found


def entries(tmp_path: Path, kind: str = "json") -> list[Path]:
    return sorted((tmp_path / "answers").glob(f"*.{kind}"))


def test_the_second_time_nothing_is_simulated(infercast: Callable[..., Any], runs: list[int], tmp_path: Path) -> None:
    first = infercast(*ASKED)
    assert runs
    assert first.code == 0
    runs.clear()
    assert infercast(*ASKED) == first
    assert not runs
    assert len(entries(tmp_path)) == 1
    assert infercast(*ASKED[:-1], "--seed", "3", "--json").out != first.out
    assert runs


def test_what_is_damaged_is_written_anew(infercast: Callable[..., Any], runs: list[int], tmp_path: Path) -> None:
    first = infercast(*ASKED)
    (place,) = entries(tmp_path)
    good = place.read_bytes()
    for content in (b"", b"\x80\x04N.", b'{"text": "nonsense"}', b'{"notes": [], "text": "x", "digest": 1}'):
        place.write_bytes(content)
        runs.clear()
        assert infercast(*ASKED) == first
        assert runs, content
        assert place.read_bytes() == good


def test_it_can_be_left_out(
    infercast: Callable[..., Any], runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = infercast(*ASKED, "--no-cache")
    assert first.code == 0
    monkeypatch.setenv(kept.VARIABLE, "off")
    assert infercast(*ASKED) == first
    assert not (tmp_path / "answers").exists()


def test_a_file_that_is_named_counts_with_its_content(
    infercast: Callable[..., Any], runs: list[int], tmp_path: Path
) -> None:
    trace = tmp_path / "requests.jsonl"
    rows = [{"timestamp": 500 * number, "input_length": 200, "output_length": 20} for number in range(20)]
    answers = []
    for count in (20, 19):
        trace.write_text("\n".join(map(json.dumps, rows[:count])))
        answers.append(infercast("simulate", "qwen2.5-0.5b", "--gpu", "l4", "--trace", trace, "--json").json)
    assert [each["workload"]["requests"] for each in answers] == [20, 19]


def test_what_the_time_limit_cut_is_computed_again(
    infercast: Callable[..., Any], runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_cuts", ["a run"])
    assert infercast(*ASKED).code == 0
    assert not (tmp_path / "answers").exists()


def test_refusals_and_commands_that_write_are_not_kept(
    infercast: Callable[..., Any], runs: list[int], tmp_path: Path
) -> None:
    assert infercast("simulate", "no-such-model", "--gpu", "l4", "--rate", "2").code == 2
    assert infercast(*ASKED, "--requests-out", tmp_path / "rows.csv").code == 0
    assert not entries(tmp_path)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, runs: list[int]) -> list[object]:
    """The products that are timed for the table of a step timer."""
    found: list[object] = []
    seconds = Learned.seconds

    def counted(self: Learned, op: Any, gpu: Any) -> Any:
        found.extend([op] if isinstance(op, Gemm) and np.size(op.m) > 1 else [])
        return seconds(self, op, gpu)

    monkeypatch.setattr(Learned, "seconds", counted)
    return found


def test_kernels_that_one_question_timed_are_known_to_the_next(
    infercast: Callable[..., Any], timed: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ("--slo", "ttft_p99<9s")

    def ask(*others: str) -> Any:
        timed.clear()
        monkeypatch.setattr(tables, "_known", {})
        return infercast(*ASKED, *others)

    plain = ask(*limit, "--no-cache")
    assert timed
    assert not entries(tmp_path, "tables")
    ask()
    assert timed
    (place,) = entries(tmp_path, "tables")
    good = place.read_bytes()
    assert ask(*limit).out == plain.out
    assert not timed, "only the SLO differs"
    for content in (b"", b"0", b"\x80\x04N.", good[:-9], good[:40] + b"7" + good[41:], good[::-1]):
        place.write_bytes(content)
        for answer in entries(tmp_path):
            answer.unlink()
        assert ask(*limit).out == plain.out, content
        assert timed, content
        assert tables.Shelf("", place.read_bytes()).grids


def test_times_of_two_commands_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, bytes] = {}
    gpu, predictor = load_gpu("l4"), make_predictor()
    first, second = Gemm(np.array([1, 2]), 64, 64), Gemm(np.array([1, 3]), 64, 64)
    with tables.kept_by("release", lambda name: files.get(name, b""), files.__setitem__):
        monkeypatch.setattr(tables, "_known", {})
        known = [tables.grid_seconds(predictor, op, gpu) for op in (first, second)]
        ((name, alone),) = [(shelf.name, shelf) for shelf, _, _ in tables._shelves.values()]
        other = tables.Shelf(name)
        other.grids = {digest: alone.grids.pop(digest) for digest in [*alone.grids][:1]}
        files[name] = other.content  # another process has written meanwhile
    assert len(tables.Shelf(name, files[name]).grids) == 2
    with tables.kept_by("release", lambda name: files.get(name, b""), files.__setitem__):
        monkeypatch.setattr(tables, "_known", {})
        monkeypatch.setattr(Learned, "seconds", None)
        for op, seconds in zip((first, second), known, strict=True):
            assert np.array_equal(tables.grid_seconds(predictor, op, gpu), seconds)
    monkeypatch.undo()
    monkeypatch.setattr(tables, "_known", {})
    with tables.kept_by("release", lambda name: files.get(name, b""), files.__setitem__):
        tables.grid_seconds(predictor, Gemm(np.array([1, 5]), 64, 64), gpu)
        tables.write_shelves(most=20)
    assert len(tables.Shelf(name, files[name]).grids) == 3, "what this one used and added, not what others add"


def test_few_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 3)
    for number in range(6):
        kept.keep(tmp_path / "answers" / f"{number}.json", [], f"answer {number}")
    assert len(entries(tmp_path)) == 3
    assert kept.find(tmp_path / "answers" / "5.json") == ([], "answer 5")
    monkeypatch.setattr(kept, "MOST_BYTES", 1000)
    kept.keep(tmp_path / "answers" / "6.json", [], "x" * 1000)
    assert len(entries(tmp_path)) == 3, "one entry never takes all of the room"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("a file where a folder should be")
    kept.keep(tmp_path / "answers" / "0.json", [], "answer")
    assert kept.find(tmp_path / "answers" / "0.json") is None


def test_every_option_with_a_path_is_known_to_read_or_to_write() -> None:
    reading = {"--trace", "--anchors", "--measurements", "--kernel-file", "--calibration", "--prices", "--arrivals-of"}
    for name in kept.COMMANDS:
        command = COMMANDS[name].load()
        paths = {option.spelled for option in command.options() if option.type in (Path, list[Path])}  # type: ignore[attr-defined]
        assert paths <= reading | set(kept.WRITING), name
