"""The output folder of a plan: manifests, benchmark script, candidates, Pareto chart and question."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path

from infercast.bundled import read_data
from infercast.engines.settings import EngineCommands
from infercast.errors import InputError
from infercast.forecast.plan.candidate import Row
from infercast.forecast.plan.evaluate import BenchmarkCheck, checks_of
from infercast.forecast.plan.question import Plan, deployed
from infercast.lazy_classes import NamedTuple
from infercast.report import manifests
from infercast.report.deployment import repository_of
from infercast.report.files import write_whole
from infercast.report.plan import candidates_csv
from infercast.units import MILLI, format_gpus, format_many, format_percent, format_seconds, json_text

KEYS = {"p50": "median", "p99": "p99", "mean": "mean"}  # as the benchmark names them


def bench_script(checks: Sequence[BenchmarkCheck], commands: EngineCommands, model: str, title: str) -> str:
    bench = shlex.join(commands.bench)
    scripts = read_data(manifests.SCRIPTS)
    text = str(scripts["bench"]).format(title=title, port=commands.port, model=model)
    for check in checks:
        values = {name: getattr(check, name) for name in ("rate", "requests", "num_input", "num_output")}
        name = f"rate-{check.rate:g}.json"
        text += scripts["bench_run"].format(bench=bench, flags=commands.bench_flags.format(name=name), **values)
    forecasts = {f"{check.rate:g}": _rows(check, commands.bench_end_to_end) for check in checks}
    return text + str(scripts["bench_compare"]).format(forecasts=json_text(forecasts))


def _rows(check: BenchmarkCheck, end_to_end: str) -> list[tuple[str, float, float, float, str]]:
    """Name, forecast, the ends of its interval, and the benchmark's key."""
    forecast, intervals = check.forecast, check.intervals
    rows = []
    for name, values, band in (
        ("ttft", forecast.ttft, intervals.ttft),
        ("tpot", forecast.tpot, intervals.tpot),
        (end_to_end, forecast.end_to_end, intervals.end_to_end),
    ):
        if values is None or band is None:
            continue
        for which, key in KEYS.items():
            ends = (getattr(each, which) / MILLI for each in (values, band.low, band.high))
            middle, low, high = (round(each, 3) for each in ends)
            rows.append((f"{name} {which} ms", middle, low, high, f"{key}_{name}_ms"))
    rates = (forecast.output_tokens_per_second, *intervals.output_tokens_per_second)
    middle, low, high = (round(check.times * each, 1) for each in rates)
    rows.append(("output tokens/s", middle, low, high, "output_throughput"))
    return rows


WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP, BELOW = 960, 420, 70, 64, 370, 90, 60
DEEP = HEIGHT - TOP - BELOW


class LogAxis(NamedTuple):
    """A logarithmic axis, from pixel ``begin`` to pixel ``end``."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.begin + share * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[float]:
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        ticks = (1.0, 2.0, 5.0)
        digits = ticks if self.high > 10 * self.low else range(1, 10)
        found = [digit * 10.0**power for power in powers for digit in digits]
        return [tick for tick in found if self.low <= tick <= self.high]


def pareto_svg(plan: Plan) -> str | None:
    """``pareto.svg``; None where nothing was simulated."""
    rows = [row for row in plan.rows if row.figures is not None and row.figures.state != "overloaded"]
    if not rows:
        return None
    (across, label), question = _across(plan, rows), plan.question
    ring = "" if plan.winner is None else f"; ringed: {plan.winner.candidate}"
    legend = f"{len(rows):,} simulated candidates; blue: no other is better in all{ring}"
    title = f"{question.model}, {question.rate:.3g} requests/s, {question.slo}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Candidates of a plan: {label} against TTFT and TPOT">',
        f"<style>{read_data(manifests.SCRIPTS)['pareto_style']}</style>",
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text class="small" x="{LEFT}" y="42">{escape(legend)}</text>',
    ]
    for number, name in enumerate(("ttft", "tpot")):
        parts += _panel(plan, rows, across, label, name, LEFT + number * (PANEL + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(plan: Plan, rows: Sequence[Row]) -> tuple[Callable[[Row], float], str]:
    """What is spent: energy where that is the objective, else money, or GPUs where a price is not known."""
    goal = plan.question.goal
    if goal.name == "energy" and all(row.figures is not None and row.figures.drawn is not None for row in rows):
        return goal.value, "J per output token at the wall"
    if all(row.cost is not None for row in rows):
        return (lambda row: row.cost or 0.0), "$ per hour"
    return (lambda row: float(row.gpus)), "GPUs"


def _panel(
    plan: Plan, rows: Sequence[Row], across: Callable[[Row], float], label: str, name: str, left: float
) -> Iterator[str]:
    limits = [limit for limit in plan.question.slo.limits if limit.quantity == name]
    which = "p99" if not limits or limits[0].percentile is None else f"p{limits[0].percentile:g}"
    which = which if which in ("p50", "p90", "p95", "p99") else "p99"

    def up(row: Row) -> float | None:
        values = None if row.figures is None else getattr(row.figures, name)
        return None if values is None else float(getattr(values, which))

    points = [(across(row), height, row) for row in rows if (height := up(row))]
    if not points:
        return
    heights = [height for _, height, _ in points] + [limit.seconds for limit in limits]
    wide = LogAxis(*_around([each for each, _, _ in points]), left, left + PANEL)
    tall = LogAxis(*_around(heights), TOP + DEEP, TOP)
    yield from _frame(wide, tall, label, f"{name.upper()} {which}", left)
    for limit in limits:
        y = tall.at(limit.seconds)
        tip = f"<title>{escape(str(limit))}</title>"
        yield f'<line class="limit" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}">{tip}</line>'
    best = {row.candidate for row in plan.front}
    front = [(each, height, row) for each, height, row in points if row.candidate in best]
    most_named = 6  # fronts with more points than this are not labelled
    for each, height, row in points:
        kind = "front" if row.candidate in best else "other"
        tip = escape(f"{row.candidate}: {label} {each:.4g}, {format_seconds(height)}")
        yield f'<circle class="{kind}" cx="{wide.at(each)}" cy="{tall.at(height)}" r="4"><title>{tip}</title></circle>'
        if kind == "front" and len(front) <= most_named:
            name_of = escape(f"{row.candidate.replicas} x {row.candidate.layout} {row.candidate.gpu}")
            yield f'<text class="small" x="{wide.at(each) + 8}" y="{tall.at(height) - 8}">{name_of}</text>'
    if len(front) > 1:
        path = " ".join(f"{wide.at(each)},{tall.at(height)}" for each, height, _ in sorted(front, key=lambda p: p[:2]))
        yield f'<polyline class="line" points="{path}"/>'
    for each, height, row in points:
        if plan.winner is not None and row.candidate == plan.winner.candidate:
            yield f'<circle class="winner" cx="{wide.at(each)}" cy="{tall.at(height)}" r="8"/>'


def _frame(wide: LogAxis, tall: LogAxis, label: str, title: str, left: float) -> Iterator[str]:
    bottom = TOP + DEEP
    for tick in tall.ticks:
        y = tall.at(tick)
        yield f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}"/>'
        yield f'<text class="small" x="{left - 6}" y="{y + 4}" text-anchor="end">{format_seconds(tick)}</text>'
    for tick in wide.ticks:
        x = wide.at(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="small" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
    yield f'<path class="axis" d="M{left} {TOP} V{bottom} H{left + PANEL}"/>'
    yield f'<text x="{left + PANEL / 2}" y="{bottom + 36}" text-anchor="middle">{label}</text>'
    yield f'<text x="{left}" y="{TOP - 6}">{title}</text>'


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low / 1.3, high * 1.3) if high > 1.5 * low else (low / 2.0, high * 2.0)


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder that holds something else, before a long search and not after it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError(f"--out {folder} is not empty; name another folder, or pass --force to write into it")


def write_plan(plan: Plan, folder: Path, command: str, *, force: bool = False) -> list[Path]:
    """Write all files of a plan; each appears whole or not at all. ``command`` asks the same question again."""
    check_folder(folder, force=force)
    files = plan_files(plan, command)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"--out {folder} cannot be made: {problem.strerror or problem}") from None
    written = []
    for name, text in files.items():
        path = folder / name
        write_whole(path, [text] if isinstance(text, str) else text)
        if path.suffix == ".sh":
            os.chmod(path, 0o755)
        written.append(path)
    return written


def plan_files(plan: Plan, command: str) -> dict[str, str | Iterable[str]]:
    """Names and texts; what starts something only where there is a winner."""
    files: dict[str, str | Iterable[str] | None] = {}
    lines: list[str] = []
    if plan.winner is not None:
        lines, starting = _starting(plan, plan.winner)
        files |= starting
    files["candidates.csv"] = candidates_csv(plan)
    files["pareto.svg"] = pareto_svg(plan)
    files["again.sh"] = f"#!/usr/bin/env bash\n# Asks the same question again.\nset -euo pipefail\n{command}\n"
    kept = {name: text for name, text in files.items() if text is not None}
    return {"README.md": _read_me(plan, lines, list(kept)), **kept}


def _starting(plan: Plan, winner: Row) -> tuple[list[str], Mapping[str, str | None]]:
    question, candidate = plan.question, winner.candidate
    pools, model = manifests.pools_of(candidate), repository_of(question.model)
    name, title = manifests.plain_name(question.model), f"{question.model}: {candidate}"
    memories = [deployed(question.shared, pool.unit).memory for pool in candidate.pools]
    weights = max(
        memory.weights * pool.layout.replica_gpus for memory, pool in zip(memories, candidate.pools, strict=True)
    )
    return manifests.command_lines(pools, model), {
        "serve.sh": manifests.serve_script(pools, model, title),
        "compose.yaml": manifests.compose_file(pools, model, title),
        "kubernetes.yaml": manifests.manifests(pools, model, name, title, weights),
        "llm-d-values.yaml": manifests.llm_d_values(pools, model, weights, title),
        "dynamo.yaml": manifests.dynamo_graph(pools, model, name, title, weights),
        "bench.sh": bench_script(checks_of(question, candidate), pools[-1].commands, model, title),
    }


def _read_me(plan: Plan, lines: list[str], names: list[str]) -> str:
    question, winner, scripts = plan.question, plan.winner, read_data(manifests.SCRIPTS)
    text = f"# {question.model} for {question.rate:.3g} requests/s within {question.slo}\n\n"
    text += f"Requests: {question.workload.description or format_many(len(question.workload.requests), 'request')}.\n\n"
    if winner is None or winner.figures is None:
        text += "No candidate keeps the SLO.\n\n"
    else:
        figures = winner.figures
        cost = "" if winner.cost is None else f", ${winner.cost:,.2f} per hour"
        sure = "" if figures.odds is None else f" The SLO holds with a probability of {format_percent(figures.odds)}."
        tpot = "" if figures.tpot is None else f", TPOT p99 {format_seconds(figures.tpot.p99)}"
        text += f"Chosen: {winner.candidate}, {format_gpus(winner.gpus)}{cost}.{sure}\n"
        text += f"Forecast: TTFT p99 {format_seconds(figures.ttft.p99)}{tpot}; limited by: {figures.bottleneck}.\n\n"
    text += f"{plan.why}\n\n" if plan.why else ""
    text += "".join(f"- {sentence}\n" for sentence in plan.changes) + ("\n" if plan.changes else "")
    if lines:
        text += "```sh\n" + "\n".join(lines) + "\n```\n\n"
        if len(lines) > 1:
            text += f"{scripts['proxy']}\n\n"
        elif winner is not None and winner.candidate.replicas > 1:
            text += f"{scripts['balancer']}\n\n"
    table = "".join(f"| `{name}` | {scripts['about'][name]} |\n" for name in names)
    return f"{text}| file | |\n| --- | --- |\n{table}"
