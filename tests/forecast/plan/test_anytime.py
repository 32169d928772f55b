"""A search that is cut answers with the best so far; a whole one does no more work than it needs. Work is counted."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import infercast
from infercast.errors import InputError
from infercast.forecast import steady
from infercast.forecast.plan import evaluate as evaluation
from infercast.forecast.plan.candidate import Stage
from infercast.forecast.plan.executors import OutOfTime, Processes, check_time, time_limited
from infercast.forecast.plan.question import Plan, Question
from infercast.forecast.plan.search import plan
from infercast.forecast.slo import parse_slo
from infercast.forecast.system import System
from infercast.serve.workload.synthetic import synthetic_workload

Ask = Callable[..., Question]


class Interrupted:
    """An executor that is stopped, as by Ctrl-C or a clock, before its so-many-th task."""

    width = 1

    def __init__(self, tasks: int, by: type[BaseException]) -> None:
        self.left, self.by = tasks, by

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """In the order of the items."""
        for item in items:
            self.left -= 1
            if self.left < 0:
                raise self.by
            yield function(item)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of every simulation of a system, as they are run."""
    counts: list[int] = []
    serve = System.serve

    def counted(self: System, workload: Any, *given: Any, **others: Any) -> Any:
        run = serve(self, workload, *given, **others)
        counts.append(run.clients.sent_at.size)  # it may have gone on
        return run

    monkeypatch.setattr(System, "serve", counted)
    evaluation._forecasts.clear()
    return counts


@pytest.fixture(scope="module")
def answer(ask: Ask) -> Plan:
    return plan(ask())


@pytest.mark.parametrize(
    ("tasks", "by"), [(2, KeyboardInterrupt), (2, OutOfTime), (5, OutOfTime), (8, KeyboardInterrupt), (9, OutOfTime)]
)
def test_the_best_so_far(ask: Ask, answer: Plan, tasks: int, by: type[BaseException]) -> None:
    found = plan(ask(), Interrupted(tasks, by), time_limit=600.0)
    assert not answer.cut
    assert found.winner is not None
    assert found.winner.holds
    assert "The search was cut" in found.cut
    assert f"{found.num_unseen:,} of {answer.num_candidates:,} candidates were not looked at" in found.cut
    assert found.num_candidates == found.num_unseen + sum(map(found.count, Stage))
    assert "after 600 s" in found.cut or by is KeyboardInterrupt


def test_what_was_estimated_is_named(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation.SimulationStage, "show_first", lambda *_: None)
    found = plan(ask(rate=1.0), Interrupted(2, KeyboardInterrupt))
    assert found.winner is None
    assert "By a quick estimate 1 x TP1 on l40s by vllm@0.25 (as published) does, for $1.00 per hour." in found.why


def test_nothing_found_yet(ask: Ask) -> None:
    with pytest.raises(KeyboardInterrupt):
        plan(ask(), Interrupted(0, KeyboardInterrupt))
    found = plan(ask(), Interrupted(0, OutOfTime), time_limit=600.0)
    assert found.winner is None
    assert "before anything kept the SLO" in found.why
    assert "l40s, h100-sxm" in found.cut


@pytest.mark.parametrize(("rate", "words"), [(1.0, "its first 500 requests only"), (6.0, "one replica has served")])
def test_the_first_answer_comes_with_the_first_estimate_that_is_sure(
    ask: Ask, served: list[int], rate: float, words: str
) -> None:
    found = plan(ask(rate=rate, count=600), Interrupted(1, OutOfTime), time_limit=600.0)
    assert served[0] == (600 if rate > 1.0 else evaluation.FIRST)
    assert found.winner is not None
    assert found.winner.figures is not None
    assert found.winner.figures.intervals is not None
    assert words in found.cut


def test_a_large_fleet_is_named_within_seconds() -> None:
    lengths = {"input_lengths": 300, "output_lengths": 20}
    workload = synthetic_workload(rate=2000.0, **lengths)
    limits, odds = parse_slo("ttft_p99<200ms"), 0.8
    question = Question("qwen3-0.6b", workload, limits, ("l4",), ("vllm@0.25",), (1.0,), 256, least_odds=odds)
    found = plan(question, Interrupted(1, OutOfTime), time_limit=600.0)
    assert found.winner is not None
    assert found.winner.figures is not None
    assert found.winner.figures.odds is not None
    assert found.winner.figures.odds >= odds
    assert found.winner.figures.capacity is None or found.winner.figures.capacity > 2000.0
    assert found.winner.candidate.replicas > evaluation.TOGETHER


def test_progress_says_what_is_left_and_the_best_so_far(ask: Ask) -> None:
    told: list[str] = []
    found = plan(ask(), tell=told.append)
    assert told[0] == "a list of candidates"
    assert "candidates left" in told[1]
    assert found.winner is not None
    assert str(found.winner.candidate) in told[-1]


def test_a_first_answer_does_not_change_the_last(ask: Ask, answer: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation.SimulationStage, "show_first", lambda *_: None)
    assert repr(plan(ask()).rows) == repr(answer.rows)


def test_time_is_limited_in_this_process_and_in_others() -> None:
    with time_limited(1e-9), pytest.raises(OutOfTime):
        check_time()
    check_time()
    executor = Processes(2)
    try:
        with time_limited(0.05), pytest.raises(OutOfTime):
            list(executor.map(str, range(100)))  # processes take longer than that to start
    finally:
        executor.close()
    with pytest.raises(InputError, match="time_limit must be seconds above 0"), time_limited(0.0):
        pass


def test_a_time_limit_by_name() -> None:
    found = infercast.plan("qwen3-0.6b", rate=1, slo="ttft_p99<9s", gpus=["l4"], max_gpus=1, time_limit=1e-6)
    assert found.winner is None
    assert "after 1e-06 s" in found.cut


def open_ended(slo: str, rate: float) -> Question:
    workload = synthetic_workload(
        rate=rate, input_lengths="lognormal:700:0.9:16:4000", output_lengths="lognormal:60:0.8:4:400"
    )
    assert workload.open_ended
    given: dict[str, Any] = {"settings": ((),), "max_gpus": 1, "prices": (1.0,)}
    return Question("llama-3.1-8b", workload, parse_slo(slo), ("l40s",), ("vllm@0.25",), **given)


def test_those_shown_are_not_simulated_twice(served: list[int]) -> None:
    question = open_ended("ttft_p99<9s,tpot_p95<200ms", 2.0)
    unit = next(question.units())
    once = evaluation.evaluate(unit, question)
    assert once.holds
    runs = len(served)
    again = evaluation.evaluate(unit, question, intervals=True)
    assert again.figures is not None
    assert once.figures is not None
    assert again.figures.ttft == once.figures.ttft
    assert max(served[runs:]) <= 512  # those of its intervals


def test_what_clearly_misses_is_not_simulated_for_precise_medians(
    served: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady, "PRECISION", 0.002)
    monkeypatch.setattr(steady, "MOST_FOR_PRECISION", 2500)
    question = open_ended("ttft_p99<9s,tpot_p95<200ms", 4.0)
    unit = next(question.units())
    kept = evaluation.evaluate(unit, question)
    assert kept.figures is not None
    assert kept.figures.tpot is not None
    length = max(served)
    limit = 0.85 * kept.figures.tpot.p95
    served.clear()
    missed = evaluation.evaluate(unit, open_ended(f"tpot_p95<{1e3 * limit:.3f}ms", 4.0))
    assert not missed.holds
    assert missed.figures is None  # rows with latencies have those of `simulate`
    assert missed.headroom == pytest.approx(0.85, rel=0.1)
    assert "misses tpot_p95" in missed.verdict
    assert max(served) < length
