"""Tables, facts and the way they are printed."""

import re
from typing import Any

import pytest
from rich.text import Text

from infercast.report.layout import LEAST_WIDTH, PIPE_WIDTH, facts, grid, section, show


def test_words_are_left_and_numbers_right(text_of: Any) -> None:
    table = grid(("name", "size", "note"), [("a", "1", "x y"), ("long", "1,000", "z")], notes_at=(2,))
    lines = [line.rstrip() for line in text_of([table]).splitlines()]
    assert lines[0] == "name   size  note"
    assert set(lines[1]) == {"─"}
    assert lines[2:] == ["a         1  x y", "long  1,000  z"]


def test_only_notes_are_broken_into_lines(text_of: Any) -> None:
    row = ("a" * 30, "1,234,567", "one two three four five six seven eight nine ten")
    text = text_of([grid(("name", "size", "note"), [row])], 100)
    assert len(text.splitlines()) == 3
    narrow = text_of([grid(("name", "size", "note"), [row], notes_at=(2,))], 60)
    assert "a" * 30 in narrow
    assert "1,234,567" in narrow
    assert len(narrow.splitlines()) > 3


def test_markup_in_a_name_is_printed_as_it_is(text_of: Any) -> None:
    parts = [section("[bold]title[/]", facts([("[red]a", "[/nothing] b")])), grid(("x",), [("[link=y]z",)])]
    text = text_of(parts)
    for words in ("[bold]title[/]", "[/nothing] b", "[link=y]z"):
        assert words in text


def test_facts_stand_side_by_side(text_of: Any) -> None:
    text = text_of([section("Title", facts([("a", "1"), ("longer", "2")]))])
    assert [line.rstrip() for line in text.splitlines()] == ["Title", "  a       1", "  longer  2"]


def test_parts_are_separated_by_one_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(section("One", Text("first")), section("Two", Text("second")))
    assert capsys.readouterr().out == "One\n  first\n\nTwo\n  second\n"


def test_pipes_are_wide_and_end_without_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = "word " * (PIPE_WIDTH // 5 - 5)
    show(facts([("name", words)]), grid(("a", "b"), [("x", ""), ("longer", "")], notes_at=(1,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"name  {words}".rstrip()
    assert all(line == line.rstrip() for line in lines)


def test_narrow_terminals_are_not_squeezed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    row = ["1,234,567"] * 8
    show(grid([str(number) for number in range(8)], [row]))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert plain.splitlines()[-1].split() == row
    assert LEAST_WIDTH < len(plain.splitlines()[-1]) < PIPE_WIDTH


def test_what_can_be_narrow_is_narrow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show(facts([("name", "word " * 100)]), grid([str(number) for number in range(8)], [["1,234,567"] * 8]))
    words, table = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("\n\n")
    assert max(map(len, words.splitlines())) <= LEAST_WIDTH < max(map(len, table.splitlines()))
