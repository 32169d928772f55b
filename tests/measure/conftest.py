"""A GPU that exists on paper: kernels that take as long as they are told, on a clock that tests move."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import strftime
from types import SimpleNamespace
from typing import Any

import pytest

from infercast.cli.main import run
from infercast.lab.measure import device as engines
from infercast.lab.measure import rows, sweep
from infercast.lab.measure.device import State
from infercast.lab.measure.rows import Case, Kernel, Timing

GPU = "h200-sxm"


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeLaunch:
    case: Case
    engine: str = "torch"

    def touch(self) -> None: ...

    def __call__(self) -> None: ...


@dataclass
class FakeBench:
    clock: Clock
    microseconds: float = 200.0
    seconds_a_case: float = 0.01
    """To build it."""
    unable: dict[str, Exception] = field(default_factory=dict)
    """What building a family's kernels raises."""
    batches: list[tuple[str, int]] = field(default_factory=list)
    interrupt_after: int | None = None
    """Batches until somebody presses Ctrl-C."""

    def build(self, case: Case) -> FakeLaunch:
        self.clock.now += self.seconds_a_case
        if case.family in self.unable:
            raise self.unable[case.family]
        return FakeLaunch(case)

    def time(self, launches: Sequence[FakeLaunch], repeats: int) -> list[Timing]:
        return self._timings("light", launches, repeats)

    def time_sustained(self, launches: Sequence[FakeLaunch], repeats: int, heat_seconds: float) -> list[Timing]:
        return self._timings("heavy", launches, repeats)

    def _timings(self, kind: str, launches: Sequence[FakeLaunch], repeats: int) -> list[Timing]:
        if self.interrupt_after is not None and len(self.batches) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.batches.append((kind, len(launches)))
        runs = [[Kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "4x1x1", "128x1x1", self.microseconds)]]
        return [Timing(runs * repeats, runs, runs) for _ in launches]

    def details(self, case: Case) -> dict[str, Any]:
        return {"tuned": True} if case.family == "moe" else {}

    def close(self) -> None: ...


class FakeMonitor:
    state = State(1980.0, 120.0, 40.0, False)
    stopped = 0

    def since(self, start: float) -> State:
        return self.state

    def wait_until_cool(self, most: float) -> None: ...

    def stop(self) -> None:
        FakeMonitor.stopped += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (sweep, rows):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic, strftime=strftime))
    return clock


@pytest.fixture
def bench(clock: Clock) -> FakeBench:
    return FakeBench(clock)


@pytest.fixture
def monitor() -> FakeMonitor:
    return FakeMonitor()


@pytest.fixture
def gpu(bench: FakeBench, monitor: FakeMonitor, monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """This machine as one with a GPU and without vLLM."""
    monkeypatch.setattr(sweep, "require_gpu", lambda: None)
    monkeypatch.setattr(sweep, "gpu_name", lambda: GPU)
    monkeypatch.setattr(sweep, "describe", lambda: {"driver": "580", "sms": 132})
    monkeypatch.setattr(sweep, "Monitor", lambda: monitor)
    monkeypatch.setattr(sweep, "open_bench", lambda: bench)
    monkeypatch.setattr(sweep, "load_apart", lambda _: None)
    monkeypatch.setattr(sweep, "prepare", lambda *words: words[3]())
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    return bench


@pytest.fixture
def infercast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``infercast("measure", ...)`` as in a shell: exit code, output and errors."""

    def call(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["infercast", *map(str, words)])
        code: Any = 0
        try:
            run()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
