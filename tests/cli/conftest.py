"""Ways to run the command line in this process."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from infercast.cli import outputs
from infercast.cli.app import COMMANDS, load_command
from infercast.cli.main import run


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, which must be strict JSON and nothing else."""
        assert self.code == 0, self.err
        assert self.err == ""
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def sentence(self) -> str:
        """What was wrong: one line on standard error, less the name of the program, and nothing else anywhere."""
        assert self.code == 2
        assert self.out == ""
        assert self.err.startswith("infercast: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("infercast: ").rstrip()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def infercast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``infercast("gpus", "--json")`` as in a shell."""

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["infercast", *map(str, words)])
        code: Any = 0
        try:
            run()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


FORMS = {("--json",): "json", ("--format", "csv"): "csv", ("--format", "md"): "md", ("--full",): "full", (): "table"}
"""Last words of a command line, and the form of the answer that they ask for."""


class Answers:
    """What commands hand to `print_result`, where all of them end."""

    def __init__(self) -> None:
        self.print_result = outputs.print_result
        self.kept: dict[tuple[str, ...], Any] = {}
        self.seen: list[Any] = []

    def record(self, *given: Any, **named: Any) -> None:
        self.seen.append((given, named))
        self.print_result(*given, **named)


@pytest.fixture(scope="session")
def answers() -> Iterator[Answers]:
    found = Answers()
    for name in COMMANDS:
        load_command(name)
    with pytest.MonkeyPatch.context() as patch:
        for module in list(sys.modules.values()):
            if getattr(module, "print_result", None) is found.print_result:
                patch.setattr(module, "print_result", found.record)
        yield found


@pytest.fixture
def answered(
    infercast: Callable[..., Result], answers: Answers, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """As ``infercast``, but a command runs once in a session, and its answer is printed in each form that is asked for.

    For tests that look at answers, not for those that change what a command reads or does.
    """

    def call(*words: object) -> Result:
        text = tuple(map(str, words))
        ending = next(each for each in FORMS if text[len(text) - len(each) :] == each)
        form, command = FORMS[ending], text[: len(text) - len(ending)]
        if command in answers.kept:
            given, named = answers.kept[command]
            answers.print_result(outputs.Form(form), *given, **named)
            return Result(0, *capsys.readouterr())
        answers.seen.clear()
        result = infercast(*words)
        if result.code == 0 and result.err == "" and len(answers.seen) == 1 and answers.seen[0][0][0] == form:
            (_, *given), named = answers.seen[0]
            answers.kept[command] = given, named
        return result

    return call
