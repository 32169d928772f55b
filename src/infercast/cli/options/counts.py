"""Whole numbers as people write them on a command line."""

from __future__ import annotations

import re

import typer


def human_readable_int(text: str | int) -> int:
    """A whole number as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768, ``1.5m`` is 1,500,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", str(text).strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a whole number such as 8192, 8k (8,000) or 8K (8,192)") from None
    number, unit = match.groups()
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(number) * 1000**power)
    if "." in number:
        raise typer.BadParameter(
            f"{text!r}: {unit} means {1024**power:,}, which takes no decimals; {unit.lower()} does"
        )
    return int(number) << 10 * power
