"""The options that every command has for its answer, and what they decide: tables, JSON, CSV or Markdown."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from infercast.errors import InputError
from infercast.report.layout import show


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"

    @property
    def is_data(self) -> bool:
        """Whether programs read it."""
        return self in (Form.JSON, Form.CSV)


Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON; short for --format json.")]
Format = Annotated[
    Form | None,
    typer.Option(
        "--format",
        metavar="NAME",
        show_default=False,
        help="Print the answer as table (the default), json, csv or md (Markdown).",
    ),
]
FORM, FORMAT, AS_JSON = "form", "format", "as_json"


def with_formats(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose ``form`` is what --format and --json say together; one that has no answer is left alone."""
    own = inspect.signature(command, eval_str=True).parameters
    if FORM not in own:
        return command

    def called(**given: Any) -> Any:
        form = form_of(given.pop(FORMAT), given.pop(AS_JSON))
        return command(**given, **{FORM: form})

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for name, each in own.items() if name != FORM]
    parameters += [
        inspect.Parameter(FORMAT, keyword, default=None, annotation=Format),
        inspect.Parameter(AS_JSON, keyword, default=False, annotation=Json),
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__, called.__name__ = command.__doc__, command.__name__
    return called


def form_of(format_: Form | None, as_json: bool) -> Form:
    """What both options say."""
    if as_json and format_ not in (None, Form.JSON):
        raise InputError(f"--json and --format {format_} ask for two forms; give one of them")
    return Form.JSON if as_json else format_ or Form.TABLE


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def print_result(
    form: Form,
    document: Callable[..., Any],
    tables: Callable[..., Any],
    *result: Any,
    rows: str | tuple[str, ...] | None = None,
) -> None:
    """A result in the form that was asked for: these functions make the JSON document and the tables of it.

    ``rows`` says under which keys of the document the rows of CSV are (`rows_of`).
    """
    if form is Form.JSON:
        print_json(document(*result))
    elif form is Form.CSV:
        from infercast.report.tabular import csv_text, rows_of  # noqa: PLC0415 - few ask for it

        typer.echo(csv_text(rows_of(document(*result), rows)), nl=False)
    elif form is Form.MD:
        from infercast.report.markdown import markdown  # noqa: PLC0415 - few ask for it

        typer.echo(markdown(tables(*result)), nl=False)
    else:
        show(*tables(*result))
