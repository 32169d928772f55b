"""Profiles: kernels are matched by name and by the inputs of their operators, and bad files are one sentence."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import infercast
from infercast.forecast.explain.diagnose import diagnose_profile
from infercast.hardware import load_gpu
from infercast.ops import Gemm
from infercast.predict.ceilings import default_ceilings

BF16 = "c10::BFloat16"


def trace(*kernels):
    """Events of (kernel, microseconds, operator, dimensions of its inputs)."""
    events = [{"ph": "M", "name": "process_name"}]
    for number, (name, duration, operator, dims) in enumerate(kernels):
        if operator:
            inputs = {"Input Dims": dims, "Input type": [BF16] * len(dims)}
            events.append({"cat": "cpu_op", "name": operator, "dur": 1, "args": {"External id": number, **inputs}})
        events.append({"cat": "kernel", "name": name, "dur": duration, "args": {"External id": number}})
    return {"traceEvents": events}


@pytest.fixture
def diagnosed(tmp_path):
    def run(text, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return diagnose_profile(path, "h200-sxm")

    return run


def test_a_product_is_held_against_the_best_of_its_shape(diagnosed):
    dims = [[32, 4096], [4096, 14336]]
    both = [("nvjet_tst_128x8", 100.0, "aten::mm", dims)] * 3 + [("mine", 100.0, "", ())]
    text = json.dumps(trace(*both))
    for found in (diagnosed(text), diagnosed(gzip.compress(text.encode()), "trace.json.gz")):
        first, other = found.kernels
        best = 3e6 * float(default_ceilings().seconds(Gemm(32, 14336, 4096), load_gpu("h200-sxm"))[0])
        assert (first["family"], first["shape"], first["launches"]) == ("gemm", "mm 32x4096 4096x14336 bf16", 3)
        assert first["best_us"] == pytest.approx(best)
        assert first["lost_share"] == pytest.approx(0.75 * (1 - best / 300))
        assert (other["kernel"], other["family"], other["best_us"]) == ("mine", "other", None)
        assert found.document()["unmatched_share"] == pytest.approx(0.25)
        assert found.to_dict()["kernels"][0]["kernel"] == "nvjet_tst_128x8"


@pytest.mark.parametrize(
    ("operator", "dims", "m", "n", "k"),
    [
        ("aten::addmm", [[64], [8, 32], [32, 64]], 8, 64, 32),
        ("aten::linear", [[2, 4, 32], [64, 32], [64]], 8, 64, 32),
        ("aten::bmm", [[3, 8, 32], [3, 32, 64]], 8, 192, 32),
    ],
)
def test_products_are_read_from_their_inputs(diagnosed, operator, dims, m, n, k):
    (kernel,) = diagnosed(json.dumps(trace(("gemm", 50.0, operator, dims)))).kernels
    best = float(default_ceilings().seconds(Gemm(m, n, k), load_gpu("h200-sxm"))[0])
    assert kernel["best_us"] == pytest.approx(1e6 * best)


def test_attention_and_what_moves_data_have_a_ceiling_and_look_ups_have_none(diagnosed):
    found = diagnosed(
        json.dumps(
            trace(
                ("flash_fwd_kernel", 90.0, "aten::_flash_attention_forward", [[2, 8, 512, 128]] * 3),
                ("elementwise", 60.0, "aten::add", [[64, 4096], [64, 4096]]),
                ("gather", 50.0, "aten::embedding", [[128256, 4096], [64]]),
            )
        )
    )
    families = {each["kernel"]: (each["family"], each["best_us"] is None) for each in found.kernels}
    assert families["flash_fwd_kernel"] == ("attention", False)
    assert families["elementwise"] == ("activation", False)
    assert families["gather"][1]


NSYS = (
    "Processing [x.sqlite]\n\nTime (%),Total Time (ns),Instances,Avg (ns),Name\n"
    "60.0,3000,2,1500,nvjet_a\n40.0,2000,1,2000,b\n"
)
NCU = (
    '==PROF== Connected\n"ID","Kernel Name","Context","Metric Name","Metric Unit","Metric Value"\n'
    '"0","nvjet_a","1","Duration","us","3,000.5"\n"0","nvjet_a","1","DRAM Throughput","%","90"\n'
)


def test_exports_of_nsight_have_families_and_shares(diagnosed):
    first, second = diagnosed(NSYS, "nsys.csv").kernels
    assert (first["family"], first["launches"], first["total_us"], first["share"]) == ("gemm", 2, 3.0, 0.6)
    assert second["family"] == "other"
    (only,) = diagnosed(NCU, "ncu.csv").kernels
    assert only["total_us"] == pytest.approx(3000.5)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "{", "[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [3]}', "a,b,c,Name\n1,2,3,4\n",
     '{"traceEvents": [{"cat": "kernel", "name": "x", "args": {"a": 1}}]}', "[" * 100_000,
     json.dumps(trace(("x", "long", "", ()))), json.dumps(trace(("x", 1.0, "aten::mm", "ab")))],
)  # fmt: skip
def test_files_that_are_no_profiles_are_one_sentence(diagnosed, text):
    with pytest.raises(infercast.FileFormatError) as problem:
        diagnosed(text, "bad")
    assert "\n" not in str(problem.value)


def test_strange_dimensions_are_not_judged(diagnosed):
    strange = [("gemm", 5.0, "aten::mm", dims) for dims in ([[]], [[0, 4], [4, 4]], [[4]], [[2**40, 8], [8, 2**40]])]
    found = diagnosed(json.dumps(trace(*strange)))
    assert np.isfinite([each["lost_share"] for each in found.kernels]).all()
