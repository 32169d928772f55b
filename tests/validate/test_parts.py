"""Request by request, and part by part."""

from typing import Any

import numpy as np
import pytest

from infercast.lab.validate.compare import rank_correlation, validate
from infercast.lab.validate.measured import read_measured


def validated(document: Any, write: Any, **options: Any) -> Any:
    return validate([read_measured(write(document))], **options)


def test_rank_correlations() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    assert rank_correlation(values, 10 * values + 3) == pytest.approx(1.0)
    assert rank_correlation(values, -(values**3)) == pytest.approx(-1.0)
    assert rank_correlation(values, np.ones(5)) is None
    assert rank_correlation(values[:4], values[:4]) is None
    # Equal values share a rank: 1.5, 1.5, 3, 4, 5 against 1 to 5.
    assert rank_correlation(np.array([1, 1, 2, 3, 4]), np.arange(5)) == pytest.approx(0.974679, rel=1e-5)


def test_a_static_batch_tells_prompts_and_decoding(document: Any, write: Any) -> None:
    for row in document["runs"][0]["requests"]:
        row["itl_p50_ms"] = 2.0
    static, poisson = validated(document, write).runs
    assert static.parts is not None
    assert static.parts.is_static
    assert static.parts.decode_step is not None
    assert static.parts.decode_step.measured == pytest.approx(0.002)
    assert static.parts.prompts is not None
    assert static.parts.prompts.measured == pytest.approx(0.020)
    assert static.parts.idle_ttft is None
    assert poisson.parts is not None
    assert (poisson.parts.is_static, poisson.parts.prompts, poisson.parts.decode_step) == (False, None, None)


def test_a_single_short_prompt_tells_the_host(document: Any, write: Any) -> None:
    document["runs"][0]["requests"] = document["runs"][0]["requests"][:1]
    result = validated(document, write)
    parts = result.runs[0].parts
    assert parts is not None
    assert parts.idle_ttft is not None
    assert parts.prompts is None
    (file,) = result.file_parts()
    assert file.idle_ttft == pytest.approx(parts.idle_ttft.error)
    assert file.decode_step is None
    assert file.loaded_ttft == pytest.approx(result.runs[1].ttft_p50.error)
    assert result.median_loaded("ttft_p50") == pytest.approx(result.runs[1].ttft_p50.ape)
    assert result.median_part("decode_step") is None


def test_errors_of_single_requests(document: Any, write: Any) -> None:
    scatter = validated(document, write).runs[1].scatter
    assert scatter is not None
    assert 0 <= scatter.ttft_median <= scatter.ttft_p90
    assert scatter.start_order == pytest.approx(1.0)
    assert scatter.tpot_median is not None


def test_a_cold_engine_is_slower_at_first(document: Any, write: Any) -> None:
    # Forty prompts of 700 tokens on a large model: eleven a step, and more rows for the head in each.
    document["config"]["name"] = "llama-3.1-8b"
    row = {**document["runs"][0]["requests"][0], "n_in": 700, "n_out": 40}
    document["runs"] = [{**document["runs"][0], "requests": [row] * 40}]
    cold, warm = (validated(document, write, warmed_up=warmed_up).runs[0] for warmed_up in (False, True))
    assert cold.ttft_p50.predicted > 1.05 * warm.ttft_p50.predicted
    assert cold.ttft_p99.predicted < 1.1 * warm.ttft_p99.predicted


def test_gaps_must_be_numbers(document: Any, write: Any) -> None:
    document["runs"][0]["requests"][2]["itl_p50_ms"] = "fast"
    with pytest.raises(Exception, match=r"requests\[2\].itl_p50_ms must be a number"):
        validated(document, write)
