"""``infercast``: commands that ask one question each."""

from __future__ import annotations

import sys

import typer

from infercast import __version__
from infercast.cli import catalog, kernels, memory, simulate, validate
from infercast.errors import InfercastError

app = typer.Typer(
    name="infercast",
    help="Forecast LLM inference on GPUs before anyone rents them.",
    epilog="Every command takes --json. A model is a bundled name, a Hugging Face config.json or a folder with one; "
    "a GPU is a bundled name or your own TOML file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate")(simulate.command)
app.command("kernels")(kernels.command)
app.command("memory")(memory.command)
app.command("gpus")(catalog.gpus)
app.command("models")(catalog.models)
app.command("validate")(validate.command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Forecast LLM inference on GPUs before anyone rents them."""


def run() -> None:
    """The console script: an error of ours is one sentence and exit code 2, anything else is a bug."""
    try:
        app()
    except InfercastError as problem:
        typer.echo(f"infercast: {problem}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        sys.exit(1)
