"""Other processes of a sweep: those that compile kernels ahead of time, and the child that one may crash."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread

from infercast.lab.measure.cases import Case, Launch, sweep_cases
from infercast.lab.measure.device import Monitor, choose_engine, require_gpu
from infercast.lab.measure.rows import Bench, Store, Tally, Timing, is_heavy, measure_batch, reason_of

# Kernels that are compiled when first used are launched once by a few processes before anything is timed.

RECURRENT = {
    "scan": ("kind", "heads", "key_heads", "key_dim", "value_dim", "chunk"),
    "state_update": ("kind", "heads", "key_heads", "key_dim", "value_dim", "state_dtype"),
    "convolution": ("update", "channels"),
    "gating": ("op", "heads", "key_heads"),
}
COMPILED = "moe", "elementwise", *RECURRENT


def compiled_cases(cases: Sequence[Case]) -> list[Case]:
    first: dict[tuple[object, ...], Case] = {}
    largest_tokens = 8192  # kernels for more tokens are the same, and their operands larger
    for case in cases:
        shape = case.shape
        if case.family == "moe":
            small = Case("moe", shape | {"tokens": min(shape["tokens"], largest_tokens)})
            first[(small.key,)] = small
        elif case.family == "elementwise":
            first.setdefault((shape["op"], shape["width"], shape["heads"]), case)
        elif case.family in RECURRENT:
            key = (case.family, *(shape[name] for name in RECURRENT[case.family]))
            first[key] = min(first.get(key, case), case, key=_tokens)
    # A scan is half a dozen kernels in a hundred configurations: each is the first of another process.
    return sorted(first.values(), key=lambda case: case.family != "scan")


def _tokens(case: Case) -> int:
    return int(case.shape.get("rows", 0) or case.shape["batch"] * case.shape["q_len"])


def prepare(cases: Sequence[Case], engine: str, deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Compile what ``cases`` need, as far as there is time before the deadline (of ``time.monotonic``)."""
    share_of_time = 0.3  # of the time budget that compiling may take
    seconds = share_of_time * (deadline - time.monotonic())
    least_seconds = 15.0
    if seconds >= least_seconds:
        compile_ahead(compiled_cases(cases), engine, seconds, meanwhile)
    else:
        meanwhile()


def load_apart(engine: str) -> ForkServerContext:
    """One process loads PyTorch and vLLM, and will split into others, as nothing of it has touched the GPU."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload([*_modules(engine)])
    ensure_running()
    return context


def compile_ahead(
    cases: Sequence[Case], engine: str, seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Launch each case once, by one process per core, for at most ``seconds``; ``meanwhile`` has the GPU for itself."""
    most_workers = 14
    workers = min(most_workers, (os.cpu_count() or 1) - 1, len(cases))
    if workers < 2:
        meanwhile()
        return
    context = load_apart(engine)
    is_free, num_taken = context.Event(), context.Value("i")
    running = [context.Process(target=launch_all, args=(cases, engine, is_free, num_taken)) for _ in range(workers)]
    starting = Thread(target=_start, args=(running,))  # which takes until all is loaded
    starting.start()
    try:
        meanwhile()
        is_free.set()
        _load(_modules(engine))
        starting.join()
        until = time.monotonic() + seconds
        for process in running:
            process.join(max(0.0, until - time.monotonic()))  # the rest is compiled when its turn comes
    finally:
        starting.join()
        for process in running:
            process.kill()
            process.join()


def _start(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.start()


def _modules(engine: str) -> tuple[str, ...]:
    loaded = "infercast.lab.measure.kernels", "vllm.model_executor.layers.fused_moe"
    return loaded[: 2 if engine == "vllm" else 1]


def _load(modules: Sequence[str]) -> None:
    with suppress(ImportError):
        for name in modules:
            import_module(name)


def launch_all(cases: Sequence[Case], engine: str, is_free: Event, num_taken: Synchronized[int]) -> None:
    """Launch one case after another that no other process has taken."""
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    choose_engine(engine)
    is_free.wait()
    pool_share = 0.035  # of the GPU's memory for one process's operands
    bench = GpuBench(pool_share)
    while (number := _take(num_taken)) < len(cases):
        try:
            bench.compile(cases[number])
        except Exception:  # what cannot run is counted, with its reason, when its turn comes
            continue


def _take(num_taken: Synchronized[int]) -> int:
    with num_taken.get_lock():
        num_taken.value += 1
        return num_taken.value - 1


# Kernels that may crash their process are measured in a child, which notes its steps in a journal.


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

ISOLATED = ("scan", "sparse")
SILENT_SECONDS = 75.0
"""Without a step after which a child is ended. Compiling one kernel with nvcc or tuning a scan takes half of that."""
LEAST_SECONDS = 25.0  # starting a child takes nearly as long; no other one is started with less time left


def kind_of(case: Case) -> str:
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
    command = [sys.executable, "-m", "infercast.lab.measure.processes", str(store.folder), engine, str(waiting)]
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
