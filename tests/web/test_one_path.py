"""The page, the command that it prints and Python give the same numbers, to the last digit."""

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from infercast.web.worker import line_of, reply_to

FOLDER = Path(__file__).parents[2] / "benchmarks" / "robustness"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)

SMALL = {"model": "qwen3-0.6b", "gpu": "l40s", "input_len": "uniform:50:400", "output_len": "20"}
FEW = SMALL | {"num_requests": 60, "max_num_seqs": 64}
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "a run that goes on for its SLO": ("simulate", SMALL | {"rate": 30.0, "slo": "e2e_p99<2s,ttft_p99<60ms"}),
    "clients of replicas": ("simulate", FEW | {"concurrency": 4, "data_parallel_size": 2, "pue": 1.3}),
    "stages": ("simulate", FEW | {"rate": 9.0, "pipeline_parallel_size": 2, "slo": "e2e_p90<1s"}),
    "overloaded": ("simulate", FEW | {"rate": 9000.0}),
    "sessions": ("simulate", FEW | {"session_rate": 2.0, "turns": "3"}),
    "refused": ("simulate", {"model": "qwen3-32b", "gpu": "l4"}),
    "memory": ("memory", {"model": "qwen3-8b", "gpu": "l40s", "max_model_len": 4096}),
    "curve": ("curve", SMALL | {"rates": "4,90", "curve_requests": 60, "max_num_seqs": 64, "slo": "ttft_p99<60ms"}),
    "energy": ("energy", FEW | {"rate": 30.0, "power_limits": "200", "slo": "ttft_p99<60ms"}),
    "plan": ("plan", SMALL | {"rate": 8.0, "num_requests": 60, "slo": "ttft_p99<60ms", "gpus": ["l4"], "max_gpus": 1}),
}


def api(question: str, state: dict[str, Any]) -> dict[str, Any]:
    """The body of the API's answer."""
    return _answered(question, json.dumps(state))


@cache
def _answered(question: str, state: str) -> dict[str, Any]:
    return json.loads(line_of(*reply_to(question, {"state": json.loads(state)}, lambda _: None))[1:])


@pytest.mark.parametrize("name", STATES)
def test_page_command_and_python_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    _, differing = importlib.import_module("page_states").compared(*STATES[name], api)
    assert not differing


def test_an_slo_makes_the_run_of_the_page_longer() -> None:
    _, state = STATES["a run that goes on for its SLO"]
    with_slo, without = (api("simulate", {**state, "slo": slo})["requests"] for slo in (state["slo"], None))
    assert with_slo > without
