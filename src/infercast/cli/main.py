"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import importlib
import sys

import typer

from infercast import __version__
from infercast.errors import InfercastError

# Where each command lives, in the order of the help. Only the one that is asked for is imported.
COMMANDS = {
    "simulate": "simulate.command",
    "kernels": "kernels.command",
    "diagnose": "diagnose.command",
    "memory": "memory.command",
    "layouts": "layouts.command",
    "disaggregate": "disaggregate.command",
    "price": "price.command",
    "gpus": "catalog.gpus",
    "models": "catalog.models",
    "validate": "validate.command",
    "measure": "measure.command",
    "fit": "fit.fit",
    "evaluate": "fit.evaluate",
}


def make_app(asked: str | None) -> typer.Typer:
    """The command line with the command that is asked for, or with all of them."""
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
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        module, function = COMMANDS[name].split(".")
        app.command(name)(getattr(importlib.import_module(f"infercast.cli.{module}"), function))
    return app


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


def run() -> None:
    """The console script: an error of ours is one sentence and exit code 2, anything else is a bug."""
    try:
        make_app(sys.argv[1] if len(sys.argv) > 1 else None)()
    except InfercastError as problem:
        typer.echo(f"infercast: {problem}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
