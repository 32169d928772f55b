"""Whole numbers as people write them on a command line."""

from __future__ import annotations

import typer

from infercast.units import whole_number


def human_readable_int(text: str | int) -> int:
    """A whole number as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768, ``1.5m`` is 1,500,000."""
    try:
        return whole_number(str(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
