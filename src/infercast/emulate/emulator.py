"""A deployment in real time: requests of clients in, tokens out when the simulated engine has them, and its metrics.

Metrics are those of Prometheus under the names of the engine, so that dashboards, autoscalers and planners see one.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Any, cast
from zlib import crc32

import numpy as np

from infercast.bundled import read_data
from infercast.emulate.answers import RULE, GeneratedText, Wanted, generate_text
from infercast.emulate.prompts import Contents, Vocabulary
from infercast.errors import InputError, require
from infercast.forecast.intervals import forecast_intervals, slowed_timer
from infercast.forecast.simulate import simulate_system
from infercast.forecast.system import System
from infercast.serve.fleet.live import LiveSystem, Tokens
from infercast.serve.fleet.pool import Engine
from infercast.serve.loop import Loop
from infercast.serve.scheduler.scheduler import Scheduler
from infercast.serve.workload.classes import asking_for
from infercast.serve.workload.distributions import LengthDistribution
from infercast.serve.workload.request import Request, Segment, Workload


class Histogram:
    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = [*buckets]
        self.counts = [0] * (len(self.buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times


class EngineMetrics:
    """Counters and histograms of one engine; gauges are read when they are asked for."""

    def __init__(self, table: Mapping[str, Any], max_model_len: int) -> None:
        self._table = table
        self.counters: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.histograms = {
            row["value"]: Histogram(_buckets(table["buckets"], row["buckets"], max_model_len))
            for row in table["metric"]
            if row["kind"] == "histogram"
        }

    def observe(self, name: str, value: float, times: int = 1) -> None:
        if name in self.histograms:
            self.histograms[name].observe(value, times)

    def samples(self, row: Mapping[str, Any], labels: str, gauges: Mapping[str, Any]) -> Iterator[str]:
        """The lines of one metric of this engine; a gauge may have a value for each of a label's, or none."""
        name, value = row["name"], row["value"]
        if row["kind"] == "histogram":
            yield from self._histogram(name, self.histograms[value], labels)
        elif value == "finished":
            for reason in row["reasons"]:
                yield f'{name}_total{{{labels},{row["label"]}="{reason}"}} {self.finished[reason]}'
        elif value == "info":
            sizes = ",".join(f'{key}="{gauges[key]}"' for key in row["keys"])
            yield f"{name}{{{labels},{sizes}}} 1"
        else:
            full = f"{name}_total" if row["kind"] == "counter" and not name.endswith("_total") else name
            shown = gauges.get(value, self.counters[value])
            if shown is None:
                return
            if isinstance(shown, Mapping):
                more = (
                    (f'{labels},{row["label"]}="{key}"' if "label" in row else key, each) for key, each in shown.items()
                )
                yield from (f"{full}{{{told}}} {each:.10g}" for told, each in more)
            else:
                yield f"{full}{{{labels}}} {shown:.10g}"

    def _histogram(self, name: str, histogram: Histogram, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip([*histogram.buckets, float("inf")], histogram.counts, strict=True):
            total += count
            shown = "+Inf" if bound == float("inf") else repr(float(bound))
            yield f'{name}_bucket{{{labels},le="{shown}"}} {total}'
        yield f"{name}_sum{{{labels}}} {histogram.sum:.10g}"
        yield f"{name}_count{{{labels}}} {total}"


def _buckets(named: Mapping[str, list[float]], name: str, longest: int) -> list[float]:
    if name != "tokens":
        return named[name]
    steps = (mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5))
    return [each for each in steps if each <= longest]


def metrics_of(family: str) -> dict[str, Any]:
    """What a server's page of metrics has: each ``metric`` with its name, value, kind and words, buckets and labels."""
    shown: dict[str, dict[str, str]] = read_data("engines/metrics.toml")
    about = {value: {"kind": kind, "help": text} for kind, rows in shown.items() for value, text in rows.items()}
    table = dict(read_data(f"engines/{family}/metrics.toml"))
    unused = {f"{family}:{name}": value for value, names in table.pop("unused", {}).items() for name in names.split()}
    listed = {**table.pop("names"), **unused}
    rows = {name: row if isinstance(row, dict) else {"value": row} for name, row in listed.items()}
    return {**table, "metric": [{"name": name, **row, **about[row["value"]]} for name, row in rows.items()]}


class Metrics:
    """The metrics of all engines of one deployment."""

    def __init__(self, family: str, model: str, engines: int, max_model_len: int) -> None:
        self._table = metrics_of(family)
        self.is_lenient = bool(self._table.get("is_lenient"))  # Whether its API takes what others refuse
        self.engines = [EngineMetrics(self._table, max_model_len) for _ in range(engines)]
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = [self._table["labels"].format(model=escaped, engine=number) for number in range(engines)]

    def text(self, gauges: Sequence[Mapping[str, Any]], ours: Mapping[str, tuple[str, float]]) -> str:
        """All metrics in Prometheus' format; ``ours``: name, help and value of gauges of the emulator itself."""
        lines: list[str] = []
        for row in self._table["metric"]:
            has_total = row["kind"] == "counter" and not row["name"].endswith("_total")
            full = f"{row['name']}_total" if has_total else row["name"]
            kind = "gauge" if row["kind"] == "info" else row["kind"]
            lines += [f"# HELP {full} {row['help']}", f"# TYPE {full} {kind}"]
            for engine, labels, values in zip(self.engines, self._labels, gauges, strict=True):
                lines += engine.samples(row, labels, values)
        for name, (help_text, value) in ours.items():
            bare = name.partition("{")[0]
            kind = "counter" if bare.endswith("_total") else "gauge"
            lines += [f"# HELP {bare} {help_text}", f"# TYPE {bare} {kind}", f"{name} {value:.10g}"]
        return "\n".join(lines) + "\n"


LONGEST_SLEEP = 3600.0
PLAIN = Wanted()
OWN_SECONDS = 0.001  # What this server takes to accept a request and write a token, part of the deployment's API server
LATELY = 60.0  # Seconds over which rates are told


@dataclass(slots=True, eq=False)
class Stream:
    """One answer while it is being written."""

    request: Request
    text: GeneratedText
    call: Call
    choice: int
    max_tokens: int
    wanted: Wanted
    seed: int
    vocabulary: Vocabulary = RULE
    began: float = 0.0
    entered: float = 0.0  # When it had passed the API server
    first: float | None = None
    last: float = 0.0
    num_sent: int = 0  # Tokens that have left the engine ...
    num_cached: int = 0  # Tokens of its prompt that were found
    num_taken: int = 0  # ... and those that were handed to the client.
    is_done: bool = False

    @property
    def finish_reason(self) -> str | None:
        return self.text.reason if self.is_done and self.num_taken == self.num_sent else None

    def take(self) -> str:
        """What a client reads of the tokens that came since the last call."""
        begin, self.num_taken = self.num_taken, self.num_sent
        shown = self.text.shown or self.text.tokens
        return shown[begin] if self.num_sent == begin + 1 else "".join(shown[begin : self.num_sent])


@dataclass(slots=True, eq=False)
class Call:
    """One request over HTTP, with one answer or several."""

    streams: dict[int, Stream] = field(default_factory=dict)  # By the index of the request in the system
    fresh: dict[Stream, None] = field(default_factory=dict)  # Answers with new tokens
    write: Callable[[], None] = lambda: None  # Called when there are any, as seldom as once for all that are due
    fail: Callable[[str], None] = lambda _: None  # Called when its answers cannot go on
    came: float | None = None  # When it reached the server
    num_open: int = 0  # Answers that are not complete
    num_prompt: int = 0  # Tokens of its prompts, each counted once


class Emulator:
    """A system that serves clients; its times are those of the simulation, divided by ``speed``."""

    def __init__(
        self, system: System, lengths: LengthDistribution, *, speed: float = 1.0, seed: int = 0,
        clock: Callable[[], float] = time.monotonic, adapters: Sequence[str] = (), vocabulary: Vocabulary = RULE,
    ) -> None:  # fmt: skip
        """``adapters``: names that clients may ask for."""
        self.vocabulary = vocabulary
        self.adapters, self.is_asleep = tuple(adapters), False
        require(0 < speed <= 1000, "speed", "be above 0 and at most 1000", speed)
        self.system, self.speed, self._lengths = system, speed, lengths
        first, last = system.pools[0], system.pools[-1]
        if system.wire is None:
            self.live = LiveSystem(first.engines)
        else:
            size = last.deployment.model.sequence_bytes
            self.live = LiveSystem(first.engines, last.engines, system.wire, size)
        settings: Any = last.deployment.settings
        self.max_model_len = int(last.replica.max_model_len or settings.max_model_len)
        model = last.deployment.model.name
        self.family = last.deployment.engine.family
        self.vocabulary_size = max(last.deployment.model.vocabulary, vocabulary.size)
        self.metrics = Metrics(self.family, model, len(last.engines.replicas), self.max_model_len)
        host = last.deployment.host if last.deployment.over_http else None
        self._server = (0.0, 0.0) if host is None else (host.server_path, host.server_token)
        """Seconds of the API server for a request and each of its tokens, which an engine's own metrics leave out."""
        self.wake_lag = 0.0  # Seconds by which the process woke late, lately
        self.lag = self.longest_lag = 0.0  # Seconds by which the last tokens left late, and the most so far
        self._contents, self._random = Contents(), np.random.default_rng(seed)
        self._streams: dict[int, Stream] = {}
        self._clock, self._began = clock, clock()
        lead = OWN_SECONDS * speed if clock is time.monotonic else 0.0
        self._lead = lead if lead < first.replica.request_path_seconds / 2 else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.down: set[int] = self.live.pools[-1].down  # Engines that have crashed and are not back
        most_recent = 20_000  # Requests kept for the forecast of the load so far
        self._recent: deque[Request] = deque(maxlen=most_recent)

    def now(self) -> float:
        """Seconds on the simulation's clock."""
        return (self._clock() - self._began) * self.speed

    # Requests.

    def start(
        self, call: Call, choice: int, ids: Sequence[int], max_tokens: int | None, wanted: Wanted = PLAIN, *,
        priority: int = 0, came: float | None = None, adapter: int | None = None,
    ) -> Stream:  # fmt: skip
        """Send a prompt to the engine; ``max_tokens`` None: as many as the model has room for. ``came``: when it
        reached this server; the time since then counts as the API server's.
        """
        room = self.max_model_len - len(ids)
        if not ids:
            raise InputError("the prompt is empty; an engine needs at least one token")
        if room < 1 or (max_tokens or 1) > room:
            raise InputError(
                f"this model's maximum context length is {self.max_model_len} tokens; the request has {len(ids)} in "
                f"its prompt and asks for {max_tokens or 1} more"
            )
        most = min(max_tokens or room, self.system.pools[-1].replica.max_output or room)
        if wanted.min_tokens > most:
            raise InputError(f"min_tokens must be at most {most}, the room for an answer, not {wanted.min_tokens}")
        random, seed = self._random, self._seed_of(wanted, ids, choice)
        if seed is None:
            seed = int(random.integers(1 << 30))
        else:
            random = np.random.default_rng(seed)
        natural = most if wanted.ignore_eos else max(wanted.min_tokens, int(self._lengths.sample(1, random)[0]))
        answer = generate_text(wanted, seed, natural, most, self.vocabulary)
        words = answer.tokens
        told = [each ^ crc32(wanted.cache_salt.encode()) << 20 for each in ids] if wanted.cache_salt else ids
        segments, whole = self._contents.segments(told)
        now = self.now() if came is None else came - self._lead
        name = hash(("answer", seed, self.live.num_requests))
        request = Request(
            now, len(ids), len(words), segments, name, declared=most, stops=len(words) < most, priority=priority
        )
        index = self.live.submit(asking_for(request, adapter), now)
        answered = map(self.vocabulary.id_of, words)
        self._contents.remember(told, whole, answered, (*segments, Segment(name, len(words))))
        stream = Stream(request, answer, call, choice, most, wanted, seed, self.vocabulary, began=now)
        call.streams[index] = self._streams[index] = stream
        call.num_open += 1
        self._recent.append(request)
        # Look at what is due next; without an event loop, whoever moves the clock calls `catch_up`.
        if self._timer is not None:
            self._timer.cancel()
        if self._clock is time.monotonic:
            self._timer = asyncio.get_running_loop().call_later(0, self._tick)
        return stream

    @staticmethod
    def _seed_of(wanted: Wanted, ids: Sequence[int], choice: int) -> int | None:
        """Equal seeds, and equal prompts without any chance, have equal answers."""
        if wanted.seed is None and not wanted.is_greedy:
            return None
        told = wanted.seed if wanted.seed is not None else crc32(repr([*ids]).encode())
        return (told * 2654435761 + choice * 7919) % (1 << 30)

    def leave(self, call: Call) -> None:
        """The client has gone: its answers are not written any further."""
        for index, stream in call.streams.items():
            if not stream.is_done and self._streams.pop(index, None) is not None:
                metrics = self.metrics.engines[self.live.abort(index, self.now())]
                metrics.finished["abort"] += 1
                metrics.counters["aborted"] += 1

    # What goes wrong.

    def crash(self, number: int) -> None:
        """An engine ends: its answers break off, and what it had cached is gone."""
        engine = self.live.pools[-1].engines[number]
        for stream in [each for index, each in self._streams.items() if index in engine.outstanding]:
            self.leave(stream.call)
            stream.call.fail("the engine has ended")
        engine.loop.scheduler.cache.clear()

    def slow(self, number: int, gpu: float, host: float) -> None:
        """Steps of an engine take so many times as long from now on as they are forecast."""
        for running, pool in zip(self.live.pools, self.system.pools, strict=True):
            if number < len(running.engines):
                timer = pool.engines.replicas[number].timer
                cast("Loop", running.engines[number].loop).use(slowed_timer(timer, gpu, gpu, host))

    def reset_prefix_cache(self) -> None:
        for pool in self.live.pools:
            for engine in pool.engines:
                engine.loop.scheduler.cache.clear()

    # The clock.

    def catch_up(self) -> None:
        """Let the system catch up with the clock, and hand out tokens."""
        now, calls = self.now() + self._lead, dict[Call, None]()
        for at, _, engine, tokens in self.live.advance(now):
            self.lag = max(0.0, now - self._lead - at) / self.speed
            self.longest_lag = max(self.longest_lag, self.lag)
            self._hand_out(tokens, at, engine, calls)
        for call in calls:
            call.write()

    def _tick(self) -> None:
        self.catch_up()
        ahead = self.live.next_event
        wait = min(LONGEST_SLEEP, (ahead - self.now() - self._lead) / self.speed) if ahead < inf else LONGEST_SLEEP
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _hand_out(self, tokens: list[Tokens], at: float, engine: int, calls: dict[Call, None]) -> None:
        """The tokens of a step; adds the calls that get any."""
        metrics, streams, total = self.metrics.engines[engine], self._streams, 0
        gaps: dict[float, int] = {}  # Of tokens, most of which waited as long as others did
        for index, number, is_last in tokens:
            if (stream := streams.get(index)) is None:
                continue
            if stream.first is None:
                self._begin(stream, metrics, at, int(self.live.records[engine].num_cached[index]))
            else:
                gap = (at - stream.last) / (number or 1)
                gaps[gap] = gaps.get(gap, 0) + number
            stream.last = at
            stream.num_sent += number
            total += number
            if is_last:
                stream.is_done = True
                stream.call.num_open -= 1
                del streams[index]
                scheduler = self.live.pools[-1].engines[engine].loop.scheduler
                preempted = scheduler.preempted.pop(index, 0) if isinstance(scheduler, Scheduler) else 0
                self._finish(stream, metrics, float(self.live.records[engine].started_at[index]), preempted)
            stream.call.fresh[stream] = calls[stream.call] = None
        for gap, number in gaps.items():
            metrics.observe("gap", gap, number)
        metrics.counters["generation_tokens"] += total

    def _begin(self, stream: Stream, metrics: EngineMetrics, at: float, cached: int) -> None:
        """An answer has its first token."""
        stream.num_cached = cached
        stream.first, count, (path, token) = at, stream.request.num_input, self._server
        metrics.counters.update(prompt_tokens=count, prefix_queries=count, prefix_hits=cached)
        stream.entered = stream.began + path + token * count
        metrics.observe("ttft", at - stream.entered)

    def _finish(self, stream: Stream, metrics: EngineMetrics, started: float, preempted: int) -> None:
        request, first = stream.request, stream.first or 0.0
        metrics.finished["length" if stream.text.reason == "length" else "stop"] += 1
        is_structured = stream.wanted.schema is not None or stream.wanted.choices or stream.wanted.pattern is not None
        metrics.counters.update(requests=1, structured=int(bool(is_structured)))
        measured = {
            "n": len(stream.call.streams), "computed": request.num_input - stream.num_cached,
            "input": request.num_input, "output": request.num_output, "max_tokens": stream.max_tokens,
            "preempted": preempted, "e2e": stream.last - stream.entered, "queue": max(0.0, started - stream.entered),
            "inference": stream.last - started, "prefill": first - started, "decode": stream.last - first,
        }  # fmt: skip
        if request.num_output > 1:
            measured["tpot"] = (stream.last - first) / (request.num_output - 1)
        for name, value in measured.items():
            metrics.observe(name, value)

    # What is told of it.

    def metrics_text(self, more: Mapping[str, tuple[str, float]] = MappingProxyType({})) -> str:
        """Everything for Prometheus, under the engine's names; ``more``: other gauges of our own."""
        found = [self._gauges(number) for number in range(len(self.metrics.engines))]
        ours = {
            "infercast:lag_seconds": ("Seconds by which the last tokens left late.", self.lag),
            "infercast:longest_lag_seconds": ("The most so far.", self.longest_lag),
            "infercast:wake_lag_seconds": ("Seconds by which this process wakes late.", self.wake_lag),
            "infercast:clock_seconds": ("The simulation's clock.", self.now()),
            **more,
        }
        return self.metrics.text(found, ours)

    def _gauges(self, number: int) -> dict[str, Any]:
        engine, metrics = self.live.pools[-1].engines[number], self.metrics.engines[number]
        scheduler, record = engine.loop.scheduler, self.live.records[number]
        while record.step_sizes:
            metrics.observe("step_tokens", record.step_sizes.popleft())
        replica = self.system.pools[-1].replica
        usage = scheduler.cache.num_held / replica.num_blocks
        block, counters = replica.kv_shape.block_size, metrics.counters
        capacity, memory = replica.num_blocks * block, self.system.pools[-1].deployment.memory
        seconds = max(1.0, self.now())
        running = len(scheduler.running)
        waiting = len(engine.outstanding) - running
        hits, awake = counters["prefix_hits"], float(not self.is_asleep)
        return {
            "zero": 0, "nothing": 0, "capacity": capacity, "max_model_len": self.max_model_len,
            "weights_gb": memory.weights / 1e9, "kv_gb": memory.kv_bytes / 1e9,
            "decode_tokens": sum(each.num_tokens for each in scheduler.running),
            "rejected": {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0},
            "cached_sources": {"device": hits} | dict.fromkeys(("host", "p2p", "disk", "external_unspecified"), 0),
            "waiting_by_reason": {"capacity": waiting, "deferred": 0},
            "sleep_state": {"awake": awake, "weights_offloaded": 1 - awake, "discard_all": 0},
            "prompt_sources": {
                "local_compute": counters["prompt_tokens"] - hits, "local_cache_hit": hits, "external_kv_transfer": 0,
            },
            "accepted_by_position": dict(enumerate(record.drafts.accepted_by_position)),
            "adapters": self._adapters_of(engine, number), "external": None if replica.offload else 0,
            "running": running, "waiting": waiting, "kv_usage": usage,
            "preemptions": scheduler.num_preemptions, "used_tokens": round(usage * capacity),
            "free_tokens": round((1 - usage) * capacity), "block_size": block, "num_gpu_blocks": replica.num_blocks,
            "enable_prefix_caching": replica.prefix_caching,
            "gpu_memory_utilization": getattr(self.system.pools[-1].deployment.settings, "gpu_memory_utilization", 1.0),
            "gen_throughput": counters["generation_tokens"] / seconds,
            "hit_rate": counters["prefix_hits"] / max(1, counters["prefix_queries"]),
            "drafts": record.drafts.num_drafts, "draft_tokens": record.drafts.num_draft_tokens,
            "accepted_tokens": sum(record.drafts.accepted_by_position),
            "accept_length": 1 + sum(record.drafts.accepted_by_position) / max(1, record.drafts.num_drafts),
        }  # fmt: skip

    def _adapters_of(self, engine: Engine, number: int) -> dict[str, float]:
        """Adapters of requests that run and that wait, as labels; the first engine tells of all."""
        settings: Any = self.system.pools[-1].deployment.settings
        if not self.adapters or number:
            return {}
        running = {each.index for each in engine.loop.scheduler.running}
        names: dict[bool, set[str]] = {True: set(), False: set()}
        for index, request in engine.outstanding.items():
            if request.adapter is not None:
                names[index in running].add(self.adapters[request.adapter])
        labels = {"running_lora_adapters": names[True], "waiting_lora_adapters": names[False]}
        told = ",".join(f'{name}="{",".join(sorted(found))}"' for name, found in labels.items())
        return {f'max_lora="{getattr(settings, "max_loras", len(self.adapters))}",{told}': time.time()}

    def state(self) -> dict[str, Any]:
        """The load so far, and what the engines do."""
        seconds, recent = self.now(), self._lately()
        span = min(LATELY, seconds) or 1.0
        return {
            "gpus": self.system.gpus, "clock_seconds": seconds, "speed": self.speed, "requests": self.live.num_requests,
            "requests_per_second": len(recent) / span,
            "mean_input_tokens": sum(each.num_input for each in recent) / max(1, len(recent)),
            "mean_output_tokens": sum(each.num_output for each in recent) / max(1, len(recent)),
            "lag_seconds": self.lag, "longest_lag_seconds": self.longest_lag,
            "engines": [self._gauges(number) for number in range(len(self.metrics.engines))],
        }  # fmt: skip

    def forecast(self) -> Callable[[], dict[str, Any]] | None:
        """Forecasts the requests of late, with intervals and bottleneck, when called in a thread; None without any."""
        if not (recent := self._lately()):
            return None
        begin = recent[0].arrival
        workload = Workload(tuple(replace(each, arrival=each.arrival - begin) for each in recent))

        def answer() -> dict[str, Any]:
            from infercast.report.forecast import forecast_dict  # noqa: PLC0415 - only where it is asked for

            found = simulate_system(self.system, workload)
            return forecast_dict(found, forecast_intervals(found))

        return answer

    def _lately(self) -> list[Request]:
        now = self.now()
        return [each for each in self._recent if each.arrival > now - LATELY] or [*self._recent]
