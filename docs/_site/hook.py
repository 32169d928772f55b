"""What MkDocs asks while it builds the site: generated pages, and pages of the repository as the site needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from links import for_site
from pages import GENERATED

ROOT = Path(__file__).parents[2]
COPIED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that lie beside the folder of pages."""


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, and those that lie beside the folder."""
    for name, page in GENERATED.items():
        files.append(File.generated(config, name, content=page()))
    for name, source in COPIED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links and quoted code in the form that the site needs."""
    return for_site(markdown, set(files.src_uris))
