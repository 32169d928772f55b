"""What a kernel's name tells: which library it comes from, and the tile each of its thread blocks works on."""

from __future__ import annotations

import re

LONGEST = 64
NVJET = re.compile(r"_(\d+x\d+)_(\d+x\d+)_(\d+x\d+)_")
"""Tile, depth and stages of the loop, cluster."""
CUTE_TUPLE = re.compile(r"tuple<((?:\s*(?:cute::)?C<\d+>\s*,?)+)>")
CUTE_NUMBER = re.compile(r"C<(\d+)>")


def tile_of(name: str) -> str:
    """The tile of a kernel, in the words of its library; empty where the name does not say."""
    found = NVJET.search(name)
    if found:
        return "_".join(found.groups())
    tuples = ("x".join(CUTE_NUMBER.findall(numbers)) for numbers in CUTE_TUPLE.findall(name))
    return "_".join(list(dict.fromkeys(tuples))[:3])


def short_name(name: str) -> str:
    """Enough of a name to know the kernel again: template arguments of C++ names say little and are long."""
    plain = name.removeprefix("void ")
    if "device_kernel<" in plain:
        plain = plain.partition("device_kernel<")[2]
    for marker in ("enable_sm90_or_later<", "enable_sm80_to_sm89<"):
        plain = plain.partition(marker)[2] or plain
    return re.split(r"[<(]", plain, maxsplit=1)[0][:LONGEST]
