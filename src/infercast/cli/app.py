"""The command line as typer knows it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from infercast import __version__
from infercast.cli.outputs import with_formats
from infercast.cli.registry import COMMANDS
from infercast.errors import InputError


class UsageError(InputError):
    """Words that make no command."""


class OneSentence(TyperGroup):
    """The commands; what a command line gets wrong is one sentence, like everything else that is refused."""

    def main(self, *args: Any, **others: Any) -> Any:
        """Run, and leave with the exit code."""
        try:
            code = super().main(*args, **{"prog_name": "infercast", **others, "standalone_mode": False})
        except Exception as problem:
            # Depending on its version, typer raises the errors of click or a copy of them.
            if not hasattr(problem, "format_message"):
                raise
            if type(problem).__name__ == "NoArgsIsHelpError":
                sys.exit(2)  # the help is on the screen
            raise UsageError(usage_sentence(problem)) from None
        sys.exit(code if isinstance(code, int) else 0)


class WholeNames(TyperCommand):
    """A command whose help breaks long options and defaults on a narrow terminal, where typer would cut them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Called by typer for --help."""
        from typer import rich_utils  # noqa: PLC0415 - loaded for help alone

        for name in ("highlighter", "negative_highlighter", "Columns"):
            made = getattr(rich_utils, name, None)
            if made is not None and not isinstance(made, partial):
                setattr(rich_utils, name, partial(_folded, made))
        super().format_help(ctx, formatter)


def _folded(make: Callable[..., Any], given: Any) -> Any:
    """What typer makes of texts, all of which may be broken anywhere."""
    found = make(given)
    for text in getattr(found, "renderables", [found]):
        if hasattr(text, "overflow"):
            text.overflow = "fold"
    return found


def usage_sentence(problem: Any) -> str:
    """What is wrong with a command line, and where it is explained."""
    said = " ".join(problem.format_message().split()).rstrip(".").replace(". Did you", "; did you")
    context = getattr(problem, "ctx", None)
    asked = f" {context.info_name}" if context is not None and context.parent is not None else ""
    return f"{said[:1].lower()}{said[1:]}{'' if said.endswith('?') else ';'} see infercast{asked} --help"


def make_app(asked: str | None, *, completing: bool = False) -> typer.Typer:
    """The command line with the command that is asked for, or with the names of all where none is.

    What completes words in a shell takes a while to load, so it is there where it is asked for.
    """
    app = typer.Typer(
        name="infercast",
        cls=OneSentence,
        help="Forecast LLM inference on GPUs before anyone rents them.",
        epilog="Every command takes --json, and --format csv or md. A model is a bundled name, a Hugging Face "
        "config.json or a folder with one; a GPU is a bundled name or your own TOML file.",
        no_args_is_help=True,
        add_completion=completing or asked is None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    if asked is not None:
        app.command(asked, cls=WholeNames)(load_command(asked))
        return app
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_only_listed)
    return app


def load_command(name: str) -> Callable[..., Any]:
    """The function behind a command."""
    home, _, function = COMMANDS[name].home.partition(":")
    command: Callable[..., Any] = getattr(importlib.import_module(f"infercast.cli.commands.{home}"), function)
    return with_formats(command)


def _only_listed() -> None:
    """Stands for a command that was not asked for."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


def root(
    version: bool = typer.Option(
        False, "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Forecast LLM inference on GPUs before anyone rents them."""
