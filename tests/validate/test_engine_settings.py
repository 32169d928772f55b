"""Measured files may say what else their engine was told, and engines may have warmed up."""

from typing import Any

import pytest

from infercast.errors import FileFormatError
from infercast.lab.validate.compare import deployment_of, validate
from infercast.lab.validate.measured import WARM_UP, read_measured


def deployed(document: Any, write: Any) -> Any:
    return deployment_of(read_measured(write(document)), None, None, predictor="roofline")


def test_further_arguments_of_an_engine_are_its_settings(document: Any, write: Any) -> None:
    document["config"]["engine_args"] = {"enable_prefix_caching": False, "num_gpu_blocks_override": 7000, "seed": 1}
    deployment = deployed(document, write)
    assert deployment.memory.num_blocks == 7000
    assert not deployment.settings.enable_prefix_caching


def test_the_config_may_have_been_overridden(document: Any, write: Any) -> None:
    document["config"]["engine_args"] = {"hf_overrides": {"num_hidden_layers": 4}, "cudagraph_capture_sizes": [1, 8]}
    deployment = deployed(document, write)
    assert (deployment.model.layers, deployment.settings.capture_sizes) == (4, (1, 8))
    document["config"]["engine_args"] = {"hf_overrides": 4}
    with pytest.raises(FileFormatError, match="hf_overrides"):
        read_measured(write(document))


def test_a_cache_far_smaller_than_what_fits_was_set(document: Any, write: Any) -> None:
    assert deployed(document, write).settings.num_gpu_blocks_override is None
    document["config"]["num_gpu_blocks"] = 7000
    assert deployed(document, write).memory.num_blocks == 7000


def test_a_number_of_blocks_that_was_set_is_no_forecast(document: Any, write: Any) -> None:
    document["config"]["num_gpu_blocks"] = 7000
    validation = validate([read_measured(write(document))], predictor="roofline")
    assert [blocks for _, blocks in validation.kv_blocks] == [None]
    assert len(validation.file_parts()) == 1


def test_arguments_of_the_wrong_kind_are_refused(document: Any, write: Any) -> None:
    document["config"]["engine_args"] = {"max_num_seqs": "many"}
    with pytest.raises(FileFormatError, match="max_num_seqs"):
        read_measured(write(document))


def test_warm_up_runs_are_met_and_not_scored(document: Any, write: Any) -> None:
    document["runs"].insert(0, {"kind": WARM_UP, "requests": document["runs"][0]["requests"]})
    measured = read_measured(write(document))
    validation = validate([measured], predictor="roofline")
    assert [run.kind for run in measured.runs] == [WARM_UP, "static", "poisson"]
    assert [run.kind for run in validation.runs] == ["static", "poisson"]
