"""Cases of a sweep in the order in which it runs them, the record of their kernels, and the rows that come of it."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infercast.bundled import DATA, read_data
from infercast.errors import FileFormatError, InputError, UnknownNameError, missing
from infercast.lab.measure.device import Monitor

Shape = dict[str, Any]


@dataclass(frozen=True)
class Case:
    family: str
    shape: Shape
    flops: float = 0.0  # How hard it is on the chip; 0 if memory is all that matters

    @property
    def key(self) -> str:
        """What makes a point the same one when a sweep is taken up again."""
        return f"{self.family} {json.dumps(self.shape, sort_keys=True)}"


class Launch(Protocol):
    engine: str  # The library of the kernel: ``vllm``, ``torch``, ``triton`` or ``cuda``

    def touch(self) -> None:
        """Write what the kernel before would have written, so that it is as warm as in a model."""

    def __call__(self) -> None:
        """Launch the kernel once."""


# Anchors: the few shapes of each kernel that say most about all others, for a GPU without measurements.

DEFAULT = 64  # of each kernel; a list has no more


def anchor_cases(each: int = DEFAULT) -> list[Case]:
    """The first ``each`` of every list, the best of all kernels first."""
    places = []
    for number, table in enumerate(read_data("lab/anchors.toml").values()):
        for rank, values in enumerate(table["shapes"][:each]):
            shape = dict(zip(table["columns"], values, strict=True))
            places.append((rank, number, Case(table["family"], shape, flops_of(table["family"], shape))))
    return [case for _, _, case in sorted(places, key=lambda place: place[:2])]


def flops_of(family: str, shape: Shape) -> float:
    """Products that heat the chip, windows and causality left aside where that is small change; 0 without any."""
    if family == "gemm":
        return float(2 * shape["m"] * shape["n"] * shape["k"])
    if family == "moe":
        return float(6 * shape["tokens"] * shape["topk"] * shape["hidden"] * shape["inter"])
    if not family.startswith("attention"):
        return 0.0
    queries, prefix = shape.get("q_len", 1), shape.get("prefix", shape.get("kv_len", 0))
    pairs: float = shape["batch"] * queries * (prefix + queries / 2)
    if shape.get("window"):
        pairs = min(pairs, shape["batch"] * queries * shape["window"])
    return 2.0 * float(shape["heads"] * (shape["head_dim"] + shape["value_dim"])) * pairs


# Shapes of a sweep: columns by family, which `benchmarks/measure/choose_shapes.py` chooses.

SHAPES = DATA / "lab" / "shapes.json.gz"
SHARES: dict[str, float] = read_data("lab/sweep.toml")["shares"]
"""How large a share of any beginning each family gets; the first points are what a short sweep lives on."""
ON_REQUEST: dict[str, float] = read_data("lab/sweep.toml")["on_request"]
"""Measured where they are named only: they are compiled or tuned for longer than all their shapes are measured."""
FAMILIES, NAMES = tuple(SHARES), (*SHARES, *ON_REQUEST)


def sweep_cases(families: Sequence[str] | None = None) -> list[Case]:
    """All cases, most useful first; the same list for every GPU."""
    wanted, shares = families or FAMILIES, SHARES | ON_REQUEST
    for family in wanted:
        if family not in shares:
            raise UnknownNameError("kernel family", family, NAMES)
    places: list[tuple[float, Case]] = []
    for family, columns in json.loads(gzip.decompress(SHAPES.read_bytes())).items():
        cases = list(_cases_of(family, columns)) if family in wanted else []
        order = np.random.default_rng(len(cases)).permutation(len(cases))
        places += [((rank + 0.5) / shares[family], cases[index]) for rank, index in enumerate(order)]
    first: dict[str, Case] = {}
    for _, case in sorted(places, key=lambda place: place[0]):
        first.setdefault(case.key, case)
    return list(first.values())


def _cases_of(family: str, columns: dict[str, list[Any]]) -> Iterator[Case]:
    flops = columns.pop("flops", None)
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        shape = dict(zip(columns, values, strict=True))
        yield Case(family, shape, flops[number] if flops else flops_of(family, shape))


# Where a sweep keeps its rows: whole batches as they come, one parquet file a family in the end.

Row = dict[str, Any]


class Store:
    """The folder of one GPU's rows. A batch is there wholly or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = folder / "parts"
        if not self._parts.exists() and any(folder.glob("*.parquet")):
            raise InputError(f"{folder} holds finished tables that would be replaced; choose another --out")
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write to {folder}: {problem.strerror}") from None

    def append(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        number = max((int(path.stem) for path in self._parts.glob("*.jsonl")), default=-1) + 1
        path = self._parts / f"{number:05d}.jsonl"
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(temporary, path)

    def rows(self) -> Iterator[Row]:
        for path in sorted(self._parts.glob("*.jsonl")):
            text = path.read_text(encoding="utf-8", errors="replace")
            yield from (_read(line, path, number) for number, line in enumerate(text.splitlines(), start=1))

    def done(self) -> set[str]:
        return {row["key"] for row in self.rows()}

    def write_tables(self) -> dict[str, int]:
        """One parquet file a family (or a row's own ``table``); returns how many rows each has."""
        pandas = require_pandas()
        tables: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows():
            name: str = row["table"] if "table" in row else row["family"]
            inner = {"key", "table"} if "table" in row else {"key", "family"}
            tables[name].append({column: value for column, value in row.items() if column not in inner})
        for name, rows in tables.items():
            temporary = self.folder / f"{name}.parquet.part"
            pandas.DataFrame(rows).to_parquet(temporary, compression="zstd", index=False)
            os.replace(temporary, self.folder / f"{name}.parquet")
        return {name: len(rows) for name, rows in tables.items()}


def _read(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not {"key", "family"} <= set(row):
        raise FileFormatError(path, "is not a row of a sweep; remove the file to measure its rows again", number)
    return row


def require_pandas() -> Any:
    """Pandas with its parquet, or one sentence that says what is missing."""
    try:
        import pandas  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise missing("writing tables", "measure") from None
    return pandas


# The profiler's record cut into sections: what ran between one marker kernel and the next.


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    grid: str
    block: str
    microseconds: float


Sections = list[list[Kernel]]


class LostRecordError(RuntimeError):
    """The profiler's record is not whole."""


@dataclass(frozen=True, slots=True)
class Timing:
    cold: Sections  # Its own operands not in L2; at the power limit where that is what it runs into
    warm: Sections
    burst: Sections

    @property
    def is_whole(self) -> bool:
        """Whether the record has at least one kernel of every run."""
        return all(kernels for sections in (self.cold, self.warm, self.burst) for kernels in sections)


def cut(events: Iterable[dict[str, Any]]) -> Sections:
    """Kernels between one marker and the next, in the order they ran."""
    sections: Sections = []
    gpu_work = ("kernel", "gpu_memcpy", "gpu_memset")
    work = (event for event in events if event.get("cat") in gpu_work)
    for event in sorted(work, key=lambda event: float(event["ts"])):
        if "spin_kernel" in event["name"]:  # a marker
            sections.append([])
        elif sections:
            details = event.get("args", {})
            kernel = Kernel(event["name"], _size(details, "grid"), _size(details, "block"), float(event["dur"]))
            sections[-1].append(kernel)
    return sections[:-1]


def _size(details: dict[str, Any], name: str) -> str:
    return "x".join(map(str, details.get(name, ())))


def split_light(sections: Sections, launches: int, repeats: int) -> list[Timing]:
    """Three sections a run: cold, warm, and the emptying of caches for the next run."""
    _check(sections, 3 * repeats * launches)
    timings = []
    for number in range(launches):
        own = sections[3 * repeats * number : 3 * repeats * (number + 1)]
        timings.append(Timing(own[0::3], own[1::3], own[0::3]))
    return timings


def split_sustained(sections: Sections, launches: int, repeats: int, bursts: int) -> list[Timing]:
    """Rounds of two sections a launch (the run, the touching of inputs), then ``bursts`` rounds of four."""
    rounds = 2 * launches * repeats
    _check(sections, rounds + 4 * launches * bursts)
    hot, rest = sections[:rounds], sections[rounds : rounds + 4 * launches * bursts]
    timings = []
    for number in range(launches):
        own = range(4 * number, len(rest), 4 * launches)
        burst, warm = ([rest[place + offset] for place in own] for offset in (1, 2))
        timings.append(Timing(hot[2 * number :: 2 * launches], warm, burst))
    return timings


def _check(sections: Sections, expected: int) -> None:
    """A record with a marker too few would give every later kernel the time of another."""
    if len(sections) < expected:
        raise LostRecordError(f"the profiler lost {expected - len(sections)} of {expected} sections of its record")


# What a kernel's name says: which library it comes from, and the tile each of its thread blocks works on.

LONGEST = 64
NVJET = re.compile(r"_(\d+x\d+)_(\d+x\d+)_(\d+x\d+)_")  # tile, depth and stages of the loop, cluster
CUTE_TUPLE = re.compile(r"tuple<((?:\s*(?:cute::)?C<\d+>\s*,?)+)>")


def tile_of(name: str) -> str:
    """The tile of a kernel, in the words of its library; empty where the name does not say."""
    found = NVJET.search(name)
    if found:
        return "_".join(found.groups())
    tuples = ("x".join(re.findall(r"C<(\d+)>", numbers)) for numbers in CUTE_TUPLE.findall(name))
    return "_".join(list(dict.fromkeys(tuples))[:3])


def short_name(name: str) -> str:
    """Enough of a name to know the kernel again: template arguments of C++ names say little and are long."""
    plain = name.removeprefix("void ")
    if "device_kernel<" in plain:
        plain = plain.partition("device_kernel<")[2]
    for marker in ("enable_sm90_or_later<", "enable_sm80_to_sm89<"):
        plain = plain.partition(marker)[2] or plain
    return re.split(r"[<(]", plain, maxsplit=1)[0][:LONGEST]


REPEATS, MORE_REPEATS = 4, 12
ROUNDS = 3
HEAVY_FLOPS = 5e10  # products of this size run into the power limit when nothing but products runs
HEAT_SECONDS = 0.25
COOL_SECONDS = 1.5
"""How long the chip may take to get back to its full clock after heavy kernels, before anything else is measured."""


class Bench(Protocol):
    def build(self, case: Case) -> Launch: ...  # A kernel ready to run
    def time(self, launches: Sequence[Launch], repeats: int) -> list[Timing]: ...  # Cold and warm
    def time_sustained(self, launches: Sequence[Launch], repeats: int, heat_seconds: float) -> list[Timing]:
        """Among each other at the power limit."""

    def details(self, case: Case) -> dict[str, Any]: ...  # What else is known of a case's kernel
    def close(self) -> None: ...  # Gives the GPU's memory back


@dataclass
class Tally:
    tried: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # Cases that this machine cannot run, by the reason

    def skip(self, case: Case, problem: Exception) -> None:
        reason = reason_of(case, problem)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def reason_of(case: Case, problem: Exception) -> str:
    first_line = (str(problem).splitlines() or [""])[0][:120]
    first_line = re.sub(r"\(\d+x\d+\) ", "", first_line)  # one reason for all shapes that have it
    kind = "" if isinstance(problem, NotImplementedError | ImportError) else type(problem).__name__ + " "
    return f"{case.family}: {kind}{first_line}"


def is_heavy(case: Case) -> bool:
    """Whether a kernel runs into the power limit: such kernels are measured apart from others."""
    return case.flops >= HEAVY_FLOPS


def measure_batch(cases: Sequence[Case], bench: Bench, monitor: Monitor, tally: Tally, deadline: float) -> list[Row]:
    """Rows of those cases that this machine can run and that could be built (compiled) before the deadline."""
    ready: list[tuple[Case, Launch]] = []
    for case in cases:
        if time.monotonic() > deadline:
            break
        tally.tried += 1
        try:
            launch = bench.build(case)
            launch()
            ready.append((case, launch))
        except Exception as problem:  # of every kind where a package's version, the chip or its memory is not up to it
            tally.skip(case, problem)
    if not ready:
        return []
    start = time.monotonic()
    try:
        if is_heavy(cases[0]):
            timings = bench.time_sustained([launch for _, launch in ready], ROUNDS, HEAT_SECONDS)
            start += HEAT_SECONDS
        else:
            monitor.wait_until_cool(COOL_SECONDS)
            start = time.monotonic()
            timings = _time_light([launch for _, launch in ready], bench)
    except LostRecordError as problem:
        for case, _ in ready:
            tally.skip(case, problem)
        return []
    state = monitor.since(start)
    rows = []
    for (case, launch), timing in zip(ready, timings, strict=True):
        if timing.is_whole:
            chip = {"sm_mhz": state.sm_mhz, "watts": state.watts, "capped": state.capped}
            rows.append(_row(case, launch.engine, timing) | chip | _details(case, bench))
        else:
            tally.skip(case, LostRecordError("the profiler saw no kernel in one of the runs"))
    return rows


def _details(case: Case, bench: Bench) -> dict[str, Any]:
    try:
        return bench.details(case)
    except Exception:
        return {}


def _time_light(launches: Sequence[Launch], bench: Bench) -> list[Timing]:
    timings = bench.time(launches, REPEATS)
    steady = 0.01  # standard error of the mean, over the median, above which a case is repeated more often
    unsteady = [number for number, timing in enumerate(timings) if _error(_totals(timing.cold)) > steady]
    if unsteady:
        again = bench.time([launches[number] for number in unsteady], MORE_REPEATS)
        for number, timing in zip(unsteady, again, strict=True):
            timings[number] = timing
    return timings


def _row(case: Case, engine: str, timing: Timing) -> Row:
    kernels = timing.cold[-1]
    main = max(kernels, key=lambda kernel: kernel.microseconds)
    cold = _totals(timing.cold)
    return {
        "key": case.key, "family": case.family, "engine": engine, **case.shape, "latency_us": round(_typical(cold), 3),
        "burst_us": round(_typical(_totals(timing.burst)), 3), "warm_us": round(_typical(_totals(timing.warm)), 3),
        "error": round(_error(cold), 4), "repeats": len(cold), "kernels": len(kernels), "kernel": short_name(main.name),
        "kernel_us": round(main.microseconds, 3), "grid": main.grid, "block": main.block, "tile": tile_of(main.name),
        "split_k": any("splitK" in kernel.name for kernel in kernels),
    }  # fmt: skip


def _totals(sections: Sections) -> npt.NDArray[np.float64]:
    return np.array([sum(kernel.microseconds for kernel in kernels) for kernels in sections])


def _typical(totals: npt.NDArray[np.float64]) -> float:
    """The mean, as of a model's many layers, without runs that something disturbed."""
    disturbed = 1.5  # a run that takes this many times the median is left out
    return float(np.mean(totals[totals <= disturbed * np.median(totals)]))


def _error(totals: npt.NDArray[np.float64]) -> float:
    return float(np.std(totals, ddof=1) / np.sqrt(len(totals)) / max(np.median(totals), 1e-9))
