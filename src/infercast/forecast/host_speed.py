"""A user's own host: a CPU by its name, a data file, or an idle engine that `infercast measure --host` has watched.

An idle engine with a tiny model shows nothing but its CPU. How many times faster it answers short prompts than the
bundled host would is taken as the speed of its single thread, and all costs are divided by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from infercast.engines.host import HostCosts
from infercast.engines.registry import AnyEngine, engine_named
from infercast.errors import FileFormatError, InputError
from infercast.forecast.deploy import deploy, host_of
from infercast.serve import Request, Workload, simulate

SHORT = 512
"""Prompts up to this length run in graphs and leave the GPU idle most of the time."""
ROOM = (8192, 256, 16_384)
"""Tokens and sequences of a step, and tokens of a sequence, that the watched engine was started for."""


ADDRESS = re.compile(r"localhost|\[?[0-9a-f]*:[0-9a-f:]*\]?|\d+(\.\d+){3}", re.IGNORECASE)
"""What an engine's own ``--host`` takes."""


def host_from(source: str | Path, gpu: str, engine: str | None = None) -> HostCosts:
    """The host of a preset or of a ``.toml`` file, or the bundled one at the speed that a ``host.json`` shows."""
    name, chosen = str(source), engine_named(engine)
    if ADDRESS.fullmatch(name):
        raise InputError(
            f"--host {name} is an address, as an engine's --host takes it; here nothing listens, and --host says which "
            "CPU is beside the GPU: a name from `infercast hosts`, a host.json or a .toml; leave it out"
        )
    path = Path(name)
    if path.suffix not in (".json", ".toml") and not path.exists():
        return host_of(chosen, name)
    if path.suffix != ".json":
        return host_of(chosen, path)
    ratios = list(_predicted_over_measured(path, _read(path), gpu, chosen))
    if not ratios:
        raise FileFormatError(path, f"has no first token of a prompt of up to {SHORT} tokens")
    speed = float(np.median(ratios))
    title = f"your host (from {path.name}), {speed:.2f} times as fast as the measured one"
    found = chosen.default_host().sped_up(speed, title, "an idle engine on this machine")
    return replace(found, is_measured=True)


def _predicted_over_measured(path: Path, document: dict[str, Any], gpu: str, engine: AnyEngine) -> Iterator[float]:
    """For each short prompt of each tiny model."""
    try:
        for model in document["models"]:
            config = {**document["config"], "num_hidden_layers": model["layers"]}
            settings = engine.settings(engine.room_for(*ROOM))
            replica = deploy(config, gpu, settings, api_server=False).replica()
            for tokens, milliseconds in model["first_token_ms"].items():
                if int(tokens) <= SHORT:
                    run = simulate(replica, Workload((Request(0.0, int(tokens), 2),)))
                    yield 1e3 * float(run.ttft[0]) / float(milliseconds)
    except KeyError as missing:
        raise FileFormatError(path, f"is not what `infercast measure --host` writes: {missing} is missing") from None
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as problem:
        raise FileFormatError(path, f"is not what `infercast measure --host` writes: {problem}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileFormatError(path, f"cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "is not UTF-8 text, so not JSON") from None
    except ValueError as problem:
        raise FileFormatError(path, f"is not JSON: {problem}") from None
    if not isinstance(document, dict):
        raise FileFormatError(path, "is not what `infercast measure --host` writes: not an object")
    return document
