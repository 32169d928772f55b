"""Small plans, made by hand around simulated figures."""

from collections.abc import Callable

import pytest

from infercast.forecast.plan.candidate import Candidate, Figures, Row, Stage
from infercast.forecast.plan.question import Plan, Question
from infercast.forecast.slo import Percentiles, parse_slo
from infercast.models.layout import ParallelLayout
from infercast.serve.workload.synthetic import synthetic_workload

ENGINE = "vllm@0.25"


def figures(ttft: float, tpot: float) -> Figures:
    return Figures(
        ttft=Percentiles(ttft / 2, ttft / 2, ttft / 1.5, ttft / 1.2, ttft),
        tpot=Percentiles(tpot / 2, tpot / 2, tpot / 1.5, tpot / 1.2, tpot),
        end_to_end=Percentiles(1.0, 1.0, 2.0, 2.0, 3.0),
        output_tokens_per_second=100.0,
        requests_per_second=2.0,
        attainment=0.99,
        goodput=1.98,
        headroom=1.2,
        tightest="ttft_p99",
        state="stable",
        capacity=5.0,
        busy=0.5,
        kv_peak=0.3,
        bottleneck="memory bandwidth",
        source="measured",
        odds=0.93,
    )


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """A plan whose winner is given."""

    def make(winner: Candidate | None, model: str = "qwen3-0.6b", **given: object) -> Plan:
        question = Question(
            model=model,
            workload=synthetic_workload(rate=2.0, count=100, input_lengths=200, output_lengths=20),
            slo=parse_slo("ttft_p99<1s,tpot_p95<40ms"),
            gpus=("h200-sxm", "l4"),
            engines=(ENGINE,),
            prices=(4.0, 0.8),
            **given,  # type: ignore[arg-type]
        )
        small = Candidate(ENGINE, "l4")
        refused = Row(Candidate(ENGINE, "l4", ParallelLayout(8)), Stage.REFUSED, reason='heads, "16", do not divide')
        rows = [Row(small, Stage.SIMULATED, 0.8, figures(0.9, 0.03), 1.1, "slower")]
        if winner is not None:
            rows.insert(0, Row(winner, Stage.SIMULATED, 4.0 * winner.gpus, figures(0.2, 0.01), 1.2))
        return Plan(
            question=question,
            winner=rows[0] if winner is not None else None,
            front=tuple(rows),
            rows=(*rows, refused),
            runner_up=rows[-1],
            why="The runner-up is cheaper and slower.",
            changes=("At 3 requests/s two would be needed.",),
            num_candidates=3,
        )

    return make
