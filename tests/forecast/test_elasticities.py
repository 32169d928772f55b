"""What one per cent of a number of the hardware brings."""

from functools import partial
from math import log
from typing import Any

import pytest

import infercast
from infercast.errors import InputError
from infercast.forecast.deploy import deploy_changed, parse_changes
from infercast.forecast.elasticities import Elasticities, elasticities
from infercast.hardware import load_gpu
from infercast.hardware.gpu import changed_gpu

SMALL: dict[str, Any] = {"num_requests": 30, "input_len": 100, "output_len": 20, "max_model_len": 2048}


@pytest.fixture(scope="module")
def found() -> Elasticities:
    return elasticities("qwen2.5-0.5b", "l4", concurrency=4, **SMALL)


def test_they_are_central_differences_of_simulate(found: Elasticities) -> None:
    rows = {row.step.name: row for row in found.rows}
    asked = partial(infercast.deploy, "qwen2.5-0.5b", "l4", None, max_model_len=2048)
    for name in ("dram_bandwidth", "host_speed"):
        ends = [
            infercast.simulate(deploy_changed(asked, parse_changes(f"{name}={factor}x")), found.forecast.workload)
            for factor in (0.9, 1.1)
        ]
        tpot = log(ends[1].tpot.mean / ends[0].tpot.mean) / log(1.1 / 0.9)
        assert rows[name].brings["tpot_mean"] == pytest.approx(tpot, abs=0.02)


def test_signs_and_identities(found: Elasticities) -> None:
    rows = {row.step.name: row.brings for row in found.rows}
    assert rows["dram_bandwidth"]["tpot_mean"] < -0.1
    assert "nvlink_bandwidth" not in rows, "one GPU has no links"
    for brings in rows.values():
        assert brings["requests_per_s_at_most"] is None, "a closed loop is as fast as it is served"
        # At a price for each hour, a token costs what throughput makes of it.
        assert brings["usd_per_million_output_tokens"] in (None, pytest.approx(-brings["output_tokens_per_s"]))
    assert found.to_dict()["elasticities"][0]["number"] in ("host_speed", "dram_bandwidth")


def test_one_format_of_the_tensor_cores_moves_alone() -> None:
    gpu = load_gpu("h100-sxm")
    faster = changed_gpu(gpu, {"fp8_flops": "2x"})
    assert faster.tensor_flops == {**gpu.tensor_flops, "fp8": 2 * gpu.tensor_flops["fp8"]}
    assert faster.whole_tensor_flops == gpu.whole_tensor_flops
    both = changed_gpu(gpu, {"bf16_flops": "2x"})
    assert both.tensor_flops["fp16"] == 2 * gpu.tensor_flops["fp16"]
    assert both.tensor_flops["fp8"] == gpu.tensor_flops["fp8"]
    with pytest.raises(InputError, match="fp4_flops: h100-sxm does not multiply in fp4; it does in"):
        changed_gpu(gpu, {"fp4_flops": "2x"})


def test_a_faster_format_helps_who_multiplies_in_it() -> None:
    def ttft(quantization: str, change: str) -> float:
        asked = partial(infercast.deploy, "llama-3.1-8b", "h100-sxm", None, quantization=quantization)
        deployment = deploy_changed(asked, parse_changes(change))
        return infercast.simulate(deployment, rate=1, num_requests=5, input_len=4000, output_len=2).ttft.mean

    assert ttft("fp8", "fp8_flops=2x") < 0.9 * ttft("fp8", "fp8_flops=1x")
    assert ttft("none", "fp8_flops=2x") == pytest.approx(ttft("none", "fp8_flops=1x"))
