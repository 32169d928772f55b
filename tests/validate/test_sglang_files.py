"""Files of measured SGLang engines."""

from copy import deepcopy
from typing import Any

import pytest

from infercast.errors import FileFormatError, UnknownNameError
from infercast.validate.compare import deployment_of, validate
from infercast.validate.measured import WARM_UP, read_measured

ARGUMENTS = {
    "mem_fraction_static": 0.85, "chunked_prefill_size": 4096, "max_prefill_tokens": 16384, "page_size": 1,
    "schedule_policy": "fcfs", "schedule_conservativeness": 1.0, "attention_backend": "fa3", "max_total_tokens": None,
    "disable_radix_cache": False, "disable_overlap_schedule": False, "enable_mixed_chunk": False, "tp_size": 1,
}  # fmt: skip
CONFIG = {
    "name": "qwen3-0.6b", "engine": "sglang", "sglang": "0.5.16", "gpu": "NVIDIA H200", "quant": None,
    "kv_cache_dtype": "auto", "max_model_len": 8192, "max_num_seqs": 64, "cudagraph_sizes": [1, 2, 4, 8, 16, 32, 64],
    "max_total_num_tokens": 1_040_000, "server_args": ARGUMENTS,
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
    sglang["config"]["server_args"]["disable_prefill_cuda_graph"] = True
    assert deployed(sglang, write).settings.prefill_sizes == ()


def test_the_number_of_tokens_is_a_forecast_unless_it_was_set(sglang: Any, write: Any) -> None:
    validation = validate([read_measured(write(sglang))], predictor="roofline")
    ((_, tokens),) = validation.kv_blocks
    assert tokens is not None
    assert tokens.measured == 1_040_000
    sglang["config"]["server_args"]["max_total_tokens"] = sglang["config"]["max_total_num_tokens"] = 40_000
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
