"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.main import get_command

from infercast.cli.app import COMMANDS, load_command, make_app

INTRODUCTION = """# Reference: command line

Every command and every option, as `infercast COMMAND -h` prints them. This page is generated from the code when the
site is built. What all commands have in common is in [the command line](command-line.md).
"""


def page() -> str:
    """The whole page: a table of commands, then a section for each."""
    rows = [f"| [`infercast {name}`](#{name}) | {command.help} |" for name, command in COMMANDS.items()]
    parts = [INTRODUCTION, "| command | answers |", "| --- | --- |", *rows, ""]
    for name in COMMANDS:
        parts += section(name)
    return "\n".join(parts).rstrip() + "\n"


def section(name: str) -> list[str]:
    """One command: what it does, examples, and its options by group."""
    command = of_name(name)
    sentence, example = words_of(load_command(name).__doc__ or "")
    arguments = " ".join(
        each.make_metavar(context_of(command)) for each in command.params if each.param_type_name == "argument"
    )
    lines = [f"## {name}", "", sentence, "", "```", f"infercast {name} {arguments} [OPTIONS]".replace("  ", " "), "```"]
    if example:
        lines += ["", "For example:", "", "```", *example, "```"]
    for title, members in groups_of(command.params).items():
        lines += ["", f"**{title}**", "", "| option | default | meaning |", "| --- | --- | --- |"]
        lines += [row(each, context_of(command)) for each in members]
    return [*lines, ""]


def of_name(name: str) -> Any:
    """The command as click knows it."""
    whole: Any = get_command(make_app(name))
    return whole.commands[name] if hasattr(whole, "commands") else whole


def context_of(command: Any) -> Any:
    """Where a command is run, which click asks for to write the name of an argument."""
    return command.make_context(command.name, [], resilient_parsing=True)


def words_of(documentation: str) -> tuple[str, list[str]]:
    """The sentences about a command, and the command lines that it gives as examples."""
    lines = [line.strip() for line in documentation.splitlines()]
    examples = [line for line in lines if line.startswith(("infercast ", "kubectl ", "vllm "))]
    said = [line for line in lines if line not in examples and not line.lower().startswith("for example")]
    return " ".join(" ".join(said).split()), examples


def groups_of(parameters: Iterable[Any]) -> dict[str, list[Any]]:
    """Options by the group that help shows them in; arguments come first."""
    groups: dict[str, list[Any]] = {}
    for each in parameters:
        if getattr(each, "hidden", False):
            continue
        first = "Arguments" if each.param_type_name == "argument" else "Options"
        groups.setdefault(getattr(each, "rich_help_panel", None) or first, []).append(each)
    return groups


def row(parameter: Any, context: Any) -> str:
    """One option as a row of a table."""
    if parameter.param_type_name == "argument":
        names = f"`{parameter.make_metavar(context)}`"
    else:
        words = [*parameter.opts, *parameter.secondary_opts]
        value = "" if parameter.is_flag else parameter.metavar or parameter.type.name.upper()
        words[-1] = f"{words[-1]} {value}".rstrip()
        names = ", ".join(f"`{name}`" for name in words)
    return f"| {names} | {default_of(parameter)} | {cell(parameter.help or '')} |"


def default_of(parameter: Any) -> str:
    """What holds where an option is not given; empty for none and for switches that are off."""
    value = parameter.default
    if parameter.required:
        return "required"
    if (
        value is None
        or value is False
        or callable(value)
        or value in ((), [], "")
        or "Sentinel" in type(value).__name__
    ):
        return ""
    return "on" if value is True else f"`{value}`"


def cell(words: str) -> str:
    """Text that stays in its cell."""
    return " ".join(words.split()).replace("|", "\\|")
