"""Every candidate of a plan with its numbers, or with its reason for refusal, as a table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO

from infercast.forecast.latency import NAMES
from infercast.forecast.plan.result import Figures, Plan, Row
from infercast.units import MILLI


def _drawn(name: str, figures: Figures) -> object:
    return None if figures.drawn is None else getattr(figures.drawn, name)


OF_CANDIDATES: dict[str, Callable[[Row], object]] = {
    "stage": lambda row: row.stage.value,
    "engine": lambda row: row.candidate.engine,
    "gpu": lambda row: row.candidate.gpu,
    "gpus": lambda row: row.gpus,
    "layout": lambda row: str(row.candidate.layout),
    "replicas": lambda row: row.candidate.replicas,
    "weights": lambda row: row.candidate.quantization or "as published",
    "kv_cache_dtype": lambda row: row.candidate.kv_cache_dtype,
    "settings": lambda row: " ".join(f"{name}={value}" for name, value in row.candidate.settings),
    "power_limit_w": lambda row: row.candidate.power_limit,
    "prefill_pool": lambda row: "" if row.candidate.prefill is None else str(row.candidate.prefill),
    "dollars_per_hour": lambda row: row.cost,
    "headroom": lambda row: row.headroom,
    "slo_holds": lambda row: "" if row.figures is None else row.figures.holds,
    "rate_within_slo": lambda row: row.rate,
}
OF_FIGURES: dict[str, Callable[[Figures], object]] = {
    "slo_odds": lambda figures: figures.odds,
    "attainment": lambda figures: figures.attainment,
    "goodput": lambda figures: figures.goodput,
    "tightest": lambda figures: figures.tightest,
    "output_tokens_per_s": lambda figures: figures.output_tokens_per_second,
    "requests_per_s": lambda figures: figures.requests_per_second,
    "requests_per_s_at_most": lambda figures: figures.capacity,
    "state": lambda figures: figures.state,
    "busy": lambda figures: figures.busy,
    "kv_peak": lambda figures: figures.kv_peak,
    "bottleneck": lambda figures: figures.bottleneck,
    "source": lambda figures: figures.source,
    **{
        name: partial(_drawn, name)
        for name in (
            "gpu_watts",
            "wall_watts",
            "peak_watts",
            "joules_per_output_token",
            "wall_joules_per_output_token",
            "grams_co2_per_million_output_tokens",
        )
    },
}
LATENCIES = ("ttft", "tpot", "end_to_end")


def candidates_csv(plan: Plan) -> Iterator[str]:
    """``candidates.csv``, best first, in pieces."""
    latencies = [f"{name}_{which}_ms" for name in LATENCIES for which in NAMES]
    yield _line(["rank", "on_front", *OF_CANDIDATES, *latencies, *OF_FIGURES, "reason"])
    front = {row.candidate for row in plan.front}
    for rank, row in enumerate(plan.rows, start=1):
        cells: list[object] = [rank, row.candidate in front]
        cells += [of(row) for of in OF_CANDIDATES.values()]
        for name in LATENCIES:
            values = None if row.figures is None else getattr(row.figures, name)
            cells += [None] * len(NAMES) if values is None else [each / MILLI for each in values.values]
        cells += [None if row.figures is None else of(row.figures) for of in OF_FIGURES.values()]
        yield _line([*cells, row.reason])


def _line(cells: list[object]) -> str:
    text = StringIO()
    written = [f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in cells]
    csv.writer(text, lineterminator="\n").writerow(written)
    return text.getvalue()
