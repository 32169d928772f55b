"""Kernels that may crash their process, measured in a child process: parent, child, and their journal."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from infercast.lab.measure.cases import Case, Launch, sweep_cases
from infercast.lab.measure.device import Monitor, choose_engine, require_gpu
from infercast.lab.measure.rows import Bench, Store, Tally, Timing, is_heavy, measure_batch, reason_of


@dataclass
class Steps:
    begun: set[str] = field(default_factory=set)  # Keys of cases that a child started with
    under_way: set[str] = field(default_factory=set)  # Keys of those that it was at last
    refused: set[str] = field(default_factory=set)  # Keys of those that could not run, which were counted
    skipped: dict[str, int] = field(default_factory=dict)
    broken: str = ""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def at(self, keys: Iterable[str], doing: str) -> None:
        self._write({"at": list(keys), "doing": doing})

    def skip(self, case: Case, problem: Exception) -> None:
        """A case that cannot run, with its reason in a tally's words."""
        self._write({"skip": case.key, "why": reason_of(case, problem)})

    def give_up(self, why: str) -> None:
        self._write({"broken": why})

    def _write(self, step: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(step) + "\n")

    def last_step(self) -> float:
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


# A kernel that reads where it may not, a failed assertion or a compiler that never returns must not cost all that comes
# after. The child notes each case before it starts; where it ends early, that case is counted as skipped, or its
# whole kind if nothing of it had been measured, and a new child goes on with the rest.

FAMILIES = ("scan", "sparse")
SILENT_SECONDS = 75.0
"""Without a step after which a child is ended. Compiling one kernel with nvcc or tuning a scan takes half of that."""
LEAST_SECONDS = 25.0  # starting a child takes nearly as long; no other one is started with less time left


def kind_of(case: Case) -> str:
    """Which kernel it is, whatever the size of the batch."""
    return f"{case.family} {case.shape.get('op', case.shape.get('kind', ''))}"


def measure_isolated(cases: Sequence[Case], store: Store, tally: Tally, engine: str, deadline: float) -> int:
    before, left = len(store.done()), list(cases)
    most_children = 12
    for _ in range(most_children):
        if not left or time.monotonic() + LEAST_SECONDS > deadline:
            break
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "journal.jsonl")
            waiting = Path(folder) / "waiting.json"
            kinds = dict.fromkeys(map(kind_of, left))
            keys = [case.key for kind in kinds for case in left if kind_of(case) == kind]
            waiting.write_text(json.dumps(keys), encoding="utf-8")
            ended = _run_child(journal, waiting, store, engine, deadline)
            steps = journal.read()
        tally.tried += len(steps.begun)
        for reason, count in steps.skipped.items():
            tally.skipped[reason] = tally.skipped.get(reason, 0) + count
        if ended == "done":
            left = [case for case in left if case.key not in steps.begun]
            break
        left = _without_what_broke(left, steps, store.done(), tally, ended)
    return len(store.done()) - before


def _run_child(journal: Journal, waiting: Path, store: Store, engine: str, deadline: float) -> str:
    """How it ended: ``done``, or what killed it."""
    seconds = deadline - time.monotonic()
    command = [sys.executable, "-m", "infercast.lab.measure.isolated", str(store.folder), engine, str(waiting)]
    log = (store.folder / "child.log").open("ab")
    with log:
        child = subprocess.Popen([*command, str(journal.path), f"{seconds:.1f}"], stdout=log, stderr=log)
        started = time.monotonic()
        poll_seconds = 0.25
        while child.poll() is None:
            time.sleep(poll_seconds)
            now = time.monotonic()
            silent = now - max(started, journal.last_step())
            if silent > SILENT_SECONDS or now > deadline + LEAST_SECONDS:
                child.kill()
                child.wait()
                return f"no step for {silent:.0f} s"
    if child.returncode == 0:
        return "done"
    return journal.read().broken or (
        f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    )


def _without_what_broke(left: list[Case], steps: Steps, done: set[str], tally: Tally, ended: str) -> list[Case]:
    """What another child may still try; the rest is counted."""
    kinds = {kind_of(case) for case in left if case.key in steps.under_way}
    measured = {kind_of(case) for case in left if case.key in done}
    bad = {case.key for case in left if case.key in steps.under_way}
    bad |= {case.key for case in left if kind_of(case) in kinds - measured}
    if not steps.begun:  # it did not even start: none will
        bad = {case.key for case in left}
    for case in left:
        if case.key in bad - done:
            tally.skip(case, NotImplementedError(f"the process that ran it ended ({ended})"))
    tally.tried += len(bad - steps.begun - done)
    return [case for case in left if case.key not in bad | done and case.key not in steps.refused]


# The process that measures kernels which may break it: a few cases at a time, each noted before it is tried.

BATCH = 16
BROKEN = 3  # exit code where a kernel has broken the GPU's context


class JournalBench:
    """A bench that writes its steps to a journal and ends the process when the GPU no longer answers."""

    def __init__(self, bench: Bench, journal: Journal) -> None:
        self._bench, self._journal = bench, journal
        self._keys: list[str] = []

    def build(self, case: Case) -> Launch:
        """Built and run once, so that an error is this case's and not the next one's."""
        self._journal.at([case.key], "building")
        try:
            launch = self._bench.build(case)
            launch()
            require_gpu().cuda.synchronize()
        except Exception as problem:
            self._journal.skip(case, problem)
            try:
                require_gpu().cuda.synchronize()
            except RuntimeError:
                self._journal.give_up((str(problem).splitlines() or [""])[0][:120])
                os._exit(BROKEN)
            raise
        self._keys.append(case.key)
        return launch

    def time(self, launches: Sequence[Launch], repeats: int) -> list[Timing]:
        self._journal.at(self._keys, "timing")
        return self._bench.time(launches, repeats)

    def time_sustained(self, launches: Sequence[Launch], repeats: int, heat_seconds: float) -> list[Timing]:
        self._journal.at(self._keys, "timing")
        return self._bench.time_sustained(launches, repeats, heat_seconds)

    def details(self, case: Case) -> dict[str, object]:
        return self._bench.details(case)

    def close(self) -> None:
        self._bench.close()

    def forget(self) -> None:
        self._keys = []


def measure_kinds(
    cases: Sequence[Case], store: Store, bench: JournalBench, monitor: Monitor, journal: Journal, deadline: float
) -> None:
    """One kind of kernel after the other; each gets its share of the time that is left."""
    kinds = [list(own) for _, own in groupby(cases, key=kind_of)]
    for number, own in enumerate(kinds):
        now = time.monotonic()
        until = min(deadline, now + (deadline - now) / (len(kinds) - number) + 2.0)
        for batch in _batches(own):
            if time.monotonic() > until:
                break
            bench.forget()
            try:
                rows = measure_batch(batch, bench, monitor, Tally(), until)
            except RuntimeError as problem:  # a kernel has broken the GPU's context
                journal.give_up((str(problem).splitlines() or [""])[0][:120])
                os._exit(BROKEN)
            store.append([{"gpu": store.folder.name, **row} for row in rows])


def _batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    for heavy in (False, True):
        own = [case for case in cases if is_heavy(case) == heavy]
        yield from (own[start : start + BATCH] for start in range(0, len(own), BATCH))


def main(folder: str, engine: str, waiting: str, journal: str, seconds: str) -> None:
    """Measure the cases with the keys of a file, for at most ``seconds``."""
    faulthandler.enable()
    deadline = time.monotonic() + float(seconds)
    choose_engine(engine)
    keys = json.loads(Path(waiting).read_text(encoding="utf-8"))
    known = {case.key: case for case in sweep_cases(sorted({key.partition(" ")[0] for key in keys}))}
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    monitor, notes = Monitor(), Journal(Path(journal))
    try:
        bench = JournalBench(GpuBench(), notes)
        measure_kinds([known[key] for key in keys], Store(Path(folder)), bench, monitor, notes, deadline)
    finally:
        monitor.stop()


if __name__ == "__main__":
    main(*sys.argv[1:6])
