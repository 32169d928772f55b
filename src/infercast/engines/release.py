"""Versions in the names of engines: which release of ours is nearest to one that somebody names.

``vllm@0.27.1`` is 0.27, a version after the newest one that is known has its rules, and one before the oldest has that
one's: who runs another release gets the nearest forecast there is, and is told so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.+-]?(?:post|rc|dev|a|b)\d*.*|\+.*)?", re.ASCII)
"""As packages have them: ``0.27.1``, ``v0.32.0rc1``, ``0.25.0+cu130``."""


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers: 0.5.16 is after 0.5.9."""
    return tuple(int(part) for part in version.split("."))


def nearest_version(name: str, known: Iterable[str]) -> str | None:
    """The release of an engine with its version that is nearest to this one: the last that is no newer, or the first.

    None where the name has no version that can be read, or nobody knows such an engine.
    """
    family, _, text = name.partition("@")
    found = VERSION.fullmatch(text)
    releases = {numbers(each.partition("@")[2]): each for each in known if each.partition("@")[0] == family}
    if not found or not releases:
        return None
    asked = numbers(found[1])
    return releases[max((each for each in releases if each <= asked), default=min(releases))]


def is_same_version(name: str, release: str) -> bool:
    """Whether a name is that of a release or of one of its patches."""
    found = VERSION.fullmatch(name.partition("@")[2])
    own = numbers(release.partition("@")[2])
    return found is not None and numbers(found[1])[: len(own)] == own
