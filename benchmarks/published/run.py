"""One published run: what was asked of which engine, under which load, and what came back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from infercast.bundled import read_data
from infercast.errors import FileFormatError
from infercast.forecast.command.flags import Reading
from infercast.serve.workload.request import Request, Segment, Workload
from infercast.serve.workload.synthetic import synthetic_workload, workload_from_requests

NAMES = read_data(Path(__file__).with_name("names.toml"))
GPUS: dict[str, str] = NAMES["gpus"]
FORMATS = {name: ours for ours, names in NAMES["formats"].items() for name in names}

# Server settings as publishers write them down: words between semicolons, each understood or left aside.


@dataclass(frozen=True, slots=True)
class ServerFlags:
    settings: dict[str, Any]
    kv_cache_dtype: str
    fuse_allreduce_rms: bool | None  # None, as in the settings: by the release
    expert_parallel: bool
    moe_backend: str
    eight_bit_experts: bool  # Activations of 4-bit experts are quantised to 8 bits


def read_server_flags(text: str, concurrency: int | None, isl: int | None) -> ServerFlags:
    """Understand a row's words; ``concurrency`` and ``isl`` (prompt length) may stand in for numbers in them."""
    lower = text.lower()

    def number(name: str) -> int | None:
        found = re.search(rf"{name}=(\d+\*isl|\d+|concurrency)", lower)
        if found is None:
            return None
        value = found[1]
        if value == "concurrency":
            return concurrency
        return int(value.split("*")[0]) * (isl or 1) if value.endswith("isl") else int(value)

    utilization = re.search(r"gpu_mem_util=([\d.]+\d)", lower)
    fused = re.search(r"fuse_allreduce_rms|allreduce fusion", lower) is not None
    sizes = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "max_cudagraph_capture_size", "block_size")
    settings = {
        **{name: number(name) for name in sizes},
        "gpu_memory_utilization": float(utilization[1]) if utilization else None,
        "enable_prefix_caching": False if "prefix_caching=off" in lower or "no apc" in lower else None,
        "async_scheduling": "async_scheduling=on" in lower or None,
        "cudagraph_mode": "full_decode_only" if "full_decode_only" in lower else None,
    }
    return ServerFlags(
        settings=settings,
        kv_cache_dtype="fp8" if "kv_cache_dtype=fp8" in lower else "auto",
        fuse_allreduce_rms=fused or None,
        expert_parallel="expert-parallel on (" in lower or "expert_parallel=on" in lower,
        moe_backend="marlin" if "marlin" in lower else "trtllm" if "mxfp4xmxfp8" in lower else "auto",
        eight_bit_experts="mxfp4xmxfp8" in lower,
    )


def with_arguments(flags: ServerFlags, stated: Mapping[str, Any]) -> ServerFlags:
    """The same with an engine's own arguments over them, where the publisher kept those."""
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    found = {name: stated[name] for name in names if stated.get(name) is not None}
    return replace(
        flags,
        settings={**flags.settings, **found},
        kv_cache_dtype=stated.get("kv_cache_dtype") or flags.kv_cache_dtype,
        expert_parallel=bool(stated.get("enable_expert_parallel", flags.expert_parallel)),
    )


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run: what was asked of which engine, and what came back, in seconds."""

    run_id: str
    source: str
    gpu: str
    model: str
    workload: Workload
    dtype: str = ""
    tensor: int = 1
    data: int = 1
    expert_parallel: bool = False
    version: tuple[int, ...] = ()
    flags: ServerFlags | None = None
    max_model_len: int | None = None
    ttft: float | None = None  # None where the state of the prefix cache is unknown, too
    tpot: float | None = None
    end_to_end: float | None = None
    output_tokens_per_second: float | None = None
    engine: str = "vllm@0.25"
    reading: Reading | None = None  # Flags of the server's command where the source has it, else words in ``flags``
    median: bool = False  # Whether TTFT and TPOT are medians over the requests, not means
    settings: Mapping[str, Any] = field(default_factory=dict)  # What the row says beyond the command, by engine's names
    cache_tokens: int = 0  # Tokens that the source says its KV cache has room for; 0: it does not say
    gaps: bool = False  # Whether TPOT is the median of all times between tokens, because nothing else was published
    steady: bool = False  # Whether only the time was measured in which as many ran as may and others waited
    pipeline: int = 1
    instances: int = 1  # Servers of this kind, each for itself behind a load balancer
    copies: int = 1  # Servers that take turns, of which one is simulated with its part of the requests
    gpus: int = 0  # Stated GPUs, of which a layout may leave some idle
    layout_stated: bool = True
    load: str = ""
    grade: str = ""  # ``A``: settings are known, ``B``: some are implied; ``s`` behind it: with speculative decoding
    precision: str = ""
    chat: bool = False  # Whether requests are chats, which the server renders by a template
    served: bool = True  # Whether a server was asked, not the engine itself
    top_p: bool = False  # Whether tokens are drawn from the most likely ones only
    assumptions: tuple[str, ...] = ()  # What the source does not say and is taken to be so
    problem: str = ""

    @property
    def layout(self) -> str:
        """For people: ``TP4``, ``TP8+EP``."""
        parts = [
            f"TP{self.tensor}",
            f"PP{self.pipeline}" if self.pipeline > 1 else "",
            f"DP{self.data}" if self.data > 1 else "",
            "EP" if self.expert_parallel else "",
            f"{self.instances * self.copies} servers" if self.instances * self.copies > 1 else "",
        ]
        return "+".join(part for part in parts if part)


# The load of a run: as much of it as its row says, the rest as stated here.

SHARES = re.compile(r"uniform\s*\[\s*(\d+(?:\.\d+)?)?\s*l\s*,\s*(\d+(?:\.\d+)?)?\s*l\s*\]")
"""Lengths that are uniform between two shares of the stated length: ``uniform[0.8L,L]``."""
EXACT = ("", "exact", "fixed", "inference-perf shared_prefix")  # ``len_dist``: all requests have the stated length
LOADS = ("closed-loop", "all-at-once burst", "constant-rate", "poisson", "trace")
OPEN_LOOP_SECONDS = 120.0  # of a constant rate only so much is simulated: it is steady long before
SHARED_PROMPTS = 16  # prompts of a load generator that goes round a small set of them
LENGTHS = NAMES["lengths"]


class RowReader:
    def __init__(self, path: Path, line: int, row: Mapping[str, str | None]) -> None:
        self.path, self.line, self._row = path, line, row
        self.assumptions: list[str] = []  # What the row does not say and is taken to be so

    def assume(self, what: str) -> None:
        if what not in self.assumptions:
            self.assumptions.append(what)

    @property
    def folder(self) -> Path:
        """Where files of this run lie, if its publisher kept any."""
        return self.path.parent / self.text("source") / self.text("src_id")

    def text(self, name: str) -> str:
        return (self._row.get(name) or "").strip()

    def required(self, name: str) -> str:
        if not self.text(name):
            raise self.wrong(f"needs the column {name!r}")
        return self.text(name)

    def number(self, name: str) -> float | None:
        """A number above 0, or None where the field is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.wrong(f"{name} must be a number above 0, not {text!r}")
        return value

    def measured(self, name: str) -> float | None:
        """A number above 0; None where the field is empty or 0, which is how load generators say that it is missing."""
        return None if re.fullmatch(r"0*(\.0*)?", self.text(name)) else self.number(name)

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else round(value)

    def milliseconds(self, name: str) -> float | None:
        value = self.number(name)
        return None if value is None else value / 1e3

    def wrong(self, problem: str) -> FileFormatError:
        return FileFormatError(self.path, problem, self.line)


def read_arguments(row: RowReader) -> dict[str, Any]:
    """The engine's arguments from a run's own ``meta.json``; nothing where there is none."""
    path = row.folder / "meta.json"
    if not path.is_file():
        return {}
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))["engine_kwargs"]
    except (OSError, ValueError, KeyError, TypeError):
        raise row.wrong(f"{path} must be JSON with the engine's arguments in 'engine_kwargs'") from None
    return arguments if isinstance(arguments, dict) else {}


def read_workload(row: RowReader, *, cached: bool) -> Workload:
    """The requests of a run; ``cached``: its prompts come again and again and are likely to be found in the cache."""
    load = row.required("load")
    kind = next((known for known in LOADS if load.lower().startswith(known)), None)
    if kind is None:
        raise row.wrong(f"load {load!r} is not known; known: {', '.join(LOADS)}")
    if kind == "trace":
        return _read_requests(row, row.folder / "requests.jsonl")
    if kind == "all-at-once burst":
        count = _stated(row, "n_requests")
        shuffle = np.random.default_rng(0)
        lengths = (_burst_lengths(row, name, count, shuffle) for name in ("isl", "osl"))
        return workload_from_requests([Request(0.0, *pair) for pair in zip(*lengths, strict=True)])
    inputs, outputs = _lengths(row, "isl"), _lengths(row, "osl")
    if kind == "closed-loop":
        clients = _stated(row, "concurrency")
        count = row.whole("n_requests") or 10 * clients
        return synthetic_workload(concurrency=clients, count=count, input_lengths=inputs, output_lengths=outputs)
    rate = row.number("rate")
    if rate is None:
        raise row.wrong(f"load {load!r} needs the column 'rate'")
    # Of an open loop a part is enough.
    most = max(1, round(rate * OPEN_LOOP_SECONDS))
    count = min(row.whole("n_requests") or most, most)
    arrival = "constant" if kind == "constant-rate" else kind
    workload = synthetic_workload(arrival=arrival, rate=rate, count=count, input_lengths=inputs, output_lengths=outputs)
    return _from_few_prompts(workload) if cached else workload


def _stated(row: RowReader, name: str) -> int:
    value = row.whole(name)
    if value is None:
        raise row.wrong(f"load {row.text('load')!r} needs the column {name!r}")
    return value


def _lengths(row: RowReader, name: str) -> str:
    """Lengths as `parse_lengths` reads them: exactly the stated one, unless the row says how they differ."""
    length = _stated(row, name)
    stated = row.text("len_dist")
    if stated.lower() in EXACT:
        return str(length)
    shares = SHARES.fullmatch(stated.lower())
    if shares is None:
        raise row.wrong(f"len_dist {stated!r} is not known; known: nothing (exact lengths), fixed, uniform[0.8L,L]")
    low, high = (math.floor(float(share or 1) * length) for share in shares.groups())
    return f"uniform:{max(1, low)}:{max(1, high)}"


def _burst_lengths(row: RowReader, name: str, count: int, shuffle: np.random.Generator) -> list[int]:
    """Lengths of chats where a mean is published, of one length where that is."""
    mean, length = row.number(f"mean_{name}"), row.whole(name)
    if mean is None and length is None:
        raise row.wrong(f"load {row.text('load')!r} needs the column {name!r} or 'mean_{name}'")
    if mean is None and length:
        return [length] * count
    return chat_lengths(name, mean or 1.0, count, shuffle, row.whole("max_model_len"))


def chat_lengths(
    name: str, mean: float, count: int, shuffle: np.random.Generator, context: int | None = None
) -> list[int]:
    spread, shortest, longest = LENGTHS["chats"][name]
    longest = min(longest, (context or 2 * longest) // 2)
    return log_normal(mean, spread, count, shuffle, shortest, longest)


def log_normal(
    mean: float,
    spread: float,
    count: int,
    shuffle: np.random.Generator,
    shortest: float = 0.0,
    longest: float | None = None,
) -> list[int]:
    """Lengths of that mean between two ends, evenly spaced in probability and in random order."""
    ranks = np.array([NormalDist().inv_cdf((position + 0.5) / count) for position in range(count)])
    longest = longest or MOST_MEANS * mean
    low, high = math.log(mean) - spread * ranks.max(), min(math.log(mean) - spread * ranks.min(), math.log(longest))
    for _ in range(40):  # halve the range of the median until the lengths have their mean
        middle = (low + high) / 2
        lengths = np.clip(np.exp(middle + spread * ranks), shortest, longest)
        low, high = (middle, high) if lengths.mean() < mean else (low, middle)
    return [max(1, int(length)) for length in shuffle.permutation(np.rint(lengths))]


def _from_few_prompts(workload: Workload) -> Workload:
    """The same requests with prompts of a small set, which come round again and again."""
    return workload_from_requests(
        Request(each.arrival, each.num_input, each.num_output, (Segment(index % SHARED_PROMPTS, each.num_input),))
        for index, each in enumerate(workload.requests)
    )


def _read_requests(row: RowReader, path: Path) -> Workload:
    """Arrivals and lengths of single requests, from the file next to the table."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        start = min(line["arrival_time"] for line in lines)
        requests = [Request(line["arrival_time"] - start, line["input_toks"], line["output_toks"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        raise row.wrong(f"needs {path} with arrival_time, input_toks and output_toks of every request") from None
    return workload_from_requests(requests)


UNIFORM = re.compile(r"random in=(\d+) out=(\d+) \(sglang bench")  # Drawn by SGLang's benchmark, from 1 up
BENCH_SEED = 1  # its seed: the lengths that it draws are known one by one
SAME_MEAN, MOST_DRAWN = 0.0005, 5000
STATED = re.compile(r"(\d+)/(\d+)$")  # stated lengths of prompts and answers, behind how they vary
RANGED = re.compile(r"random (\d+)/(\d+) range ([\d.]+)")  # The same, with the share that the shortest has
MOST_MEANS = 4.0  # No natural prompt or answer is longer than so many means: clients ask for no more or leave it out
MOST_CHATTED = 400.0  # mean lengths up to which chats are as benchmarks cut them, at 1,000 tokens
SOME_EARLY = 0.02  # a mean that leaves a smaller share of answers to end early is that of answers of one length
CONTRADICTED = 1.5  # a stated length that differs from the mean by this factor is that of another run
Lengths = tuple[list[int], list[int]]


def read_lengths(row: RowReader, count: int) -> Lengths:
    stated = row.text("len_dist")
    if any(word in f"{stated} {row.text('bench_cmd')}".lower() for word in LENGTHS["not_served"]):
        raise row.wrong(f"len_dist {stated!r} is not modelled: prompts are text")
    means = _means(row)
    if (drawn := _drawn_again(row, means, count)) is not None:
        return drawn
    shuffle = np.random.default_rng(0)
    lower = stated.lower()
    shares, lengths = SHARES.match(lower), STATED.search(stated)
    if shares is not None and lengths is not None:
        low, high = (float(share or 1) for share in shares.groups())
        return _between(count, shuffle, [(low * int(most), high * int(most)) for most in lengths.groups()])
    if (ranged := RANGED.search(row.text("notes"))) is not None:
        low = float(ranged[3])
        return _between(count, shuffle, [(max(1.0, low * int(most)), float(most)) for most in ranged.groups()[:2]])
    if "uniform 1..l" in lower:
        row.assume(f"lengths are uniform up to twice their means, {means[0]:,.0f} and {means[1]:,.0f}")
        return _between(count, shuffle, [(1.0, 2 * mean - 1) for mean in means])
    lower = lower or ("sharegpt" if "sharegpt" in row.text("concurrency_or_rate").lower() else "")
    if lower.startswith(LENGTHS["natural"]) or _is_chat(row, means):
        # Lengths of natural prompts and answers, of which means are known
        row.assume("lengths are log-normal around their means")
        chats = lower.startswith(("sharegpt", "random"))
        spread = next((value[1] for name, value in LENGTHS["datasets"].items() if name in lower), LENGTHS["answers"])
        spreads = LENGTHS["long_chats"] if chats else (spread, LENGTHS["answers"])
        inputs, outputs = (
            chat_lengths(name, mean, count, shuffle)
            if max(means) < MOST_CHATTED and chats
            else log_normal(mean, each, count, shuffle)
            for name, mean, each in zip(("isl", "osl"), means, spreads, strict=True)
        )
        return inputs, outputs
    if not any(word in lower for word in LENGTHS["equal"]):
        row.assume(f"every prompt has {means[0]:,.0f} tokens and every answer {means[1]:,.0f}, their means")
    return [max(1, round(means[0]))] * count, _answers(row, means, count, shuffle)


def _drawn_again(row: RowReader, means: tuple[float, float], count: int) -> Lengths | None:
    """Lengths that SGLang's benchmark draws up to the longest, stated or usual; None where drawn means differ."""
    stated = UNIFORM.match(row.text("len_dist"))
    if stated is not None and not _contradicts([int(most) / 2 for most in stated.groups()], means):
        return _draw(int(stated[1]), int(stated[2]), count)
    text = f"{row.text('len_dist')} {row.text('server_cmd')} {row.text('bench_cmd')}"
    if "sglang" not in text or count > MOST_DRAWN:
        return None
    for longest in product(LENGTHS["usual"], repeat=2):
        if _contradicts([each / 2 for each in longest], means):
            continue
        drawn = _draw(longest[0], longest[1], count)
        if all(abs(sum(each) / count / mean - 1) < SAME_MEAN for each, mean in zip(drawn, means, strict=True)):
            row.assume(
                f"lengths are uniform up to {longest[0]:,} and {longest[1]:,}: those that are drawn have the means"
            )
            return drawn
    return None


def _draw(longest_input: int, longest_output: int, count: int) -> Lengths:
    generator = np.random.RandomState(BENCH_SEED)
    inputs, outputs = (generator.randint(1, most + 1, size=count).tolist() for most in (longest_input, longest_output))
    return inputs, outputs


def _answers(row: RowReader, means: tuple[float, float], count: int, shuffle: np.random.Generator) -> list[int]:
    """Answers of one length, or some of them shorter where their mean is below what was asked for."""
    asked = STATED.search(row.text("len_dist"))
    limit = float(asked[2]) if asked else 0.0
    command = row.text("bench_cmd")
    lengths = [re.search(rf"--random-{each}-len[ =](\d+)", command) for each in ("input", "output")]
    if lengths[0] and lengths[1] and not _contradicts([float(lengths[0][1])], means[:1]):
        limit = float(lengths[1][1])
    early = 2 * (1 - means[1] / limit) if limit else 0.0
    if not SOME_EARLY < early < 1:
        return [max(1, round(means[1]))] * count
    row.assume(f"{early:.0%} of the answers end anywhere before their {limit:,.0f} tokens")
    ends = np.where(shuffle.random(count) < early, shuffle.integers(1, round(limit), count), round(limit))
    return [int(end) for end in ends]


def _means(row: RowReader) -> tuple[float, float]:
    inputs, outputs = row.number("mean_in"), row.number("mean_out")
    if inputs is None:
        lower = row.text("len_dist").lower()
        known = next((value for name, value in LENGTHS["datasets"].items() if name in lower), None)
        if known is not None:
            inputs = known[0]
            row.assume(f"prompts have {inputs:,.0f} tokens in the mean: those of {row.text('len_dist')} are not stated")
    if inputs is None or outputs is None:
        raise row.wrong("needs the columns 'mean_in' and 'mean_out'")
    return inputs, outputs


def _contradicts(stated: Sequence[float], means: Sequence[float]) -> bool:
    pairs = zip(stated, means, strict=True)
    return any(abs(math.log(mean / length)) > math.log(CONTRADICTED) for length, mean in pairs)


def _is_chat(row: RowReader, means: Sequence[float]) -> bool:
    """Whether a row names lengths of another run of its page, and was one of chats."""
    found = re.match(r"random in=(\d+) out=(\d+)", row.text("len_dist"))
    if found is None or not _contradicts([float(length) for length in found.groups()][:1], means[:1]):
        return False
    row.assume(f"lengths of chats: means of {means[0]:,.0f} and {means[1]:,.0f} are not {row.text('len_dist')!r}")
    return True


def _between(count: int, shuffle: np.random.Generator, ends: Sequence[tuple[float, float]]) -> Lengths:
    drawn = [
        shuffle.integers(round(low), max(round(low), round(high)), count, endpoint=True).tolist() for low, high in ends
    ]
    return drawn[0], drawn[1]


CLOSED, POISSON, CONSTANT, BURST, OFFLINE, CAPPED = (
    "closed loop", "poisson", "constant", "burst", "offline", "saturated, capped batch",
)  # fmt: skip
OPEN = (POISSON, CONSTANT)
KINDS = (CLOSED, POISSON, CONSTANT, BURST, OFFLINE, CAPPED)
RATE = re.compile(r"(?:rate|poisson|constant) (\d+(?:\.\d+)?|inf)")
CLIENTS = re.compile(r"concurrency (\d+)")
CAP = re.compile(r"max_num_seqs (\d+)")
ROUNDS = re.compile(r"\baiperf synthetic\b", re.IGNORECASE)
ENTRIES = 100  # Prompts of AIPerf's synthetic dataset by default; requests go round it, in a new order each time
AT_ONCE_FROM = 1000.0
TURNS = 10
OPEN_SECONDS, MOST_OPEN = 200.0, 12000  # Of an open loop without an end so much is simulated, its first part left out
STEADY_TURNS, WIDE, WIDE_TURNS = 3, 256, 2  # How often each place of a full batch is taken, of one with more places ...
LEAST_STEADY, MOST_STEADY = 96, 3072  # ... within these numbers of requests.


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, what kind of load they are, and what it says of the server."""

    kind: str
    workload: Workload
    cap: int | None = None
    steady: bool = False


def read_load(row: RowReader) -> Load:
    """Clients that send one request after the other, requests that come at some rate, or all at once."""
    kind, about = row.text("load_kind").lower(), row.text("concurrency_or_rate").lower()
    kind = next((known for known in KINDS if kind.startswith(known)), kind)
    clients, rate = CLIENTS.search(about), RATE.match(about)
    if "multi-turn" in row.text("notes"):
        raise row.wrong("was a load of conversations, whose turns are not in the table")
    if kind == CLOSED and clients:
        requests = _requests(row, _count(row, TURNS * int(clients[1])))
        if ROUNDS.search(row.text("prefix_note")):
            requests = _in_rounds(row, requests)
        return Load(kind, workload_from_requests(requests, concurrency=int(clients[1])))
    if kind in (POISSON, CONSTANT) and rate and rate[1] != "inf" and float(rate[1]) < AT_ONCE_FROM:
        return Load(kind, _open(row, kind, float(rate[1])), steady=row.whole("num_requests") is None)
    if kind == BURST or (kind in (POISSON, CONSTANT) and rate):
        if row.whole("num_requests") is None:
            raise row.wrong("needs the column 'num_requests'")
        return Load(BURST, workload_from_requests(_requests(row, _count(row, 1))))
    cap = CAP.search(about)
    if kind == CAPPED and cap:
        return Load("capped batch", _full(row, int(cap[1])), int(cap[1]), steady=True)
    if kind == OFFLINE:
        return Load(kind, _full(row, row.whole("max_num_seqs") or 256), steady=True)
    raise row.wrong(f"load {kind!r} with {about!r} is not known; known: {', '.join(KINDS)}")


def _count(row: RowReader, otherwise: int) -> int:
    count = row.whole("num_requests")
    if count is None:
        row.assume(f"{otherwise:,} requests: their number is not stated")
    return count or otherwise


def _requests(row: RowReader, count: int) -> list[Request]:
    """``count`` requests that come at once."""
    return [Request(0.0, *pair) for pair in zip(*read_lengths(row, count), strict=True)]


def _in_rounds(row: RowReader, requests: list[Request]) -> list[Request]:
    """The same requests with prompts of a small dataset, each round of it shuffled."""
    row.assume(f"prompts are {ENTRIES} that come round again")
    shuffle = np.random.default_rng(0)
    order = np.concatenate([shuffle.permutation(ENTRIES) for _ in range(-(-len(requests) // ENTRIES))]).tolist()
    pairs = zip(requests, order, strict=False)
    return [replace(each, prefix=(Segment(content, each.num_input),)) for each, content in pairs]


def _open(row: RowReader, kind: str, rate: float) -> Workload:
    """Requests that come at a rate, at random times or evenly spaced."""
    most = min(MOST_OPEN, max(1, round(rate * OPEN_SECONDS)))
    count = _count(row, most)
    gaps = np.full(count, 1 / rate) if kind == CONSTANT else np.random.default_rng(0).exponential(1 / rate, count)
    times = np.cumsum(gaps).tolist()
    requests = _requests(row, count)
    return workload_from_requests(replace(each, arrival=at) for each, at in zip(requests, times, strict=True))


def _full(row: RowReader, cap: int) -> Workload:
    """More requests at once than can run at the same time: as many as show how a full batch goes on."""
    count = min(max((STEADY_TURNS if cap <= WIDE else WIDE_TURNS) * cap, LEAST_STEADY), MOST_STEADY)
    stated = row.whole("num_requests")
    if stated is None or stated > count:
        row.assume(f"a full batch is simulated with {count:,} requests")
    else:
        count = stated
    return workload_from_requests(_requests(row, count))
