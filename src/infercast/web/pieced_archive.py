"""A file of which only the pieces that are read are fetched."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any


class PiecedFile(io.BytesIO):
    """A file that is somewhere else; a ``note`` says its size, that of a piece, and what pieces are called."""

    def __init__(self, note: Mapping[str, Any], fetch: Callable[[str], bytes]) -> None:
        super().__init__(bytes(note["size"]))
        self._note, self._fetch, self._have = note, fetch, set[int]()

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, fetched if they are not here yet."""
        place, piece, whole = self.tell(), self._note["piece"], self._note["size"]
        end = whole if size is None or size < 0 else min(place + size, whole)
        for number in {*range(place // piece, -(-end // piece))} - self._have:
            self._have.add(number)
            self.seek(number * piece)
            self.write(self._fetch(f"{self._note['pieces']}-{number}.bin"))
        self.seek(place)
        return super().read(size)
