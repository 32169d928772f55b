"""What goes wrong on demand: slow engines and hosts, refusals, crashes, streams that stall or break."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from infercast.emulate.emulator import Emulator
from infercast.emulate.requests import Fields, read
from infercast.errors import InputError
from infercast.forecast.fleet import start_up
from infercast.web.limits import Problem

Kind = Literal["slow_gpu", "slow_host", "refuse", "crash", "stall", "drop"]


class Fault(Fields, extra="forbid"):
    """One thing that goes wrong, from ``at`` (seconds on the deployment's clock) on."""

    kind: Kind
    at: Annotated[float, Field(ge=0)] | None = None  # None: now
    seconds: Annotated[float, Field(gt=0)] | None = None
    """How long: of a crash, until the replica is back (None: as long as its start takes), of a stall the pause."""
    replica: Annotated[int, Field(ge=0)] | None = None  # None: all of them
    factor: Annotated[float, Field(gt=0, le=100)] = 1.5  # How many times as long steps take
    status: Literal[429, 500, 502, 503, 504] = 503
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # Of the requests
    count: Annotated[int, Field(ge=1)] | None = None  # Requests after which it ends
    after: Annotated[int, Field(ge=0)] = 8  # Tokens of a stream before it stalls or breaks


class Faults:
    """The faults of one emulated deployment, and how often each has struck."""

    def __init__(self, emulator: Emulator, seed: int = 0) -> None:
        self._emulator, self._random = emulator, Random(seed)
        self._number = len(emulator.system.pools[-1].engines.replicas)
        self.planned: list[Fault] = []
        self.struck: Counter[str] = Counter()
        self._hits: Counter[int] = Counter()  # By fault, for those that end after a count
        self._crashed: set[int] = set()  # Faults that have been carried out
        self._factors = [(1.0, 1.0)] * self._number

    def add(self, document: Any) -> Fault:
        if not isinstance(document, Mapping):
            raise InputError("a fault must be an object with a kind")
        fault = read(Fault, document)
        if fault.replica is not None and fault.replica >= self._number:
            raise InputError(f"replica must be below {self._number}, the number of engines, not {fault.replica}")
        if fault.at is None:
            fault.at = self._emulator.now()
        self.planned.append(fault)
        self.move()
        return fault

    def clear(self) -> None:
        self.planned.clear()
        self.move()

    def _going(self, *kinds: str) -> list[Fault]:
        """Those that are on at the moment."""
        now = self._emulator.now()
        return [
            each for each in self.planned
            if each.kind in kinds and (each.at or 0.0) <= now < (each.at or 0.0) + self._lasts(each)
            and (each.count is None or self._hits[id(each)] < each.count)
        ]  # fmt: skip

    def _lasts(self, fault: Fault) -> float:
        if fault.kind == "crash" and fault.seconds is None:
            return start_up(self._emulator.system.pools[-1].deployment).seconds
        return inf if fault.seconds is None or fault.kind == "stall" else fault.seconds

    def move(self) -> None:
        """Bring engines into the state of this moment."""
        down, factors = set[int](), [(1.0, 1.0)] * self._number
        for fault in self._going("crash", "slow_gpu", "slow_host"):
            for number in range(self._number) if fault.replica is None else [fault.replica]:
                if fault.kind == "crash":
                    down.add(number)
                else:
                    gpu, host = factors[number]
                    slower = (fault.factor, 1.0) if fault.kind == "slow_gpu" else (1.0, fault.factor)
                    factors[number] = gpu * slower[0], host * slower[1]
            if id(fault) not in self._crashed:
                self._crashed.add(id(fault))
                self.struck[fault.kind] += 1
        for number in sorted(down - self._emulator.down):
            self._emulator.crash(number)
        self._emulator.down.clear()
        self._emulator.down.update(down)
        for number, (new, old) in enumerate(zip(factors, self._factors, strict=True)):
            if new != old:
                self._emulator.slow(number, *new)
        self._factors = factors

    def check(self) -> None:
        """Refuse a request that meets a fault."""
        if not self.planned:
            return
        self.move()
        if len(self._emulator.down) == self._number:
            raise Problem(503, "ServiceUnavailableError", "the engine is starting")
        for fault in self._strikes("refuse"):
            kind = "RateLimitError" if fault.status == 429 else "ServiceUnavailableError"
            raise Problem(fault.status, kind, "refused on demand", retry_after="1")

    def of_stream(self) -> Fault | None:
        """What befalls a stream that begins now."""
        return next(iter(self._strikes("stall", "drop")), None) if self.planned else None

    def _strikes(self, *kinds: str) -> Sequence[Fault]:
        found = [each for each in self._going(*kinds) if self._random.random() < each.share]
        for fault in found[:1]:
            self._hits[id(fault)] += 1
            self.struck[fault.kind] += 1
        return found[:1]

    def state(self) -> list[dict[str, Any]]:
        going = {id(each) for each in self._going(*Counter(each.kind for each in self.planned))}
        return [{**each.model_dump(exclude_none=True), "is_on": id(each) in going} for each in self.planned]


def read_faults(path: Path) -> list[Any]:
    """The tables ``[[fault]]`` of a TOML file."""
    try:
        found = tomllib.loads(path.read_text("utf-8")).get("fault")
    except OSError as problem:
        raise InputError(f"--faults {path} cannot be read: {problem.strerror or problem}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"--faults {path} is not TOML: {problem}") from None
    if not isinstance(found, list) or not found:
        raise InputError(f"--faults {path} has no table [[fault]]")
    return found
