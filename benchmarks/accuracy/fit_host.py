"""Fit what launching costs a host, and say how it does on a model that was left out.

    python benchmarks/accuracy/fit_host.py HOST.json MEASURED.json.gz... [--leave-out]

HOST.json has times of idle engines with dummy models (measurements/h200-sxm/host.json); the others are measured serving
runs (docs/validation.md). The score is the mean absolute logarithm of predicted over measured times to first token,
every file and the dummy models weighing the same: idle requests, and the median under load of models without experts.
One number after the other is moved up or down by shrinking steps for as long as that helps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from infercast.engines.base import Deployment
from infercast.engines.host import bundled_host
from infercast.engines.timer import KernelTimer
from infercast.engines.vllm.host import VllmHost, launch_work
from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED
from infercast.forecast.deploy import deploy
from infercast.lab.validate.compare import deployment_of, quantile
from infercast.lab.validate.measured import WARM_UP, MeasuredRun, read_measured
from infercast.serve import Request, Workload, simulate
from infercast.serve.step import StepShape

NAMES = (
    "wake", "prompt_step", "piece_layer", "eager_step", "eager_kernel",
    "latent_layer", "recurrent_layer", "sparse_layer", "expert_layer", "grouped_choice_layer",
)  # fmt: skip
ROUNDS, FIRST_STEP = 6, 1.25
DUMMIES = "dummy models"


@dataclass(frozen=True, slots=True)
class Case:
    """One time to first token that a host decides."""

    label: str
    workload: Workload
    measured: float


@dataclass(frozen=True, slots=True)
class Engine:
    """Whatever was measured on one engine."""

    name: str
    model: str
    deployment: Deployment
    timer: KernelTimer
    cases: tuple[Case, ...]

    def errors(self, host: VllmHost) -> Iterator[tuple[str, float]]:
        """Logarithm of predicted over measured, case by case."""
        deployment = replace(self.deployment, host=host)
        self.timer._host = deployment.host_model
        replica = deployment.replica(self.timer)
        for case in self.cases:
            predicted = quantile(simulate(replica, case.workload).ttft, 0.5)
            yield case.label, float(np.log(predicted / case.measured))


def dummy_engines(document: dict[str, Any]) -> Iterator[Engine]:
    settings = EngineSettings(max_model_len=16_384, max_num_batched_tokens=8192, max_num_seqs=256, engine=MEASURED)
    for model in document["models"]:
        config = {**document["config"], "num_hidden_layers": model["layers"]}
        deployment = deploy(config, "h200-sxm", settings, api_server=False)
        cases = tuple(
            Case(f"{model['layers']} layers, {tokens}", Workload((Request(0.0, int(tokens), 2),)), milliseconds / 1e3)
            for tokens, milliseconds in model["first_token_ms"].items()
        )
        yield Engine(DUMMIES, DUMMIES, deployment, deployment.timer(), cases)


def measured_engine(path: Path) -> Engine:
    measured = read_measured(path)
    deployment = deployment_of(measured, None, None)
    timer = deployment.timer()
    cases = tuple(
        Case(run.label, run.workload, quantile(run.ttft, 0.5))
        for run in measured.runs
        if run.kind != WARM_UP and _is_decided_by_host(run, timer, deployment.model.has_experts)
    )
    return Engine(path.name, measured.model, deployment, timer, cases)


def _is_decided_by_host(run: MeasuredRun, timer: KernelTimer, has_experts: bool) -> bool:
    """Idle requests whose kernels take less than the measured time by far, and loads of models without experts."""
    requests = run.workload.requests
    if len(requests) > 1:
        return run.kind != "static" and not has_experts
    gpu_seconds = float(timer(StepShape([requests[0].num_input], [0], 1)).gpu_seconds[0])
    return gpu_seconds < 0.75 * float(run.ttft[0])


def score(engines: Iterable[Engine], host: VllmHost) -> float:
    by_name: dict[str, list[float]] = {}
    for engine in engines:
        by_name.setdefault(engine.name, []).extend(abs(error) for _, error in engine.errors(host))
    return float(np.mean([np.mean(errors) for errors in by_name.values() if errors]))


def fit(engines: list[Engine], host: VllmHost) -> tuple[VllmHost, float]:
    best, steps = score(engines, host), dict.fromkeys(NAMES, FIRST_STEP)
    for _ in range(ROUNDS):
        for name in NAMES:
            for factor in (steps[name], 1 / steps[name]):
                moved = replace(host, **{name: factor * getattr(host, name)})
                if (value := score(engines, moved)) < best - 1e-5:
                    best, host = value, moved
                    break
            else:
                steps[name] **= 0.5
    return host, best


def _without_the_unknown(host: VllmHost, engines: list[Engine]) -> VllmHost:
    """Nothing is known of layers that no engine has; experts must occur without shared ones to be told apart."""
    work = [launch_work(engine.deployment.model, engine.deployment.layout, engine.deployment.gpu) for engine in engines]
    known = {
        "latent_layer": any(each.latent_layers for each in work),
        "recurrent_layer": any(each.recurrent_layers for each in work),
        "sparse_layer": any(each.sparse_layers for each in work),
        "grouped_choice_layer": any(each.grouped_choice_layers for each in work),
        "expert_layer": any(each.expert_layers > each.grouped_choice_layers for each in work),
    }
    return replace(host, **{name: 0.0 for name, is_known in known.items() if not is_known})


def main(host_path: str, *paths: str) -> None:
    leave_out = "--leave-out" in paths
    files = [measured_engine(Path(path)) for path in paths if not path.startswith("--")]
    engines = [*dummy_engines(json.loads(Path(host_path).read_text(encoding="utf-8"))), *files]
    host, value = fit(engines, bundled_host(VllmHost, "vllm"))
    print(f"all: {value:.2%}", {name: round(1e3 * getattr(host, name), 3) for name in NAMES})
    for model in dict.fromkeys(engine.model for engine in files) if leave_out else ():
        rest = [engine for engine in engines if engine.model != model]
        host, _ = fit(rest, _without_the_unknown(bundled_host(VllmHost, "vllm"), rest))
        for engine in files:
            if engine.model == model:
                errors = {label: round(100 * float(np.expm1(error)), 1) for label, error in engine.errors(host)}
                middle = np.median(np.abs(list(errors.values())))
                print(f"without {model}: {engine.name}: median {middle:.1f} %", errors)


if __name__ == "__main__":
    main(*sys.argv[1:])
