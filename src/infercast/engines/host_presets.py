"""Hosts by the name of their CPU: the measured one, faster or slower by what others publish of one thread."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from typing import Any

from infercast.bundled import DATA
from infercast.engines.vllm.host import Host, default_host
from infercast.errors import UnknownNameError

MEASURED = "measured"
"""The name of the host that was measured, which is the default."""


@dataclass(frozen=True, slots=True)
class HostPreset:
    """A CPU, and how fast one of its threads is."""

    name: str
    title: str
    single_thread_speed: float
    """How many times as fast as the measured one."""
    source: str


def host_presets() -> dict[str, HostPreset]:
    """All that are known, slowest first."""
    values = tomllib.loads(DATA.joinpath("hosts/presets.toml").read_text(encoding="utf-8"))
    base = values.pop("measured_rating")
    measured = default_host()
    presets = [HostPreset(MEASURED, measured.title, 1.0, measured.source)]
    presets += [HostPreset(name, each["title"], each["rating"] / base, each["source"]) for name, each in values.items()]
    return {each.name: each for each in sorted(presets, key=lambda each: each.single_thread_speed)}


def named_host(name: str) -> Host:
    """The host of a preset."""
    known = host_presets()
    if name not in known:
        hint = " (or give the path of a host.json of `infercast measure --host`, or of a TOML file)"
        raise UnknownNameError("host", name, known, hint)
    preset = known[name]
    if name == MEASURED:
        return default_host()
    return sped_up(default_host(), preset.single_thread_speed, preset.title, preset.source)


def sped_up(host: Host, speed: float, title: str, source: str) -> Host:
    """A host whose thread is so many times as fast."""
    names = (field.name for field in fields(Host) if field.name not in ("title", "source"))
    seconds: dict[str, Any] = {name: getattr(host, name) / speed for name in names}
    return replace(host, title=f"{title}, {speed:.2f} times as fast as the measured one", source=source, **seconds)
