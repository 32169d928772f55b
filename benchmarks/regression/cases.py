"""The predictions that are watched, as lines of text: see cases.txt for how they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("cases.txt")
WORDS = {"kernel": 2, "step": 2, "memory": 2, "serve": 2, "disaggregate": 3}
"""What can be asked, and how many words without ``=`` follow."""


@dataclass(frozen=True)
class Case:
    """One prediction, or a few that come together. Its text is its name."""

    text: str

    @property
    def group(self) -> str:
        """What is asked: kernel, step, memory, serve or disaggregate."""
        return self.text.split()[0]

    @property
    def names(self) -> list[str]:
        """GPUs and the model, or the GPU and the kernel's family."""
        return self.text.split()[1 : 1 + WORDS[self.group]]

    @property
    def options(self) -> dict[str, Any]:
        """Everything that was written with ``=``."""
        pairs = (word.split("=", 1) for word in self.text.split()[1 + WORDS[self.group] :])
        return {name: _value(text) for name, text in pairs}


def read_cases(path: Path = CASES) -> list[Case]:
    """All cases of a file, in its order."""
    cases: list[Case] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        words = text.split()
        if words[0] not in WORDS or any(("=" in word) != (place > WORDS[words[0]]) for place, word in enumerate(words)):
            raise ValueError(f"{path}, line {number}: not a case: {text!r}")
        cases += [Case(each) for each in _spread(words)]
    repeated = {case.text for case in cases if cases.count(case) > 1}
    if repeated:
        raise ValueError(f"{path}: {len(repeated)} cases are there twice: {', '.join(sorted(repeated))}")
    return cases


def _spread(words: list[str]) -> Iterator[str]:
    """Every combination of alternatives: ``m=1,64`` is two cases."""
    alternatives = []
    for word in words:
        name, mark, values = word.rpartition("=")
        alternatives.append([f"{name}{mark}{value}" for value in values.split(",")])
    return map(" ".join, product(*alternatives))


def _value(text: str) -> Any:
    """A truth value, a number or a word."""
    if text in ("yes", "no"):
        return text == "yes"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
