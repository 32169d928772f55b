"""Results to be reported, made once."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from infercast.forecast.deploy import deploy
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import simulate
from infercast.report.terminal import Printable, drawn
from infercast.serve.workload.synthetic import synthetic_workload


@pytest.fixture(scope="session")
def deployment() -> Any:
    return deploy("llama-3.1-8b", "h200-sxm")


@pytest.fixture(scope="session")
def forecast(deployment: Any) -> Forecast:
    lengths = {"input_lengths": "uniform:50:900", "output_lengths": "uniform:2:60"}
    return simulate(deployment, synthetic_workload(rate=20, count=50, prefix_length=160, **lengths))


@pytest.fixture
def without_tips() -> Callable[[str], str]:
    """A page as it was before words of the glossary were marked in it."""

    def strip(page: str) -> str:
        page = re.sub(r'<span class="tip".*?</span>', "", page, flags=re.DOTALL)
        return re.sub(r'<span class="term"[^>]*>(.*?)</span>', r"\1", page, flags=re.DOTALL)

    return strip


@pytest.fixture
def text_of() -> Callable[..., str]:
    """Parts as they look on a terminal of some width, without colour."""

    def render(parts: Iterable[Printable], width: int = 100) -> str:
        text = "\n".join(drawn(part, width) for part in parts)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "…" not in text, "a number was cut"
        return text

    return render
