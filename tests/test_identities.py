"""Drawn deployments keep the identities of every forecast: Little's law, parts of wholes, shares, limits, intervals."""

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "robustness"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)

SMALL = ("--input-len", "200", "--output-len", "12", "-n", "60", "--max-model-len", "4k", "--allow-overload")
DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', "--acceptance", "0.5")
KINDS = {
    "pipeline": ("simulate", "qwen3-0.6b", "--gpu", "l4", "-pp", "4", "--concurrency", "16", *SMALL),
    "replicas of pipelines": ("simulate", "qwen3-0.6b", "--gpu", "l4", "-pp", "2", "-dp", "2", "--rate", "9", *SMALL),
    "few seats": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--max-num-seqs", "4", "--concurrency", "20", *SMALL),
    "light load": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "0.01", *SMALL),
    "overload": ("simulate", "qwen3-8b", "--gpu", "l4", "-tp", "2", "--rate", "90", *SMALL),
    "drafts": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "2", *SMALL, *DRAFTS, "--breakdown"),
    "adapters": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "9", "--enable-lora", "--adapters", "3", *SMALL),
    "sessions": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "3", "--turns", "3", *SMALL),
    "power limit": ("simulate", "qwen3-4b", "--gpu", "h100-sxm", "--power-limit", "300", "--concurrency", "32", *SMALL),
    "pools": ("disaggregate", "qwen3-0.6b", "--prefill-gpu", "l4", "--decode-gpu", "l4", "--rate", "9", *SMALL),
    "embeddings": ("simulate", "bge-m3", "--gpu", "l4", "--rate", "5", "--input-len", "200"),
    "the other engine": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "5", "-n", "60", "--engine", "sglang"),
    "what if": ("simulate", "qwen3-0.6b", "--gpu", "l4", "--rate", "5", *SMALL, "--what-if", "dram_bandwidth=2x"),
    "one wave of clients": (
        *("simulate", "qwen3-8b", "--gpu", "h100-sxm", "--concurrency", "288", "-dp", "3", "--engine", "vllm@0.25"),
        *("--input-len", "600", "--output-len", "40", "-n", "1300", "--allow-overload"),
    ),
}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], list[str]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    identities = importlib.import_module("identities")

    def held(words: tuple[str, ...]) -> list[str]:
        found: dict[str, Any] = identities.ask([*words])
        assert found, "refused"
        said: list[str] = identities.broken(found, [*words])
        return said

    return held


@pytest.mark.parametrize("words", KINDS.values(), ids=KINDS)
def test_identities_hold(words: tuple[str, ...], broken: Callable[[tuple[str, ...]], list[str]]) -> None:
    assert broken(words) == []


def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    identities = importlib.import_module("identities")
    words = [*KINDS["light load"]]
    found = identities.ask(words)
    for path, value in (("running", {"mean": 1.0, "peak": 1.0}), ("watts_per_gpu", 1e4), ("duration_s", math.nan)):
        assert identities.broken(found | {path: value}, words)
