"""Tables, facts and the way they are printed."""

import re
from typing import Any

import pytest

from infercast.report.terminal import (
    LEAST_WIDTH,
    PIPE_WIDTH,
    Facts,
    Field,
    FittingTable,
    Grid,
    Paragraph,
    Section,
    show,
    styled,
)


def test_words_are_left_and_numbers_right(text_of: Any) -> None:
    table = Grid(("name", "size", "note"), [("a", "1", "x y"), ("long", "1,000", "z")], notes_at=(2,))
    lines = [line.rstrip() for line in text_of([table]).splitlines()]
    assert lines[0] == "name   size  note"
    assert set(lines[1]) == {"─"}
    assert lines[2:] == ["a         1  x y", "long  1,000  z"]


def test_only_notes_are_broken_into_lines(text_of: Any) -> None:
    row = ("a" * 30, "1,234,567", "one two three four five six seven eight nine ten")
    text = text_of([Grid(("name", "size", "note"), [row])], 100)
    assert len(text.splitlines()) == 3
    narrow = text_of([Grid(("name", "size", "note"), [row], notes_at=(2,))], 60)
    assert "a" * 30 in narrow
    assert "1,234,567" in narrow
    assert len(narrow.splitlines()) > 3


def test_markup_in_a_name_is_printed_as_it_is(text_of: Any) -> None:
    parts = [Section("[bold]title[/]", Facts([("[red]a", "[/nothing] b")])), Grid(("x",), [("[link=y]z",)])]
    text = text_of(parts)
    for words in ("[bold]title[/]", "[/nothing] b", "[link=y]z"):
        assert words in text


def test_facts_stand_side_by_side(text_of: Any) -> None:
    text = text_of([Section("Title", Facts([("a", "1"), ("longer", "2")]))])
    assert [line.rstrip() for line in text.splitlines()] == ["Title", "  a       1", "  longer  2"]


def test_parts_are_separated_by_one_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(Section("One", styled("first")), Section("Two", styled("second")))
    assert capsys.readouterr().out == "One\n  first\n\nTwo\n  second\n"


def test_pipes_are_wide_and_end_without_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = "word " * (PIPE_WIDTH // 5 - 5)
    show(Facts([("name", words)]), Grid(("a", "b"), [("x", ""), ("longer", "")], notes_at=(1,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"name  {words}".rstrip()
    assert all(line == line.rstrip() for line in lines)


def on_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *parts: Any
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show(*parts)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()]


def test_columns_come_in_blocks_where_a_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Grid(["name", *"abcdefg"], [["first", *["1,234,567"] * 7], ["second", *["7,654,321"] * 7]])
    lines = on_terminal(capsys, monkeypatch, LEAST_WIDTH, table)
    assert max(map(len, lines)) <= LEAST_WIDTH
    assert [line.split() for line in lines if line.startswith("name")] == [
        ["name", "a", "b", "c"],
        ["name", "d", "e", "f"],
        ["name", "g"],
    ]
    assert sum(line.count("1,234,567") for line in lines) == 7
    assert on_terminal(capsys, monkeypatch, 100, table)[2].split() == ["first", *["1,234,567"] * 7]


def test_rows_stand_alone_where_not_even_two_columns_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Grid(("name", "value"), [("n" * 25, "1" * 25), ("m" * 25, "2" * 25)])
    lines = on_terminal(capsys, monkeypatch, LEAST_WIDTH, table)
    assert lines == [f"name   {'n' * 25}", f"value  {'1' * 25}", "", f"name   {'m' * 25}", f"value  {'2' * 25}"]


def test_a_terminal_below_the_least_width_is_taken_for_that(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = on_terminal(capsys, monkeypatch, 20, Facts([("name", "word " * 100)]))
    assert 20 < max(map(len, lines)) <= LEAST_WIDTH


def test_columns_that_are_left_out_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[Field[str]] = [
        Field("", str, "name"),
        Field("", lambda row: "1" * 20, "a", rank=1),
        Field("", lambda row: "2" * 20, "b", rank=2),
    ]
    lines = on_terminal(capsys, monkeypatch, LEAST_WIDTH, FittingTable(columns, ["x"]))
    assert lines[0].split() == ["name", "a"]
    assert " ".join(lines[3:]) == "not shown at this width: b; --format csv has all"


def test_paragraphs_are_as_wide_as_is_easy_to_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, widest in ((160, 78), (60, 60)):
        lines = on_terminal(capsys, monkeypatch, columns, Paragraph("word " * 100))
        assert widest - 5 < max(map(len, lines)) <= widest


def test_columns_of_one_title_are_told_apart_where_they_are_left_out(text_of: Any) -> None:
    columns: list[Field[str]] = [
        Field("", str, "TTFT"),
        Field("", str, "80 %", rank=2),
        Field("", str, "tokens/s"),
        Field("", str, "80 %", rank=1),
    ]
    wide = "1" * (LEAST_WIDTH // 4)
    text = " ".join(text_of([FittingTable(columns, [wide])], width=LEAST_WIDTH).split())
    assert "not shown at this width: 80 % of TTFT; --format csv has all" in text


def test_a_cell_of_several_lines_stays_in_its_column(text_of: Any) -> None:
    lines = text_of([Grid(("name", "size"), [("a", "1\n2"), ("b", "")])]).splitlines()
    assert lines == ["name  size", "─" * 10, "a        1", "         2", "b"]
