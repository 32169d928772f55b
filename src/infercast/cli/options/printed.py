"""The option that every command has: JSON in place of tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")]


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))
