"""Attention by the kernel that runs it: what is a trait of one kernel is of no other."""

from dataclasses import replace

import numpy as np
import pytest

from infercast.hardware import load_gpu
from infercast.ops import Attention
from infercast.predict.families import attention as attention_prefill
from infercast.predict.families.attention import DECODE, PREFILL
from infercast.predict.families.attention_kernels import KERNELS, tabled_kernel
from infercast.predict.families.family import Constants

HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
PROMPT = Attention(np.array([[2048]]), np.array([[2048]]), sequences=np.array([[4]]), **HEADS)
DECODES = Attention(np.array([[1]]), np.array([[8000]]), sequences=np.array([[256]]), **HEADS)
H200, L40S, B200 = (load_gpu(name) for name in ("h200-sxm", "l40s", "b200-sxm"))


def test_published_tables_time_the_writing_of_the_cache_with_prompts():
    table, engine = (PREFILL.physics(PROMPT, H200, engine=engine) for engine in (False, True))
    assert table.terms["write"] > 2e-6
    assert table.seconds == pytest.approx(engine.seconds + table.terms["write"])
    assert "write" not in engine.terms
    np.testing.assert_array_equal(table.features, engine.features)


def test_constants_of_that_writing_belong_to_tables_alone(monkeypatch):
    constants = attention_prefill.PREFILL_CONSTANTS
    ops = PROMPT, replace(PROMPT, kv_dtype="fp8")

    def seconds(*, engine: bool) -> list[float]:
        return [float(PREFILL.physics(op, H200, engine=engine).seconds.item()) for op in ops]

    table, engine = seconds(engine=False), seconds(engine=True)
    for name, value in vars(constants).items():
        if "write" not in name:
            continue
        changed = Constants(**vars(constants) | {name: 1.03 * value})
        monkeypatch.setattr(attention_prefill, "PREFILL_CONSTANTS", changed)
        assert seconds(engine=False) != table, name
        assert seconds(engine=True) == engine, name


def test_a_sweep_has_neither_that_kernel_nor_a_name():
    swept = PREFILL.physics(PROMPT, H200, swept=True)
    assert "write" not in swept.terms
    assert swept.seconds == PREFILL.physics(replace(PROMPT, kernel="fa2"), H200, swept=True).seconds


@pytest.mark.parametrize(("kernel", "least", "most"), [("fa3", 0.65, 1.4), ("trtllm", 0.4, 0.65)])
def test_an_fp8_cache_is_slow_where_the_kernel_is(kernel, least, most):
    wide, narrow = (DECODE.physics(replace(DECODES, kernel=kernel, kv_dtype=each), H200) for each in ("bf16", "fp8"))
    assert least < (narrow.seconds / wide.seconds).item() < most


def test_kernels_are_those_that_an_engine_picks():
    assert tabled_kernel(PROMPT, H200) is KERNELS["fa3"]
    assert tabled_kernel(PROMPT, B200) is KERNELS["trtllm"]
    assert tabled_kernel(replace(PROMPT, kv_dtype="fp8"), L40S) is KERNELS["flashinfer"]
    assert tabled_kernel(replace(PROMPT, kernel="triton"), H200) is KERNELS["triton"]


def test_small_chips_take_small_tiles():
    assert tabled_kernel(PROMPT, L40S).tile_rows == 64
    assert tabled_kernel(PROMPT, load_gpu("a100-sxm")).tile_rows == 128
