"""The files of the page: those in its folder when the server starts, and nothing else, whatever path is asked for."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
    ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8", ".woff2": "font/woff2",
}  # fmt: skip


class File(NamedTuple):
    body: bytes
    media_type: str
    tag: str


def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """All files of a folder by their paths below it; links are left out. Requests are looked up here, not on a disk."""
    found = {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    }
    if "index.html" in found:
        found[""] = found["index.html"]
    return found


def _read(path: Path) -> File:
    body = path.read_bytes()
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
