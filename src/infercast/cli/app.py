"""The command line as typer knows it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer

from infercast import __version__
from infercast.cli.commands import COMMANDS


def make_app(asked: str | None) -> typer.Typer:
    """The command line with the command that is asked for, or with the names of all where none is."""
    app = typer.Typer(
        name="infercast",
        help="Forecast LLM inference on GPUs before anyone rents them.",
        epilog="Every command takes --json. A model is a bundled name, a Hugging Face config.json or a folder with "
        "one; a GPU is a bundled name or your own TOML file.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    if asked is not None:
        app.command(asked)(load_command(asked))
        return app
    for name, (_, sentence) in COMMANDS.items():
        app.command(name, help=sentence)(_only_listed)
    return app


def load_command(name: str) -> Callable[..., Any]:
    """The function behind a command."""
    module, function = COMMANDS[name][0].split(".")
    command: Callable[..., Any] = getattr(importlib.import_module(f"infercast.cli.{module}"), function)
    return command


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
