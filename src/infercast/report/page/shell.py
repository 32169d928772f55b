"""The frame of every page: head and style, what it says at the top, caveats, how it was made, and its glossary."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from html import escape
from importlib import resources
from typing import NamedTuple

from infercast.report.page.elements import Section, facts_list, items
from infercast.report.page.terms import explain_words, glossary_list

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded from anywhere, and a browser sees to it."""
SEVERAL = 4
"""Sections of a page from which on a list of them stands at its top."""


class Made(NamedTuple):
    """How a page came about."""

    version: str
    command: str = ""
    """What was typed; empty where nothing was."""
    date: str = ""
    """The day as in 2026-11-16; empty on pages that are to be the same whenever they are made."""

    @property
    def line(self) -> str:
        """For the top of a page, as HTML."""
        parts = ["A forecast, not a measurement", f"infercast {self.version}", *self._day]
        return " \u00b7 ".join(f"<span>{escape(part)}</span>" for part in parts)

    @property
    def _day(self) -> list[str]:
        if not self.date:
            return []
        day = date.fromisoformat(self.date)
        return [f"{day.day} {day:%B %Y}"]

    @property
    def footer(self) -> str:
        """The last line."""
        return f"A forecast by infercast {self.version}; nothing on this page was measured."

    @property
    def section(self) -> Section:
        """For the end of a page."""
        rows = [("version", f"infercast {self.version}"), *(("date", each) for each in self._day)]
        command = f"<p>Command:</p><pre><code>{escape(self.command)}</code></pre>" if self.command else ""
        return Section("made", "How this page was made", command + facts_list(rows), "Command")


class Content(NamedTuple):
    """What a page says."""

    title: str
    lead: str
    sections: Sequence[Section]
    caveats: Sequence[str]
    top: str = ""
    """HTML below the title: warnings and cards."""


def style_sheet() -> str:
    """The style of all pages."""
    return resources.files("infercast").joinpath("report/page.css").read_text(encoding="utf-8")


def whole_page(content: Content, made: Made) -> str:
    """A page without script or network: it opens in any browser, in light and dark, on a phone, and prints."""
    sections = [*content.sections]
    if content.caveats:
        sections.append(Section("caveats", "Caveats", items(content.caveats)))
    sections.append(made.section)
    header = (
        f'<header><h1>{escape(content.title)}</h1><p class="lead">{escape(content.lead)}</p>'
        f'<p class="made">{made.line}</p>{content.top}</header>'
    )
    body, terms = explain_words("\n".join([header, "<main>", *(section.html for section in sections)]))
    if terms:
        sections.append(Section("glossary", "Glossary", glossary_list(terms)))
        body = f"{body}\n{sections[-1].html}"
    links = ""
    if len(sections) >= SEVERAL:
        links = f'<nav aria-label="Sections">{" ".join(section.link for section in sections)}</nav>'
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(content.title)} - infercast</title>",
            f"<style>\n{style_sheet()}</style></head><body>",
            body.replace("</header>", f"{links}</header>", 1),
            f"</main><footer>{escape(made.footer)}</footer>",
            "</body></html>\n",
        ]
    )
