"""Files of measured SGLang engines."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from infercast.errors import FileFormatError, UnknownNameError
from infercast.lab.validate.compare import deployment_of, validate
from infercast.lab.validate.measured import WARM_UP, read_measured, shipped_runs

CONFIG = {
    "name": "qwen3-0.6b", "engine": "sglang", "sglang": "0.5.16", "gpu": "NVIDIA H200", "quant": None,
    "kv_cache_dtype": "auto", "max_model_len": 8192, "max_num_seqs": 64, "cudagraph_sizes": [1, 2, 4, 8, 16, 32, 64],
    "gpu_memory_utilization": 0.85, "max_num_batched_tokens": 4096, "block_size": 1, "max_total_num_tokens": 1_040_000,
    "max_prefill_tokens": 16384, "schedule_policy": "fcfs", "schedule_conservativeness": 1.0,
    "attention_backend": "fa3", "radix_cache": True, "mixed_chunk": False, "async_scheduling": True, "engine_args": {},
}  # fmt: skip


@pytest.fixture
def sglang(document: dict[str, Any]) -> dict[str, Any]:
    """The same runs, of SGLang."""
    return deepcopy({**document, "config": CONFIG})


def deployed(document: Any, write: Any) -> Any:
    return deployment_of(read_measured(write(document)), None, None, predictor="roofline")


def test_settings_are_those_that_the_engine_ended_up_with(sglang: Any, write: Any) -> None:
    deployment = deployed(sglang, write)
    settings = deployment.settings
    assert deployment.engine.name == "sglang@0.5.16"
    assert (settings.mem_fraction_static, settings.chunked_prefill_size, settings.page_size) == (0.85, 4096, 1)
    assert (settings.max_running_requests, settings.context_length) == (64, 8192)
    assert settings.decode_sizes[-1] == 64
    assert settings.prefill_sizes[-1] == 4096


def test_prefill_graphs_may_be_off(sglang: Any, write: Any) -> None:
    sglang["config"]["engine_args"] = {"disable_prefill_cuda_graph": True}
    assert deployed(sglang, write).settings.prefill_sizes == ()


def test_the_number_of_tokens_is_a_forecast_unless_it_was_set(sglang: Any, write: Any) -> None:
    validation = validate([read_measured(write(sglang))], predictor="roofline")
    ((_, tokens),) = validation.kv_blocks
    assert tokens is not None
    assert tokens.measured == 1_040_000
    sglang["config"] |= {"engine_args": {"max_total_tokens": 40_000}, "max_total_num_tokens": 40_000}
    validation = validate([read_measured(write(sglang))], predictor="roofline")
    assert [blocks for _, blocks in validation.kv_blocks] == [None]


def test_a_cache_far_smaller_than_what_fits_was_set(sglang: Any, write: Any) -> None:
    sglang["config"]["max_total_num_tokens"] = 50_000
    assert deployed(sglang, write).memory.num_blocks == 50_000


def test_warm_ups_are_not_scored(sglang: Any, write: Any) -> None:
    sglang["runs"].insert(0, {"kind": WARM_UP, "requests": sglang["runs"][0]["requests"]})
    validation = validate([read_measured(write(sglang))], predictor="roofline")
    assert [run.kind for run in validation.runs] == ["static", "poisson"]


def test_what_is_missing_is_named(sglang: Any, write: Any) -> None:
    del sglang["config"]["max_total_num_tokens"]
    with pytest.raises(FileFormatError, match="max_total_num_tokens"):
        read_measured(write(sglang))
    sglang["config"]["engine"] = "sglung"
    with pytest.raises(UnknownNameError, match="sglang"):
        read_measured(write(sglang))


def test_forecasts_of_sglang_engines_that_were_measured() -> None:
    """A dense engine, one with a small cache under overload, and experts without a tuned launch."""
    names = ("qwen3-8b.", "llama-3.1-8b__small-cache.", "deepseek-v2-lite.")
    validation = validate(
        [read_measured(path) for path in shipped_runs("sglang@0.5.16") if path.name.startswith(names)]
    )
    assert max(pair.ape for _, pair in validation.kv_blocks if pair is not None) < 0.02
    medians = {name: validation.median_ape(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50")}
    assert np.all(np.array(list(medians.values()), float) < (0.12, 0.15, 0.05)), medians
    assert (validation.median_ape("output_tokens_per_second") or 1.0) < 0.03
    overloaded = next(run for run in validation.runs if "small-cache" in run.file and run.label == "poisson 30/s")
    assert overloaded.ttft_p50.ape < 0.15
    assert overloaded.ttft_p99.ape < 0.15


def test_forecasts_of_todays_release() -> None:
    """In process and behind a real server, with the probe of the host; the latter are its server's times."""
    validation = validate([read_measured(path) for path in shipped_runs("sglang@0.5.23") if "llama" in path.name])
    medians = [validation.median_ape(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_second")]
    assert np.all(np.array(medians, float) < (0.06, 0.06, 0.04, 0.03)), medians
    alone = [run.ttft_p50 for run in validation.runs if run.label.startswith("static 1x128")]
    assert max(pair.ape for pair in alone) < 0.15
