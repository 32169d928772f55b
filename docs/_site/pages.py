"""Pages of the site that are not files of `docs/`: generated ones, and those kept elsewhere in the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import catalog_page
import command_line_page
import glossary_page
import http_page
import json_page
import python_page

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, Callable[[], str]] = {
    "glossary.md": glossary_page.page,
    "reference-catalog.md": catalog_page.page,
    "reference-command-line.md": command_line_page.page,
    "reference-http.md": http_page.page,
    "reference-json.md": json_page.page,
    "reference-python.md": python_page.page,
}
COPIED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages in the navigation, and their files."""
RECORDS = {"log.md": "benchmarks/LOG.md"} | {
    f"results/{path.name}": f"benchmarks/results/{path.name}"
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
}
"""Records of measurements: on the site, and reached by links only."""
