"""Pages that are generated when the site is built, by their names."""

from __future__ import annotations

from collections.abc import Callable

import command_line_page
import glossary_page
import http_page
import json_page
import python_page

GENERATED: dict[str, Callable[[], str]] = {
    "glossary.md": glossary_page.page,
    "reference-command-line.md": command_line_page.page,
    "reference-http.md": http_page.page,
    "reference-json.md": json_page.page,
    "reference-python.md": python_page.page,
}
