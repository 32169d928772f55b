"""A way to run the command line in this process."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

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
