"""The commands; those that answer one kind of question share a file."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from infercast.bundled import read_data


class Command(NamedTuple):
    home: str  # ``module:function`` in this package
    help: str
    details: str = ""  # What ``--help`` says after that: sentences and examples
    engine_flags: bool = False  # Whether it takes the flags of an engine in its own spelling

    def load(self) -> Any:
        home, _, function = self.home.partition(":")
        return getattr(importlib.import_module(f"infercast.cli.commands.{home}"), function)


OLD_NAMES = {"price": "estimate"}  # commands that have another name since; 1.0 goes without the old ones
COMMANDS = {name: Command(**each) for name, each in read_data("commands.toml").items()}
