"""Arrays in a zip of ``.npy`` files, found by name without reading the list of all of them.

Python's own reader takes longer to list the eight hundred arrays of an artefact than to read the few that a run needs.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np

from infercast.predict.artifact.forest import Array

END, ENTRY, LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
"""What the end of a zip, an entry of its list and a file in it begin with."""
END_BYTES, ENTRY_BYTES, LOCAL_BYTES = 22, 46, 30
STORED, DEFLATED = 0, 8


class Archive:
    """The content of a ``.npz`` file."""

    def __init__(self, content: bytes | bytearray) -> None:
        end = content.rfind(END)
        if end < 0 or len(content) < end + END_BYTES:
            raise ValueError("it is not a zip file")
        size, self._start = struct.unpack_from("<II", content, end + 12)
        self._end, self._content = self._start + size, content

    @property
    def listed(self) -> bytes:
        """The zip's own list of its files: names, sizes and checksums."""
        return bytes(self._content[self._start : self._end])

    def __getitem__(self, name: str) -> Array:
        """One array; nothing is ever unpickled."""
        return np.asarray(np.lib.format.read_array(io.BytesIO(self._read(f"{name}.npy")), allow_pickle=False))

    def _read(self, name: str) -> bytes:
        """One file of the zip, unpacked and checked."""
        content = self._content
        method, checksum, packed, size, place = self._find(name.encode())
        if content[place : place + 4] != LOCAL:
            raise ValueError(f"{name} is not where the list says")
        name_bytes, extra_bytes = struct.unpack_from("<HH", content, place + 26)
        start = place + LOCAL_BYTES + name_bytes + extra_bytes
        found = bytes(content[start : start + packed])
        if method == DEFLATED:
            found = zlib.decompress(found, wbits=-zlib.MAX_WBITS, bufsize=max(size, 1))
        elif method != STORED:
            raise NotImplementedError(f"{name} is packed by method {method}")
        if len(found) != size or zlib.crc32(found) != checksum:
            raise ValueError(f"{name} is damaged")
        return found

    def _find(self, name: bytes) -> tuple[int, int, int, int, int]:
        """Method, checksum, packed and unpacked bytes, and place, of a file in the list."""
        content, place = self._content, self._start
        while (place := content.find(name, place, self._end)) >= 0:
            entry = place - ENTRY_BYTES
            if content[entry : entry + 4] == ENTRY:
                (length,) = struct.unpack_from("<H", content, entry + 28)
                if length == len(name):
                    method, _, checksum, packed, size = struct.unpack_from("<HIIII", content, entry + 10)
                    return method, checksum, packed, size, *struct.unpack_from("<I", content, entry + 42)
            place += 1
        raise KeyError(f"{name.decode()} is not a file in the archive")
