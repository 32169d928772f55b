"""Command lines that documents show are ones that the program takes: every option is there under that name."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from infercast.cli.app import COMMANDS, make_app
from infercast.cli.options import translated

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
INLINE = re.compile(r"`infercast ([a-z-]+ [^`]+)`")
BLOCK = re.compile(r"^```(?:sh|bash)?\n(.*?)^```|^((?: {4}.*\n)+)", re.DOTALL | re.MULTILINE)


def command_lines() -> Iterator[tuple[str, str]]:
    """Lines of code blocks that call the program, and calls within sentences, with the page that shows them."""
    for page in PAGES:
        text = page.read_text("utf-8")
        yield from ((page.name, " ".join(found.split())) for found in INLINE.findall(text))
        for fenced, indented in BLOCK.findall(text):
            for line in (fenced or indented).replace("\\\n", " ").splitlines():
                found = re.match(r"(?:.* && |\$ |.* \| )?infercast ((?:[a-z-]+) .*)", line.strip())
                if found:
                    yield page.name, found[1]


@cache
def options_of(command: str) -> set[str]:
    whole = get_command(make_app(command))
    found = getattr(whole, "commands", {}).get(command, whole)
    return {name for each in found.params for name in (*each.opts, *each.secondary_opts)} | {"-h", "--help"}


def test_options_of_shown_commands_are_known(every: Any) -> None:
    every(command_lines(), check_options)


def check_options(shown: tuple[str, str]) -> None:
    page, line = shown
    words = shlex.split(line, comments=True)
    words = words[: words.index("--")] if "--" in words else words
    assert words[0] in COMMANDS
    if COMMANDS[words[0]].engine_flags:
        words, _ = translated([word for word in words if word != "..."], COMMANDS[words[0]].load().options())
    asked = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert asked <= options_of(words[0]), f"{page} shows an option that {words[0]} does not have: {line}"


def test_many_commands_are_shown() -> None:
    assert len({line.split()[0] for _, line in command_lines()}) >= 18
