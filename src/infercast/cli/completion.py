"""What a shell is offered when the tab key is pressed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

VARIABLE = "_INFERCAST_COMPLETE"
"""Set by a shell's completion script, which then runs the program itself."""


def is_completing(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a shell asks for completions."""
    return VARIABLE in environment


def command_to_complete(environment: Mapping[str, str] = os.environ) -> str:
    """The command to complete options of; empty while its name is still being typed."""
    if "COMP_WORDS" in environment:  # bash
        words, place = environment["COMP_WORDS"].split(), int(environment.get("COMP_CWORD", "1"))
        return words[1] if place > 1 and len(words) > 1 else ""
    text = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = text.split()
    return words[1] if len(words) > 2 or (len(words) == 2 and text.endswith(" ")) else ""


def _offer(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Names that begin as the word does; of names with commas between them the last is completed."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known() if name.startswith(last)]

    return offer


def _models() -> Iterable[str]:
    from infercast.models.library import model_names  # noqa: PLC0415 - loaded only when the tab key is pressed

    return model_names()


def _gpus() -> Iterable[str]:
    from infercast.hardware import gpu_names  # noqa: PLC0415 - as above

    return gpu_names()


def _engines() -> Iterable[str]:
    from infercast.engines.base import FAMILIES, engines  # noqa: PLC0415 - as above

    return [*FAMILIES, *engines()]


def _hosts() -> Iterable[str]:
    from infercast.hardware.server import host_cpus  # noqa: PLC0415 - as above

    return host_cpus()


def _networks() -> Iterable[str]:
    from infercast.hardware.server import networks  # noqa: PLC0415 - as above

    return networks()


def _routers() -> Iterable[str]:
    from infercast.serve.fleet.router import POLICIES  # noqa: PLC0415 - as above

    return POLICIES


OFFERED = {
    "models": _offer(_models),
    "gpus": _offer(_gpus),
    "engines": _offer(_engines),
    "hosts": _offer(_hosts),
    "networks": _offer(_networks),
    "routers": _offer(_routers),
}
"""Names by the list of the catalogue that they are in."""
