"""Papers' figures beside ours: every claim has a value, every figure rows, and charts show what is there."""

import pytest

from infercast.errors import UnknownNameError
from infercast.reproduce import papers as figures
from infercast.reproduce import show
from infercast.reproduce.papers import Table, figures_declared, number, paper_named, papers, table_of, written

SLOW = {"plans", "planning", "variants", "cost", "token"}
QUICK = [name for name in figures_declared() if name not in SLOW]


@pytest.mark.parametrize("name", QUICK)
def test_figures_have_rows_and_what_their_charts_show(name: str) -> None:
    figure = figures_declared()[name]
    table = figure.table
    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    chart = figure.chart
    if chart and chart["x"] != "measured":
        assert {chart["x"], *chart["y"]} <= {*table.columns}
    assert figure.is_computed or figure.command or figure.page or name in figures.RECORDED


def test_every_declared_figure_is_shown_and_has_its_numbers() -> None:
    shown = {figure.name for paper in papers().values() for figure in paper.figures}
    assert shown == {*figures_declared()}
    assert {*figures.COMPUTED} | {*figures.RECORDED} <= shown
    pages = {name for name, figure in figures_declared().items() if figure.page}
    assert pages | {"several"} == {*figures.records()["tables"]}, "benchmarks/papers/record.py tables"


def test_claims_have_a_number_in_every_cell() -> None:
    for paper in papers().values():
        for claim in paper.claims:
            for figure, row, column in claim.ours:
                if figure not in SLOW:
                    assert number(table_of(figure).cell(row, column)) is not None, claim.what


def test_errors_of_runs_are_those_of_validation() -> None:
    """The recorded runs of vLLM 0.25 are off by what docs/validation.md says, and each part contributes."""
    rows = [row for row in figures.runs() if row["engine"] == "vllm@0.25"]
    assert len(rows) == 172
    assert figures.errors_of(rows, "whole") == pytest.approx([8.4, 2.5, 2.3], abs=0.1)
    assert figures.errors_of(rows, "unseen") == pytest.approx([11.2, 9.4, 5.1], abs=0.1)
    for name in ("parts", "several"):
        whole, *parts = ([number(cell) or 0.0 for cell in row[-3:]] for row in table_of(name).rows)
        assert all(sum(part) > sum(whole) for part in parts)


def test_a_prediction_costs_little() -> None:
    assert all(float(row[1]) < 20 for row in figures.cost_of_predictions().rows)


def test_plans_are_compared_with_a_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    case = figures.Case("llama-3.1-8b", "h100-sxm", 8, "chats", 16, 256, 16)
    monkeypatch.setattr(figures, "CASES", (case,))
    row, most = figures.plans().rows
    assert (row[2], most[6]) == ("TP8", row[6])
    assert float(row[3]) == pytest.approx(float(row[5]) * float(row[6]))
    assert number(figures.cost_of_plans().rows[0][2]) == 9


def test_cells_are_found_by_the_words_of_their_row() -> None:
    table = Table(("a", "b", "c"), [["x", "1", 1.0], ["x", "2", "2.5 / 3"]])
    assert number(table.cell("x|2", "c")) == 2.5
    assert [written(each) for each in (None, 1234567, 0.12345, 12.0, "as is")] == [
        "-",
        "1,234,567",
        "0.123",
        "12",
        "as is",
    ]
    assert table.with_median("middle").rows[-1] == ["middle", 1.5, 1.75]
    assert table.only((0, 2), ("b", "1")).rows == [["x", 1.0]]


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="unknown paper"):
        paper_named("pm3lat")
    with pytest.raises(UnknownNameError, match="unknown figure of KernelSight-LM 'fig9'"):
        paper_named("ksight").figure("fig9")


def test_the_page_has_charts_and_no_script() -> None:
    figures = [figures_declared()[name] for name in ("load", "waves")]
    page = show.page([paper_named("ksight")._replace(figures=figures)], "infercast reproduce")
    assert page.count("<svg") == 4, "wide and on phones"
    assert "<script" not in page
    assert "above 30/s" in page
