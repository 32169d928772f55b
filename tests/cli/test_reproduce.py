"""``infercast reproduce``: a paper, and one of its figures in each form."""

from typing import Any

from infercast.reproduce.papers import paper_named


def test_a_figure_in_each_form(infercast: Any) -> None:
    text = infercast("reproduce", "ksight", "load").out
    assert "above 30/s" in text
    assert max(map(len, text.splitlines())) <= 100
    assert infercast("reproduce", "ksight", "load", "--json").json["rows"][0]["load"] == "up to 8/s"
    assert infercast("reproduce", "ksight", "load", "--format", "csv").out.startswith("load,runs,TTFT")


def test_a_paper_has_its_claims_and_figures_on_one_screen(infercast: Any) -> None:
    text = infercast("reproduce", "ksight").out
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert all(f"  {figure.name} " in text for figure in paper_named("ksight").figures)
    assert "15.4/12.8/3.0 %" in text


def test_what_is_not_known_is_one_sentence(infercast: Any) -> None:
    assert "unknown paper 'pm3lat'" in infercast("reproduce", "pm3lat").sentence
    assert "known: " in infercast("reproduce", "ksight", "fig9").sentence
    assert "--html" in infercast("reproduce", "ksight", "--html", "page.txt").sentence
