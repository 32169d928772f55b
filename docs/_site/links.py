"""What a page says in the repository, in the form that the site needs."""

from __future__ import annotations

import re
from collections.abc import Collection

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```python (\S+/\S+)$", re.MULTILINE)
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files beside the folder of pages that the site has pages of."""


def for_site(text: str, pages: Collection[str]) -> str:
    """A page whose links lead to pages of the site; a link to any other file of the repository becomes its words."""

    def link(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        if not path or "://" in path:
            return found[0]
        bare = path.removeprefix("../").removeprefix("docs/")
        name = OUTSIDE.get(bare, bare)
        return f"[{words}]({name}{anchor})" if name in pages else words

    return FENCE.sub(r'```python title="\1"', LINK.sub(link, text))
