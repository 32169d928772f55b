"""The sweep: batches of cases, most useful first, in child processes that one may crash, until the time is up."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
from typing import Any, NoReturn

from infercast.bundled import read_data
from infercast.errors import InputError, reading
from infercast.lab.measure.device import Monitor, State, choose_engine, describe, gpu_name, require_gpu
from infercast.lab.measure.rows import (
    Bench,
    Case,
    Launch,
    Row,
    Shape,
    Store,
    Tally,
    Timing,
    anchor_cases,
    is_heavy,
    measure_batch,
    reason_of,
    require_pandas,
    sweep_cases,
)

# Kernels that are compiled when first used are launched once by a few processes before anything is timed.

RECURRENT = {
    "scan": ("kind", "heads", "key_heads", "key_dim", "value_dim", "chunk"),
    "state_update": ("kind", "heads", "key_heads", "key_dim", "value_dim", "state_dtype"),
    "convolution": ("update", "channels"),
    "gating": ("op", "heads", "key_heads"),
}


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

    def give_up(self, problem: Exception) -> NoReturn:
        """A kernel has broken the GPU's context."""
        self._write({"broken": (str(problem).splitlines() or [""])[0][:120]})
        os._exit(BROKEN)

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
    command = [sys.executable, "-m", "infercast.lab.measure.sweep", str(store.folder), engine, str(waiting)]
    log = (store.folder / "child.log").open("ab")
    with log:
        child = subprocess.Popen([*command, str(journal.path), f"{seconds:.1f}"], stdout=log, stderr=log)
        started = time.monotonic()
        while child.poll() is None:
            time.sleep(0.25)
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

AT_ONCE = 16
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
                self._journal.give_up(problem)
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
            except RuntimeError as problem:
                journal.give_up(problem)
            store.append([{"gpu": store.folder.name, **row} for row in rows])


def _batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    for heavy in (False, True):
        own = [case for case in cases if is_heavy(case) == heavy]
        yield from (own[start : start + AT_ONCE] for start in range(0, len(own), AT_ONCE))


def main(folder: str, engine: str, waiting: str, journal: str, seconds: str) -> None:
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


# What a reader of a table must know: ``meta.toml`` next to it.

NAME = "meta.toml"


class Meta:
    """The facts of one folder: written when a sweep begins and again when it ends, however it ends."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], before: State) -> None:
        earlier = read_meta(folder)
        self._folder, self._minutes_before = folder, float(earlier.get("minutes", 0.0))
        protocol, date = read_data("lab/sweep.toml")["protocol"], time.strftime("%Y-%m-%d")
        self._facts = {**facts, "protocol": protocol, "date": date}
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


def read_meta(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    with reading(path, "TOML"):
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_meta(folder: Path, facts: Mapping[str, Any]) -> None:
    lines = []
    for name, value in facts.items():
        text = json.dumps(value) if isinstance(value, str | bool | int | float) else json.dumps(str(value))
        lines.append(f"{name} = {text}\n")
    temporary = folder / f"{NAME}.part"
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, folder / NAME)


BATCH = 150
Progress = Callable[[int, int, float], None]  # told how many cases are done, of how many, and after how many seconds


@dataclass
class Sweep:
    gpu: str
    folder: Path
    engine: str
    rows: int = 0
    left: int = 0
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)


def run_sweep(
    out: Path, *, minutes: float, families: Sequence[str] | None = None, engine: str | None = None,
    progress: Progress | None = None, anchors: int = 0,
) -> Sweep:  # fmt: skip
    """Measure until all is done or time is up, resuming ``out``; ``anchors``: only the most informative shapes."""
    cases = [case for case in anchor_cases(anchors) if not families or case.family in families]
    cases = cases if anchors else sweep_cases(families)
    chosen = choose_engine(engine)
    is_compiled = chosen == "vllm" or not anchors
    if is_compiled:
        load_apart(chosen)
    require_gpu()
    require_pandas()
    result = Sweep(gpu_name(), out / gpu_name(), chosen)
    store = Store(result.folder)
    earlier = read_meta(store.folder).get("kernels", chosen)
    if earlier != chosen:
        raise InputError(
            f"{store.folder} holds kernels measured with --engine {earlier}; choose another --out for --engine {chosen}"
        )
    done = store.done()
    waiting = [case for case in cases if case.key not in done]
    begin = time.monotonic()
    deadline = begin + 60 * minutes
    monitor = Monitor()

    def measure(shared: Sequence[Case]) -> None:
        if shared:
            _measure_here(shared, store, monitor, result, deadline, progress)
        result.left = len(waiting) - result.tally.tried

    try:
        meta = Meta(store.folder, {"gpu": result.gpu, **describe(), "kernels": chosen}, monitor.since(0.0))
        shared = [case for case in waiting if case.family not in ISOLATED]
        apart = [case for case in waiting if case.family in ISOLATED]
        try:
            if is_compiled:
                compiled = ("moe", "elementwise", *RECURRENT)
                # Of a few anchors, those that need no compiling are measured before others are compiled.
                ready = [case for case in shared if anchors and case.family not in compiled]
                prepare(waiting, chosen, deadline, partial(measure, ready))
                shared = [case for case in shared if case not in ready]
            if apart:
                result.rows += measure_isolated(apart, store, result.tally, chosen, deadline)
            measure(shared)
        finally:
            result.seconds = time.monotonic() - begin
            meta.finish(result.seconds, len(done) + result.rows, result.tally.skipped, monitor.since(begin))
    finally:
        monitor.stop()
    result.tables = store.write_tables()
    return result


def open_bench() -> Bench:
    from infercast.lab.measure.kernels import GpuBench  # noqa: PLC0415 - needs PyTorch

    return GpuBench()


def _measure_here(
    waiting: Sequence[Case], store: Store, monitor: Monitor, result: Sweep, deadline: float, progress: Progress | None
) -> None:
    """Kernels that break no process."""
    bench = open_bench()
    begin, before = time.monotonic(), result.tally.tried
    for batch in batches(waiting):
        now = time.monotonic()
        if now > deadline:
            break
        if progress is not None:
            progress(result.tally.tried - before, len(waiting), now - begin)
        rows = measure_batch(batch, bench, monitor, result.tally, deadline)
        store.append([{"gpu": result.gpu, **row} for row in rows])
        result.rows += len(rows)
    bench.close()


def batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in their order, light and heavy ones never in one batch: a hot chip runs light kernels slower."""
    waiting: dict[bool, list[Case]] = {False: [], True: []}
    for case in cases:
        heavy = is_heavy(case)
        waiting[heavy].append(case)
        if len(waiting[heavy]) == BATCH:
            yield waiting[heavy]
            waiting[heavy] = []
    yield from (rest for rest in waiting.values() if rest)


# Launch configurations of routed experts, tried on the GPU at hand.


@dataclass
class Trial:
    gpu: str
    facts: dict[str, Any]
    rows: list[Row]
    skipped: dict[str, int]
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """When compiling and measuring were done, in seconds from the start."""


def trial_cases(layer: Shape, configurations: Iterable[dict[str, int] | None]) -> list[Case]:
    """Cases of one layer. ``None`` is what vLLM chooses; a second one is another turn, to see what chance does."""
    flops = 6.0 * layer["tokens"] * layer["topk"] * layer["hidden"] * layer["inter"]
    cases: list[Case] = []
    for each in configurations:
        turn = sum(case.shape["configuration"] == each for case in cases)
        cases.append(Case("tuning", layer | {"configuration": each, "turn": turn}, flops))
    return cases


def try_configurations(cases: Sequence[Case], seconds: float) -> Trial:
    """Compile with all cores, then measure, for at most ``seconds``."""
    require_gpu()
    if choose_engine(None) != "vllm":
        raise InputError("trying configurations needs vLLM, whose kernel they are for: pip install vllm")
    begin = time.monotonic()
    trial = Trial(gpu_name(), describe(), [], {})
    compiling = 0.55
    compile_ahead([case for case in cases if not case.shape["turn"]], "vllm", compiling * seconds)
    trial.stages["compiled"] = time.monotonic() - begin
    tally, monitor = Tally(), Monitor()
    try:
        bench = open_bench()
        for dtype in dict.fromkeys(case.shape["dtype"] for case in cases):
            for batch in batches([case for case in cases if case.shape["dtype"] == dtype]):
                trial.rows += measure_batch(batch, bench, monitor, tally, begin + seconds)
    except RuntimeError as problem:  # a kernel has broken the GPU's context: what was measured before is still good
        tally.skip(cases[0], problem)
    finally:
        monitor.stop()
    trial.skipped, trial.seconds = tally.skipped, time.monotonic() - begin
    trial.stages["measured"] = trial.seconds
    return trial


if __name__ == "__main__":
    main(*sys.argv[1:6])
