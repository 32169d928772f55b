"""The folder of a plan: what a user runs next, what was looked at, and the question itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from infercast.errors import InputError
from infercast.forecast.plan.checks import checks_of
from infercast.forecast.plan.deployed import deployed
from infercast.forecast.plan.result import Plan, Row
from infercast.report.files import write_whole
from infercast.report.plan_files.bench import bench_script
from infercast.report.plan_files.candidates import candidates_csv
from infercast.report.plan_files.compose import compose_file
from infercast.report.plan_files.dynamo import dynamo_graph
from infercast.report.plan_files.kubernetes import manifests
from infercast.report.plan_files.llm_d import llm_d_values
from infercast.report.plan_files.pareto import pareto_svg
from infercast.report.plan_files.shell import command_lines, serve_script
from infercast.report.plan_files.started import plain_name, pools_of, repository_of
from infercast.units import format_percent, format_seconds

ABOUT = {
    "serve.sh": "starts one replica on the machine it is called on",
    "compose.yaml": "the same with docker compose",
    "kubernetes.yaml": "a Deployment, or a LeaderWorkerSet over several nodes, and a Service for each pool",
    "llm-d-values.yaml": "values for the chart of llm-d",
    "dynamo.yaml": "a graph deployment of Dynamo",
    "bench.sh": "measures the deployment around the chosen point and prints the forecast beside it",
    "candidates.csv": "every candidate with its numbers, or its reason for refusal",
    "pareto.svg": "money, or energy where that was the objective, against TTFT and TPOT",
    "again.sh": "asks the same question again",
}

PROXY = (
    "Requests go to a proxy that sends each prompt to the prefill pool first; llm-d and Dynamo bring one, other files "
    "need one of your own."
)
BALANCER = "Before several replicas stands a load balancer; Services of Kubernetes, llm-d and Dynamo bring one."


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
    """Command lines, and the files that start the winner and check it."""
    question, candidate = plan.question, winner.candidate
    pools, model = pools_of(candidate), repository_of(question.model)
    name, title = plain_name(question.model), f"{question.model}: {candidate}"
    memories = [deployed(question.site, pool.unit).memory for pool in candidate.pools]
    weights = max(
        memory.weights * pool.layout.replica_gpus for memory, pool in zip(memories, candidate.pools, strict=True)
    )
    return command_lines(pools, model), {
        "serve.sh": serve_script(pools, model, title),
        "compose.yaml": compose_file(pools, model, title),
        "kubernetes.yaml": manifests(pools, model, name, title),
        "llm-d-values.yaml": llm_d_values(pools, model, weights, title),
        "dynamo.yaml": dynamo_graph(pools, model, name, title),
        "bench.sh": bench_script(checks_of(question, candidate), pools[-1].commands, model, title),
    }


def _read_me(plan: Plan, lines: list[str], names: list[str]) -> str:
    question, winner = plan.question, plan.winner
    text = f"# {question.model} for {question.rate:.3g} requests/s within {question.slo}\n\n"
    text += f"Requests: {question.workload.description or f'{len(question.workload.requests):,} requests'}.\n\n"
    if winner is None or winner.figures is None:
        text += "Nothing that was looked at keeps the promise.\n\n"
    else:
        figures = winner.figures
        cost = "" if winner.cost is None else f", ${winner.cost:,.2f} per hour"
        sure = "" if figures.odds is None else f" The SLO holds with a probability of {format_percent(figures.odds)}."
        tpot = "" if figures.tpot is None else f", TPOT p99 {format_seconds(figures.tpot.p99)}"
        text += f"Chosen: {winner.candidate}, {winner.gpus} GPUs{cost}.{sure}\n"
        text += f"Forecast: TTFT p99 {format_seconds(figures.ttft.p99)}{tpot}; limited by: {figures.bottleneck}.\n\n"
    text += f"{plan.why}\n\n" if plan.why else ""
    text += "".join(f"- {sentence}\n" for sentence in plan.changes) + ("\n" if plan.changes else "")
    if lines:
        text += "```sh\n" + "\n".join(lines) + "\n```\n\n"
        if len(lines) > 1:
            text += f"{PROXY}\n\n"
        elif winner is not None and winner.candidate.replicas > 1:
            text += f"{BALANCER}\n\n"
    return text + "| file | |\n| --- | --- |\n" + "".join(f"| `{name}` | {ABOUT[name]} |\n" for name in names)
