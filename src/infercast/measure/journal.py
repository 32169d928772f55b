"""What a child process is at, so that its parent knows which case broke it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from infercast.measure.case import Case
from infercast.measure.rows import Tally


@dataclass
class Steps:
    """A journal as its reader sees it."""

    begun: set[str] = field(default_factory=set)
    """Keys of cases that a child started with."""
    under_way: set[str] = field(default_factory=set)
    """Keys of those that it was at last."""
    refused: set[str] = field(default_factory=set)
    """Keys of those that could not run, which were counted."""
    skipped: dict[str, int] = field(default_factory=dict)
    """By the reason."""
    broken: str = ""
    """Why the child gave up, where it could tell."""


class Journal:
    """One line a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def at(self, keys: Iterable[str], doing: str) -> None:
        """These cases are being built or timed now."""
        self._write({"at": list(keys), "doing": doing})

    def skip(self, case: Case, problem: Exception) -> None:
        """A case that cannot run, with its reason in a tally's words."""
        tally = Tally()
        tally.skip(case, problem)
        self._write({"skip": case.key, "why": next(iter(tally.skipped))})

    def give_up(self, why: str) -> None:
        """The process is of no use any more."""
        self._write({"broken": why})

    def _write(self, step: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(step) + "\n")

    def last_step(self) -> float:
        """When, by ``time.monotonic``."""
        return time.monotonic() - max(0.0, time.time() - self.path.stat().st_mtime)

    def read(self) -> Steps:
        """All steps so far; a line that was cut off ends it."""
        steps = Steps()
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                step = json.loads(line)
            except ValueError:
                break
            if "at" in step:
                steps.under_way = set(step["at"])
                steps.begun |= steps.under_way
            elif "skip" in step:
                steps.refused.add(step["skip"])
                steps.skipped[step["why"]] = steps.skipped.get(step["why"], 0) + 1
            else:
                steps.broken = str(step["broken"])
        return steps
