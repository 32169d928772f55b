"""The option that every command has, and what it decides: JSON or tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from infercast.report.layout import show

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")]


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def print_result(as_json: bool, document: Callable[..., Any], tables: Callable[..., Any], *result: Any) -> None:
    """A result as the JSON document or as the tables that these functions make of it."""
    if as_json:
        print_json(document(*result))
    else:
        show(*tables(*result))
