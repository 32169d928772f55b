"""Links of the repository's pages, rewritten for the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```python (\S+/\S+)$", re.MULTILINE)
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files outside `docs/`, and their pages of the site."""


def for_site(text: str, pages: Collection[str], page: str = "index.md", moved: Mapping[str, str] | None = None) -> str:
    """A page with links to pages of the site; a link to any other file of the repository becomes plain text.

    ``page`` is the name on the site, ``moved`` maps files outside `docs/` to their names there.
    """
    moved = {"README.md": "index.md", **MOVED, **(moved or {})}
    source = next((file for file, name in moved.items() if name == page and file != "README.md"), f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        image, words, path, anchor = found[1], found[2], found[3], found[4] or ""
        if not path or "://" in path:
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = moved.get(file, file.removeprefix("docs/"))
        target = posixpath.relpath(name, posixpath.dirname(page) or ".")
        return f"{image}[{words}]({target}{anchor})" if image or name in pages else words

    return FENCE.sub(r'```python title="\1"', LINK.sub(link, text))
