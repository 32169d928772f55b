"""Prometheus metrics under the engine's own names, so that dashboards, autoscalers and planners see an engine."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infercast.bundled import read_data


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

    def samples(self, row: Mapping[str, Any], labels: str, gauges: Mapping[str, float]) -> Iterator[str]:
        """The lines of one metric of this engine."""
        name, value = row["name"], row["value"]
        if row["kind"] == "histogram":
            yield from self._histogram(name, self.histograms[value], labels)
        elif value == "finished":
            for reason in row["reasons"]:
                yield f'{name}_total{{{labels},{row["label"]}="{reason}"}} {self.finished[reason]}'
        elif value == "info":
            sizes = ",".join(f'{key}="{gauges[key]:g}"' for key in row["keys"])
            yield f"{name}{{{labels},{sizes}}} 1"
        else:
            suffix = "_total" if row["kind"] == "counter" and not name.endswith("_total") else ""
            yield f"{name}{suffix}{{{labels}}} {gauges[value] if value in gauges else self.counters[value]:.10g}"

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
    rows = {name: row if isinstance(row, dict) else {"value": row} for name, row in table.pop("names").items()}
    return {**table, "metric": [{"name": name, **row, **about[row["value"]]} for name, row in rows.items()]}


class Metrics:
    """The metrics of all engines of one deployment."""

    def __init__(self, family: str, model: str, engines: int, max_model_len: int) -> None:
        self._table = metrics_of(family)
        self.engines = [EngineMetrics(self._table, max_model_len) for _ in range(engines)]
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = [self._table["labels"].format(model=escaped, engine=number) for number in range(engines)]

    def text(self, gauges: Sequence[Mapping[str, float]], ours: Mapping[str, tuple[str, float]]) -> str:
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
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:.10g}"]
        return "\n".join(lines) + "\n"
