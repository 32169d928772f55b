"""Called by MkDocs while it builds the site: adds the pages of `pages.py`, and adapts links."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from links import for_site
from pages import COPIED, GENERATED, RECORDS, ROOT


def on_files(files: Files, config: Any) -> Files:
    """Add pages that are not files of the folder."""
    for name, page in GENERATED.items():
        files.append(File.generated(config, name, content=page()))
    for name, source in (COPIED | RECORDS).items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links and quoted code in the form that the site needs."""
    moved = {source: name for name, source in (COPIED | RECORDS).items()}
    return for_site(markdown, set(files.src_uris), page.file.src_uri, moved)
