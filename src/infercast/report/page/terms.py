"""Words of the field, explained where the pointer rests, where a finger taps, and in a list at the end of a page."""

from __future__ import annotations

import re
from functools import cache
from html import escape

from infercast.glossary import Term, glossary, spellings

MARKED = re.compile(
    r'(?P<opening><section\b[^>]*>|<header>)|(?P<tag><(?:th|dt)\b[^>]*>|<div class="name">)(?P<text>[^<]+)'
)
"""Where words are explained: names of columns, rows, facts and cards; a section explains each word once."""
TOO_COMMON = {"measured", "step", "host", "engine", "kernel", "interval"}
"""Spellings that would be marked in every second line."""


@cache
def _pattern() -> re.Pattern[str]:
    """Any spelling, the longest first, as a whole word."""
    texts = sorted((text for text in spellings() if text not in TOO_COMMON), key=lambda text: (-len(text), text))
    return re.compile(rf"(?<![\w-])(?:{'|'.join(re.escape(escape(text)) for text in texts)})(?![\w-])", re.IGNORECASE)


def explain_words(html: str) -> tuple[str, list[Term]]:
    """A page whose names hold marked words, and the terms that were marked, in the order of the glossary."""
    used: set[str] = set()
    here: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        term = spellings()[_plain(found[0])]
        if term.key in here:
            return found[0]
        here.add(term.key)
        used.add(term.key)
        return (
            f'<span class="term" tabindex="0" aria-describedby="term-{term.key}">{found[0]}'
            f'<span class="tip" aria-hidden="true"><b>{escape(term.title)}</b> {escape(term.meaning)}</span></span>'
        )

    def visit(found: re.Match[str]) -> str:
        if found["opening"]:
            here.clear()
            return found[0]
        return found["tag"] + _pattern().sub(mark, found["text"], count=1)

    marked = MARKED.sub(visit, html)
    return marked, [term for term in glossary() if term.key in used]


def _plain(text: str) -> str:
    """A spelling as the glossary has it."""
    return text.lower().replace("&amp;", "&")


def glossary_list(terms: list[Term]) -> str:
    """Terms and what they mean."""
    rows = [f'<dt>{escape(each.title)}</dt><dd id="term-{each.key}">{escape(each.meaning)}</dd>' for each in terms]
    return f'<dl class="glossary">{"".join(rows)}</dl>'
