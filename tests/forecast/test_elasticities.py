"""What one per cent of a number of the hardware brings."""

from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest

import infercast
from infercast.errors import InputError
from infercast.forecast.deploy import deploy_changed, parse_changes
from infercast.forecast.elasticities import Design, Elasticities, design, elasticities
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


COST = "0.5*sms + 0.5*dram_bandwidth"


@pytest.fixture(scope="module")
def designed() -> Design:
    vary = {"sms": "0.5x,1x,1.5x", "dram_bandwidth": "0.5x:1.5x:3"}
    return design("qwen2.5-0.5b", "l4", concurrency=4, vary=vary, cost=COST, budget=1.0, **SMALL)


def test_chips_are_those_that_the_budget_pays_and_the_best_serve_more_than_all_that_cost_less(designed: Design) -> None:
    chips = designed.chips
    assert [chip.cost for chip in chips] == [0.5, 0.75, 0.75, 1.0, 1.0, 1.0]
    for place, chip in enumerate(chips):
        assert chip.is_best == all(chip.serves > other.serves for other in chips[:place])
    plain = next(chip for chip in chips if chip.changes == "sms=1x,dram_bandwidth=1x")
    run = infercast.simulate("qwen2.5-0.5b", gpu="l4", concurrency=4, **SMALL)
    assert plain.serves == pytest.approx(run.output_tokens_per_second, rel=1e-3)


def test_the_best_chip_is_a_file_of_the_same_chip(designed: Design, tmp_path: Path) -> None:
    (tmp_path / "best.toml").write_text(designed.toml())
    best = [chip for chip in designed.chips if chip.is_best][-1]
    known = changed_gpu(load_gpu("l4"), parse_changes(best.changes).properties)
    found = load_gpu(tmp_path / "best.toml")
    for name in ("sms", "dram_bandwidth", "fma_flops", "l2_bandwidth"):
        assert getattr(found, name) == pytest.approx(getattr(known, name))
    assert dict(found.tensor_flops) == pytest.approx(dict(known.tensor_flops))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cost": "sms + area"}, "cost 'sms . area' cannot be used over sms: area is no number"),
        ({"budget": 0.1}, "no chip costs 0.1 or less; the cheapest of 2 costs 0.5"),
        ({"vary": {"cores": "1x,2x"}}, "unknown GPU property 'cores'"),
        ({"slo": "ttft_p50<1us"}, "no chip that the budget pays serves these requests within the SLO"),
    ],
)
def test_what_cannot_be_designed_is_said(given: dict[str, Any], words: str) -> None:
    asked = {"vary": {"sms": "0.5x,1x"}, "cost": "sms", **given}
    with pytest.raises(InputError, match=words):
        design("qwen2.5-0.5b", "l4", concurrency=4, **asked, **SMALL)
