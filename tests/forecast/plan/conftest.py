"""Small questions that are answered in a second or two."""

from collections.abc import Callable
from typing import Any

import pytest

from infercast.forecast.plan.question import Question
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload

PRICES = {"l40s": 1.0, "h100-sxm": 3.0, "a10": 0.6}


@pytest.fixture(scope="session")
def ask() -> Callable[..., Question]:
    """A question about a small model, with few requests."""

    def made(
        model: str = "llama-3.1-8b",
        gpus: tuple[str, ...] = ("l40s", "h100-sxm"),
        slo: str = "ttft_p99<1s,tpot_p95<40ms",
        rate: float = 6.0,
        count: int = 80,
        **others: Any,
    ) -> Question:
        workload = synthetic_workload(rate=rate, count=count, input_lengths=512, output_lengths=32)
        given = {"settings": ((),), "max_gpus": 3, "prices": tuple(PRICES.get(gpu, 2.0) for gpu in gpus), **others}
        return Question(model, workload, parse_slo(slo), gpus, ("vllm@0.25",), **given)

    return made
