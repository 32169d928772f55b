"""The words of the field, each with one plain sentence: what reports, the web page and the documents explain."""

from __future__ import annotations

from functools import cache

from infercast.bundled import read_data
from infercast.lazy_classes import NamedTuple


class Term(NamedTuple):
    key: str
    term: str
    name: str  # What an abbreviation stands for, or the abbreviation of a longer term; may be empty
    also: tuple[str, ...]  # Other spellings under which a text may hold it
    group: str
    meaning: str

    @property
    def title(self) -> str:
        """Term and long form together: TTFT (time to first token)."""
        return f"{self.term} ({self.name})" if self.name else self.term


@cache
def glossary() -> tuple[Term, ...]:
    return tuple(
        Term(key, each["term"], each.get("name", ""), each.get("also", ()), each["group"], each["meaning"])
        for key, each in read_data("glossary.toml").items()
    )


@cache
def spellings() -> dict[str, Term]:
    found: dict[str, Term] = {}
    for term in glossary():
        for text in (term.key, term.term, *term.also):
            found.setdefault(text.lower(), term)
    return found


def meaning(text: str) -> str | None:
    """The sentence for a term by any of its spellings, whatever their case; None for a word that is not in it."""
    term = spellings().get(text.lower())
    return term and term.meaning
