"""Tables of board power and of counted joules."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

from infercast.errors import FileFormatError
from infercast.ops import Attention, Gemm, MoE

FOLDER = Path(__file__).parents[2] / "benchmarks" / "accuracy"
if not FOLDER.exists():
    pytest.skip("benchmarks are not part of a source distribution", allow_module_level=True)
sys.path.append(str(FOLDER))
from power_tables import read_counted, read_power  # noqa: E402 - it is there only now

OWN = Path(__file__).parents[2] / "measurements" / "h200-sxm" / "power_bursts.json.gz"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """One row of each of three families, and one that was not timed."""
    same = {"gpu": "h200-sxm", "engine": "vllm", "kernel_source": "default", "latency_ms": 0.1, "board_w": 400.0}
    product = {"family": "gemm", "gemm_dtype": "bfloat16", "m": 16.0, "n": 4096.0, "k": 8192.0}
    decode = {"family": "attention", "batch_size": 8.0, "isl": 1.0, "step": 511.0, "num_heads": 32.0}
    decode |= {"num_key_value_heads": 8.0, "head_dim": 128.0, "window_size": 0.0}
    decode |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8"}
    experts = {"family": "moe", "moe_dtype": "fp8_block", "num_tokens": 64.0, "hidden_size": 2048.0, "topk": 8.0}
    experts |= {"inter_size": 768.0, "num_experts": 128.0, "moe_tp_size": 2.0, "moe_ep_size": 4.0}
    experts |= {"distribution": "balanced"}
    rows = [same | row for row in (product, decode, experts)]
    rows.append(same | product | {"latency_ms": 1e-6})
    path = tmp_path / "power.parquet"
    pandas.DataFrame(rows).to_parquet(path)
    return path


def test_rows_are_operators(table: Path) -> None:
    gemm, attention, moe = read_power(table)
    ((product, _),), ((decode, _),), ((experts, _),) = gemm.calls, attention.calls, moe.calls
    assert isinstance(product, Gemm)
    assert (gemm.watts.tolist(), gemm.seconds.tolist(), gemm.copies) == ([400.0], [1e-4], 6)
    assert isinstance(decode, Attention)
    assert attention.family == "attention_decode"
    assert decode.keys.tolist() == [[512]]
    assert isinstance(experts, MoE)
    assert (experts.inter, experts.num_local, experts.dtype) == (384, 32, "fp8_block")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pandas.DataFrame({"gpu": ["h200-sxm"]}).to_parquet(path)
    with pytest.raises(FileFormatError, match="lacks the column 'family'"):
        list(read_power(path))
    counted = tmp_path / "x.json.gz"
    counted.write_bytes(gzip.compress(json.dumps({"kernels": [{}]}).encode()))
    with pytest.raises(FileFormatError, match="no file of counted joules"):
        list(read_counted(counted, 120.0))


def test_counted_joules_are_power_while_a_kernel_ran() -> None:
    rows = list(read_counted(OWN, 120.0))
    assert len(rows) == 63
    burst = next(row for row in rows if row.name == "gemm 8192x8192x8192" and not row.is_steady)
    assert burst.watts == pytest.approx(968, abs=1)
    assert isinstance(burst.op, Gemm)
    attention = next(row.op for row in rows if row.name.startswith("attention"))
    assert float(np.ravel(attention.flops)[0]) == pytest.approx(5.5e11, rel=0.01)
