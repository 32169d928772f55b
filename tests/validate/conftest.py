"""Measured files as a benchmark would leave them."""

import gzip
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "name": "qwen3-0.6b",
    "gpu": "NVIDIA H200",
    "quant": None,
    "kv_cache_dtype": "auto",
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "block_size": 16,
    "num_gpu_blocks": 68000,
    "async_scheduling": True,
    "gpu_memory_utilization": 0.9,
}
STATIC = {"kind": "static", "batch": 4, "n_in": 256, "n_out": 8, "rep": 1, "one_off_stall": False}
POISSON = {"kind": "poisson", "rate": 12.0}


def request(arrival: float, n_in: int = 256, n_out: int = 8) -> dict[str, Any]:
    return {"arrival": arrival, "n_in": n_in, "n_out": n_out, "ttft_ms": 20.0, "tpot_ms": 2.0, "e2e_ms": 34.0}


@pytest.fixture
def document() -> dict[str, Any]:
    """A static batch of four and six requests over half a second."""
    runs = [
        {**STATIC, "requests": [request(0.0) for _ in range(4)]},
        {**POISSON, "requests": [request(0.1 * position) for position in range(6)]},
    ]
    return deepcopy({"config": CONFIG, "runs": runs})


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a document as JSON, gzipped where the name says so."""

    def write_file(document: Any, name: str = "measured.json") -> Path:
        content = json.dumps(document).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file
