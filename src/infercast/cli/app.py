"""The command line as typer knows it: its commands, their completion in a shell, and one sentence for each mistake."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from infercast import __version__
from infercast.cli.commands import COMMANDS
from infercast.cli.outputs import Form, form_of
from infercast.errors import InputError
from infercast.units import AUTO, whole_number

LISTS = {
    "models": "models.library:model_names",
    "gpus": "hardware:gpu_names",
    "engines": "engines.base:FAMILIES engines.base:engines",
    "hosts": "hardware.host:host_cpus",
    "networks": "hardware.load:networks",
    "routers": "serve.fleet.router:POLICIES",
}  # The names of each list of the catalogue; loaded only when the tab key is pressed


def command_to_complete(environment: Mapping[str, str] = os.environ) -> str:
    """The command to complete options of; empty while its name is still being typed."""
    if "COMP_WORDS" in environment:  # bash
        words, place = environment["COMP_WORDS"].split(), int(environment.get("COMP_CWORD", "1"))
        return words[1] if place > 1 and len(words) > 1 else ""
    text = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = text.split()
    return words[1] if len(words) > 2 or (len(words) == 2 and text.endswith(" ")) else ""


def offer(catalogue: str) -> Callable[[str], list[str]] | None:
    if catalogue not in LISTS:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known: list[str] = []
        for source in LISTS[catalogue].split():
            module, _, name = source.partition(":")
            found = getattr(importlib.import_module(f"infercast.{module}"), name)
            known += found() if callable(found) else found
        return [f"{before}{comma}{each}" for each in known if each.startswith(last)]

    return complete


def human_readable_int(text: str | int) -> int:
    """A whole number as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768, ``auto`` a length that fits."""
    try:
        return AUTO if text == "auto" else whole_number(str(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def _parameter(option: Any) -> inspect.Parameter:
    kind: Any = {whole_number: int, list: list[str]}.get(option.type, option.type)
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind | None if default is None else kind, _typer_option(option)],
    )  # fmt: skip


def _typer_option(option: Any) -> Any:
    common: dict[str, Any] = {
        "metavar": option.value_name, "help": option.help, "rich_help_panel": option.panel,
        "show_default": option.shows_default, "autocompletion": offer(option.catalogue),
    }  # fmt: skip
    if option.argument:
        return typer.Argument(**common)
    parser = human_readable_int if option.type is whole_number else None
    return typer.Option(option.spelled, *filter(None, [option.short]), parser=parser, **common)


Full = Annotated[
    bool, typer.Option("--full", "-v", metavar="", help="Print all tables, not one screen; short for --format full.")
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON; short for --format json.")]
Format = Annotated[
    Form | None,
    typer.Option(
        "--format", metavar="NAME", show_default=False,
        help="Print the answer as table (one screen, the default), full, json, csv or md (Markdown).",
    ),
]  # fmt: skip
FORMAT, AS_JSON, IN_FULL = "format", "as_json", "in_full"


def with_formats(command: Callable[..., Any], about: str) -> Callable[..., Any]:
    """A command with one parameter ``form`` for --format, --json and --full."""

    def called(**given: Any) -> Any:
        form = form_of(given.pop(FORMAT), as_json=given.pop(AS_JSON), full=given.pop(IN_FULL))
        return command(**given, form=form)

    keyword = inspect.Parameter.KEYWORD_ONLY
    if hasattr(command, "options"):  # of the table
        own = [inspect.Parameter("ctx", keyword, annotation=typer.Context), *map(_parameter, command.options())]
    else:
        signature = inspect.signature(command, eval_str=True)
        own = [each.replace(kind=keyword) for each in signature.parameters.values() if each.name != "form"]
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *own,
            inspect.Parameter(FORMAT, keyword, default=None, annotation=Format),
            inspect.Parameter(AS_JSON, keyword, default=False, annotation=Json),
            inspect.Parameter(IN_FULL, keyword, default=False, annotation=Full),
        ]
    )
    called.__doc__, called.__name__ = about, command.__name__
    return called


class UsageError(InputError):
    """Words that make no command."""


class OneSentence(TyperGroup):
    """The commands; what a command line gets wrong is one sentence, like everything else that is refused."""

    def main(self, *args: Any, **others: Any) -> Any:
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
    """A command with help that wraps long options and defaults on a narrow terminal, where typer would cut them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
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
    said = " ".join(problem.format_message().split()).rstrip(".").replace(". Did you", "; did you")
    context = getattr(problem, "ctx", None)
    asked = f" {context.info_name}" if context is not None and context.parent is not None else ""
    return f"{said[:1].lower()}{said[1:]}{'' if said.endswith('?') else ';'} see infercast{asked} --help"


def make_app(asked: str | None, *, completing: bool = False) -> typer.Typer:
    """The command line with one command, or the names of all; completion, which is slow to load, is optional."""
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
    about = COMMANDS[name]
    return with_formats(about.load(), f"{about.help}\n\n{about.details}")


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
