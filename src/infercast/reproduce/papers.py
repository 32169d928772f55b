"""Papers, what they claim and the figures that answer it: declared in data/papers.toml, computed or recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from infercast.bundled import read_data
from infercast.errors import UnknownNameError
from infercast.reproduce.figures import COMPUTED, RECORDED, Table, number, page, written


class Claim(NamedTuple):
    what: str
    unit: str
    theirs: str
    ours: Sequence[tuple[str, str, str]]  # Figure, row and column of each part of ours
    differs: str  # In a few words

    @property
    def value(self) -> str:
        return "/".join(written(number(table_of(name).cell(row, column))) for name, row, column in self.ours)


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    title: str
    differs: str  # From what the paper shows
    command: str = ""  # Makes a recorded table again
    page: str = ""  # Where a recorded table is from, ...
    under: str = ""  # ... the heading that it is under ...
    head: str = ""  # ... and how its head begins.
    columns: Sequence[int] = ()  # Those that are shown; empty: all
    keep: Sequence[str] = ()  # A column and its values in rows that are shown; empty: all
    median: str = ""  # The name of a last row with the median of each column, if there is one
    chart: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_computed(self) -> bool:
        return self.name in COMPUTED

    @property
    def table(self) -> Table:
        return table_of(self.name).only(self.columns, self.keep)


class Paper(NamedTuple):
    name: str
    title: str
    source: str
    claims: Sequence[Claim]
    figures: Sequence[Figure]

    def figure(self, name: str) -> Figure:
        found = {each.name: each for each in self.figures}
        if name not in found:
            raise UnknownNameError(f"figure of {self.title}", name, found)
        return found[name]


@cache
def figures_declared() -> dict[str, Figure]:
    return {name: Figure(name, **each) for name, each in read_data("papers.toml")["figures"].items()}


@cache
def papers() -> dict[str, Paper]:
    declared = read_data("papers.toml")
    figures = figures_declared()
    found = {}
    for each in declared["papers"]:
        claims, shown = [Claim(**row) for row in each["claims"]], [figures[name] for name in each["figures"]]
        found[each["name"]] = Paper(**{**each, "claims": claims, "figures": shown})
    return found


def paper_named(name: str) -> Paper:
    if name not in papers():
        raise UnknownNameError("paper", name, papers())
    return papers()[name]


@cache
def table_of(figure: str) -> Table:
    """A figure's numbers: computed now, summed up from what was recorded, or as a page has them."""
    summed = COMPUTED | RECORDED
    if figure in summed:
        return summed[figure]()
    found, median = page(figure), figures_declared()[figure].median
    return found.with_median(median) if median else found
