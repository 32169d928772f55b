"""Families whose kernels may break the process that launches them, measured by another one that can be replaced.

A kernel that reads where it may not, an assertion in an engine's library or a compiler that never returns would cost
all that comes after. The child notes each case before it starts with it. Where the child ends before its time, or
makes no step for a minute, its case is counted as skipped and a new child goes on with the rest; where nothing of
that kind of kernel had been measured yet, the whole kind is left out. Rows are kept after every few cases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from infercast.measure.case import Case
from infercast.measure.journal import Journal, Steps
from infercast.measure.rows import Tally
from infercast.measure.table import Store

FAMILIES = ("scan", "sparse")
SILENT_SECONDS = 75.0
"""Without a step after which a child is ended. Compiling one kernel with nvcc or tuning a scan takes half of that."""
LEAST_SECONDS = 25.0
"""Starting a child takes nearly as long; no other one is started with less time left."""
POLL_SECONDS = 0.25
MOST_CHILDREN = 12


def kind_of(case: Case) -> str:
    """Which kernel it is, whatever the size of the batch."""
    return f"{case.family} {case.shape.get('op', case.shape.get('kind', ''))}"


def measure_isolated(cases: Sequence[Case], store: Store, tally: Tally, engine: str, deadline: float) -> int:
    """Until all is done or the time is up; returns how many rows came new."""
    before, left = len(store.done()), list(cases)
    for _ in range(MOST_CHILDREN):
        if not left or time.monotonic() + LEAST_SECONDS > deadline:
            break
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "journal.jsonl")
            waiting = Path(folder) / "waiting.json"
            waiting.write_text(json.dumps([case.key for case in _by_kind(left)]), encoding="utf-8")
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


def _by_kind(cases: Sequence[Case]) -> Iterator[Case]:
    """One kind after the other, each in the order of the plan."""
    kinds = dict.fromkeys(map(kind_of, cases))
    return (case for kind in kinds for case in cases if kind_of(case) == kind)


def _run_child(journal: Journal, waiting: Path, store: Store, engine: str, deadline: float) -> str:
    """How it ended: ``done``, or what killed it."""
    seconds = deadline - time.monotonic()
    command = [sys.executable, "-m", "infercast.measure.child", str(store.folder), engine, str(waiting)]
    log = (store.folder / "child.log").open("ab")
    with log:
        child = subprocess.Popen([*command, str(journal.path), f"{seconds:.1f}"], stdout=log, stderr=log)
        started = time.monotonic()
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
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
