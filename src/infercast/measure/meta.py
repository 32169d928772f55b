"""What a reader of a table must know: ``meta.toml`` beside it."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infercast.errors import FileFormatError, InputError
from infercast.measure.device import State

NAME = "meta.toml"
PROTOCOL = (
    "kernel times by the GPU's own clock (CUPTI), mean of 4 or more runs; latency_us: operands of the kernel cold, "
    "its input as the kernel before leaves it; kernels of 5e10 FLOP and more among others at the power limit "
    "(burst_us: after a pause); warm_us: the same launch again at once"
)


class Meta:
    """The facts of one folder: written when a sweep begins and again when it ends, however it ends."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], before: State) -> None:
        earlier = read_meta(folder)
        self._folder, self._minutes_before = folder, float(earlier.get("minutes", 0.0))
        self._facts = {**facts, "protocol": PROTOCOL, "date": time.strftime("%Y-%m-%d"), **revision()}
        self._facts |= {"minutes": self._minutes_before, "rows": earlier.get("rows", 0), **_state(before, "before")}
        write_meta(folder, self._facts)

    def finish(self, seconds: float, rows: int, skipped: Mapping[str, int], during: State) -> None:
        """Add what the sweep came to; minutes are those of all sweeps into this folder."""
        self._facts |= {"minutes": round(self._minutes_before + seconds / 60, 2), "rows": rows}
        self._facts |= _state(during, "during")
        self._facts["skipped"] = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        write_meta(self._folder, self._facts)


def _state(state: State, when: str) -> dict[str, float]:
    return {f"sm_mhz_{when}": state.sm_mhz, f"watts_{when}": state.watts, f"celsius_{when}": state.celsius}


def revision() -> dict[str, str]:
    """The commit that this package is at, where it runs from a checkout of its own."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # An installed package may lie in an environment inside somebody else's checkout.
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True, timeout=20)
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        found = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"revision": found.stdout.strip()}


def read_meta(folder: Path) -> dict[str, Any]:
    """The facts of a folder, none where nothing was measured yet."""
    path = folder / NAME
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise FileFormatError(path, f"cannot be read as TOML: {problem}") from None


def check_engine(folder: Path, engine: str) -> None:
    """Refuse to mix two engines' kernels in one table."""
    earlier = read_meta(folder).get("kernels", engine)
    if earlier != engine:
        raise InputError(
            f"{folder} holds kernels measured with --engine {earlier}; choose another --out for --engine {engine}"
        )


def write_meta(folder: Path, facts: Mapping[str, Any]) -> None:
    """All facts at once."""
    lines = []
    for name, value in facts.items():
        text = json.dumps(value) if isinstance(value, str | bool | int | float) else json.dumps(str(value))
        lines.append(f"{name} = {text}\n")
    temporary = folder / f"{NAME}.part"
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, folder / NAME)
