"""An archive of forests of which only the pieces that are asked for are fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from infercast.predict.fitted import END_BYTES, ENTRY_BYTES, LOCAL_BYTES, Archive

Fetch = Callable[[str], Any]  # the bytes of a file next to the page, as the browser holds them


class PiecedArchive(Archive):
    """An archive that is somewhere else; ``content`` is the note that stands for it, or the archive itself."""

    fetch: Fetch

    def __init__(self, content: bytes) -> None:
        self._note: dict[str, Any] | None = None
        if content.startswith(b"PK"):
            super().__init__(content)
            return
        note = self._note = json.loads(content)
        self._have: set[int] = set()
        self._whole = bytearray(note["size"])
        first_tail = 131_072  # bytes at the end that surely hold the end of the list of files, and mostly the list
        self._get(max(0, note["size"] - first_tail), note["size"])
        super().__init__(self._whole)
        self._get(self._start, self._end + END_BYTES)

    def _read(self, name: str) -> bytes:
        if self._note is not None:
            _, _, packed, _, place = self._find(name.encode())
            self._get(place, place + LOCAL_BYTES + ENTRY_BYTES + len(name) + packed)
        return super()._read(name)

    def _get(self, start: int, end: int) -> None:
        assert self._note is not None
        size = self._note["piece"]
        for number in range(start // size, -(-min(end, self._note["size"]) // size)):
            if number not in self._have:
                self._have.add(number)
                content = bytes(type(self).fetch(f"{self._note['pieces']}-{number}.bin"))
                self._whole[number * size : number * size + len(content)] = content
