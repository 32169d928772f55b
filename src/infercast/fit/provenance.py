"""Where data comes from, in a form that can be checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from infercast.fit.tables import FILES


def data_hash(folder: Path, families: Sequence[str]) -> dict[str, str]:
    """A hash of each file that was read."""
    return {
        FILES[family]: hashlib.sha256((folder / FILES[family]).read_bytes()).hexdigest()[:16]
        for family in families
        if (folder / FILES[family]).exists()
    }
