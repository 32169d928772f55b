"""The glossary as a page, from the file that the report and the web page use as well."""

from __future__ import annotations

from itertools import groupby

from infercast.glossary import glossary

INTRODUCTION = """# Glossary

The words of the field as infercast uses them, by topic. The report and the web page show the same sentences on
hover. This page is generated from the file that all three use, `data/glossary.toml`.
"""


def page() -> str:
    """Every term with its sentence, and an anchor of its key to link to."""
    parts = [INTRODUCTION]
    for group, terms in groupby(glossary(), key=lambda term: term.group):
        parts.append(f"## {group}\n")
        for term in terms:
            name = f" ({term.name})" if term.name else ""
            parts.append(f'<span id="{term.key}"></span>**{term.term}**{name}\n:   {term.meaning}\n')
    return "\n".join(parts)
