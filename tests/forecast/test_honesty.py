"""What is not known is not stated as certain: topology, short runs, queues of closed loops, reasons of differences."""

import numpy as np
import pytest

import infercast
from infercast import EngineSettings, InputError
from infercast.forecast.compare import compare_runs, reasons, side_by_side
from infercast.forecast.explain.step_log import watch_run
from infercast.forecast.system import system_of
from infercast.forecast.variants import estimate_variants
from infercast.serve.workload.synthetic import synthetic_workload

FEW = EngineSettings(max_num_seqs=8)
LOAD = {"input_len": 600, "output_len": 40}


def forecast(model: str, gpu: str, **options: object) -> infercast.Forecast:
    return infercast.simulate(model, gpu=gpu, **options)


def test_a_closed_loop_is_told_by_its_queue() -> None:
    queued = forecast("qwen3-0.6b", "l4", concurrency=60, num_requests=240, settings=FEW, **LOAD)
    assert queued.headline.startswith("queued: of 60 clients 8 are served and ")
    assert "(max_num_seqs is 8)" in queued.headline
    served = forecast("qwen3-0.6b", "l4", concurrency=8, num_requests=40, **LOAD)
    assert served.headline.startswith("stable: ")


def test_a_topology_that_decides_and_is_not_known_is_an_if() -> None:
    options = {"tensor_parallel_size": 4, "rate": 30, "num_requests": 60, **LOAD}
    left_open = forecast("qwen3-8b", "l40s", **options)
    assert "if PCIe crosses two sockets, as is assumed without --pcie-topology" in left_open.headline
    assert "if PCIe" not in forecast("qwen3-8b", "l40s", pcie_topology="switch", **options).headline
    assert "if PCIe" not in forecast("qwen3-8b", "h100-sxm", **options).headline


def test_a_short_run_near_saturation_says_so() -> None:
    options = {"settings": FEW, "num_requests": 300, **LOAD}
    near = next(found for rate in (20.0, 18.0, 16.0, 14.0, 12.0, 10.0, 8.0)
                if (found := forecast("qwen3-0.6b", "l4", rate=rate, **options)).state.word == "stable")  # fmt: skip
    assert near.is_short == ("leave --num-requests out" in near.headline)
    assert not forecast("qwen3-0.6b", "l4", rate=0.5, **options).is_short


def test_reasons_of_a_difference_add_up() -> None:
    workload = synthetic_workload(rate=5, count=30, input_lengths=600, output_lengths=40)
    first, second = (watch_run(system_of(infercast.deploy("qwen3-0.6b", gpu)), workload) for gpu in ("l4", "a10"))
    explained = compare_runs(first, second)
    for name, mean in (("TTFT", "ttft"), ("TPOT", "tpot")):
        change = sum(each.change for each in explained[name].differences)
        before, after = (getattr(run.forecast, mean).mean for run in (first, second))
        assert before + change == pytest.approx(after)
    said = reasons(side_by_side((first, second), ("as asked", "what if")), explained)
    assert any(each.startswith("Mean TPOT is ") and "with the changes" in each for each in said)


def test_sizes_of_variants_that_do_not_match_are_named() -> None:
    sizes = {"hidden": 256, "heads": 4, "kv_heads": 2, "inter": 512}
    with pytest.raises(InputError, match=r"these do not match: layers \(3,\), hidden \(2,\)"):
        estimate_variants("l4", **(sizes | {"layers": [2, 3, 4], "hidden": np.array([256, 512])}))
    with pytest.raises(InputError, match="layers must be whole numbers of at least 1, not"):
        estimate_variants("l4", **sizes, layers=[])
