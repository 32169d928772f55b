"""The answer of a search, held against simulations of every candidate."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import exp, inf, log
from typing import Any

import pytest

from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.plan import evaluate as evaluation
from infercast.forecast.plan import search
from infercast.forecast.plan.candidate import Candidate, Figures, Row, Stage
from infercast.forecast.plan.evaluate import evaluate
from infercast.forecast.plan.question import AXES, OBJECTIVES, Objective, Plan, Question, setting_axis
from infercast.forecast.plan.search import front_of, plan, why_lost
from infercast.forecast.slo import parse_slo
from infercast.serve.workload.synthetic import synthetic_workload

Ask = Callable[..., Question]


@pytest.fixture(scope="module")
def answer(ask: Ask) -> Plan:
    return plan(ask())


def test_the_winner_costs_no_more_than_the_cheapest_of_all(ask: Ask, answer: Plan) -> None:
    question = answer.question
    costs = []
    for unit in question.units():
        for count in range(1, question.max_gpus // unit.layout.gpus + 1):
            row = evaluate(unit.times(count), question)
            costs += [row.cost] if row.holds else []
    assert answer.winner is not None
    assert answer.winner.cost == min(cost for cost in costs if cost is not None)


def test_what_an_answer_says(answer: Plan) -> None:
    winner = answer.winner
    assert winner is not None
    assert winner.figures is not None
    assert answer.rows[0] == winner
    assert winner.figures.intervals is not None
    assert winner.figures.odds is not None
    assert winner.figures.headroom > 1
    assert winner.figures.bottleneck
    assert winner in answer.front
    assert answer.runner_up is not None
    assert "lost because" in answer.why
    assert any("requests/s" in sentence for sentence in answer.changes)
    assert answer.count(Stage.SIMULATED) > 0
    assert answer.num_candidates == answer.num_unseen + sum(map(answer.count, Stage))
    assert all(row.figures is not None and row.figures.odds is not None for row in answer.front)


def test_the_same_question_has_the_same_answer(ask: Ask, answer: Plan) -> None:
    again = plan(ask())
    assert repr(again.rows) == repr(answer.rows)
    assert (again.why, again.changes) == (answer.why, answer.changes)


class Backwards:
    """An executor that works from the end, as processes may, and through pickles."""

    width = 4

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """In the order of the items."""
        carried = pickle.loads(pickle.dumps(function))
        done = [carried(pickle.loads(pickle.dumps(item))) for item in reversed(list(items))]
        return iter(done[::-1])


def test_it_does_not_matter_who_does_the_work(ask: Ask, answer: Plan) -> None:
    other = plan(ask(), workers=Backwards())
    assert repr(other.rows) == repr(answer.rows)


def test_rows_are_what_simulate_says(ask: Ask, answer: Plan) -> None:
    assert answer.winner is not None
    assert answer.winner.figures is not None
    row = evaluate(answer.winner.candidate, ask())
    assert row.figures is not None
    assert row.figures.ttft == answer.winner.figures.ttft


def test_an_slo_that_nothing_keeps_has_a_nearest_one(ask: Ask) -> None:
    found = plan(ask(slo="ttft_p99<30ms,tpot_p95<6ms", gpus=("l40s", "h100-sxm"), max_gpus=2))
    assert found.winner is None
    assert "cannot hold" in found.why or "misses" in found.why
    assert not found.front
    assert "keeps" in found.nearest[0].sentence
    found = plan(ask(slo="ttft_p99<1s,tpot_p95<40ms", gpus=("l40s",), rate=60.0, max_gpus=2))
    assert found.winner is None
    assert "No candidate" in found.why
    assert any("up to" in each.sentence for each in found.nearest)


def test_nothing_fits(ask: Ask) -> None:
    found = plan(ask("llama-3.3-70b", gpus=("l40s",), max_gpus=2, slo="ttft_p99<99s,tpot_p95<9s", rate=0.1))
    assert found.winner is None
    assert "Nothing fits" in found.why
    assert "4 GPUs" in found.nearest[0].sentence


def test_a_budget_is_kept(ask: Ask, answer: Plan) -> None:
    found = plan(ask(budget=1.5, slo="tpot_p95<200ms,ttft_p99<9s", rate=1.0))
    assert found.winner is not None
    assert found.winner.cost is not None
    assert found.winner.cost <= 1.5
    assert all(row.cost is None or row.cost <= 1.5 or row.stage is Stage.BOUND for row in found.rows)


def test_fewest_gpus(ask: Ask) -> None:
    found = plan(ask(objective="gpus", rate=12.0, count=120))
    assert found.winner is not None
    assert found.winner.gpus == 1
    assert found.winner.candidate.gpu == "h100-sxm"


def test_least_latency_takes_more_than_least_cost(ask: Ask, answer: Plan) -> None:
    found = plan(ask(objective="latency", gpus=("h100-sxm",)))
    assert found.winner is not None
    assert found.winner.figures is not None
    assert answer.winner is not None
    assert answer.winner.figures is not None
    assert found.winner.figures.end_to_end.mean <= answer.winner.figures.end_to_end.mean


def test_most_requests_a_second(ask: Ask) -> None:
    found = plan(ask(objective="throughput", gpus=("l40s",), max_gpus=2))
    assert found.winner is not None
    rate = found.winner.rate
    assert rate is not None
    assert evaluate(found.winner.candidate, found.question.at_rate(rate / found.question.rate)).holds
    assert not evaluate(found.winner.candidate, found.question.at_rate(1.03 * rate / found.question.rate)).holds


@pytest.mark.parametrize("odds", [0.0, 0.9])
def test_simulate_agrees_with_the_rate_that_is_named(odds: float) -> None:
    workload = synthetic_workload(rate=20.0, count=800, input_lengths=300, output_lengths=20)
    limits = parse_slo("ttft_p99<150ms")
    question = Question("qwen3-0.6b", workload, limits, ("l4",), ("vllm@0.25",), (1.0,), 1, settings=((),))
    found = plan(replace(question, least_odds=odds))
    assert found.winner is not None
    rate = float(found.changes[0].split()[1])
    below, above = (
        evaluate(found.winner.candidate, found.question, factor=share * rate / 20.0, intervals=True)
        for share in (0.97, 1.03)
    )
    assert below.holds
    assert not above.holds


def test_of_a_large_fleet_some_replicas_get_their_share() -> None:
    workload = synthetic_workload(rate=200.0, input_lengths=300, output_lengths=20)
    question = Question("qwen3-0.6b", workload, parse_slo("ttft_p99<1s"), ("l4",), ("vllm@0.25",), (1.0,), 64)
    system, times, share = evaluation._simulated_part(Candidate("vllm@0.25", "l4", replicas=40), question)
    assert system.gpus == evaluation.SLICE
    assert times * system.gpus == 40
    assert share.rate == pytest.approx(200.0 * system.gpus / 40)


@pytest.mark.parametrize("bend", [0.3, 2.0, 8.0, 30.0])
@pytest.mark.parametrize("queues_from", [1.3, 2.5, 9.0])
@pytest.mark.parametrize("start", [0.05, 0.4, 1.5])
def test_the_rate_at_which_room_is_used_up(bend: float, queues_from: float, start: float) -> None:
    """Room falls as some power of the rate, and from some rate on requests queue up."""
    tried: dict[float, float] = {}

    def ask(now: float) -> float:
        tried[now] = -inf if exp(now) >= queues_from else start - (exp(bend * now) - 1.0) / bend
        return tried[now]

    found = search._crossing(ask, 0.0, log(4.0), start, 12)
    expected = min(log(1.0 + start * bend) / bend, log(queues_from), log(4.0))
    assert found == pytest.approx(expected, abs=0.06)
    assert len(tried) <= 8


def test_odds_that_are_asked_for_are_kept(ask: Ask) -> None:
    found = plan(ask(least_odds=0.9))
    assert found.winner is not None
    assert found.winner.figures is not None
    assert (found.winner.figures.odds or 0.0) >= 0.9


def test_two_pools(ask: Ask) -> None:
    found = plan(ask(gpus=("h100-sxm",), disaggregate=True, max_gpus=2, slo="ttft_p99<2s,tpot_p95<15ms"))
    pairs = [row for row in found.rows if row.candidate.prefill is not None]
    assert pairs
    assert all(row.gpus <= 2 for row in pairs)


def test_another_axis_is_one_more_record(ask: Ask) -> None:
    axes = (*AXES, setting_axis("max_num_seqs", (32, 64)))
    question = ask(axes=axes, gpus=("h100-sxm",), max_gpus=1)
    assert {dict(unit.settings)["max_num_seqs"] for unit in question.units()} == {32, 64}
    assert plan(question).winner is not None


def test_another_objective_is_one_more_record(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def watts(question: Question, candidate: Candidate) -> float:
        return sum(pool.gpus * {"l40s": 350.0, "h100-sxm": 700.0}[pool.gpu] for pool in candidate.pools)

    def watts_of(row: Row) -> float:
        return watts(question, row.candidate)

    monkeypatch.setitem(OBJECTIVES, "energy", Objective("energy", "draws least", watts, watts_of))
    question = ask(objective="energy")
    found = plan(question)
    assert found.winner is not None
    assert watts_of(found.winner) == min(watts_of(row) for row in found.rows if row.holds)


def test_a_front_is_beaten_nowhere(answer: Plan) -> None:
    held = [row for row in answer.rows if row.holds]
    front = front_of(held)
    for row in held:
        assert row in front or any((each.cost or 0) <= (row.cost or 0) for each in front)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"objective": "speed"}, "unknown objective"),
        ({"max_gpus": 0}, "max_gpus"),
        ({"budget": -1.0}, "budget"),
        ({"prices": (None, None)}, "price of l40s, h100-sxm"),
        ({"least_odds": 1.0}, "least_odds"),
        ({"gpus": (), "prices": ()}, "at least one kind"),
    ],
)
def test_bad_questions(ask: Ask, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ask(**given)


def test_questions_can_be_pickled(ask: Ask) -> None:
    question = ask(axes=(*AXES, setting_axis("max_num_seqs", (32, 64))))
    again = pickle.loads(pickle.dumps(partial(evaluate, question=question)))
    assert list(again.keywords["question"].units()) == list(question.units())


def test_a_closed_loop_has_no_rate(ask: Ask) -> None:
    question = ask()
    with pytest.raises(InputError, match="closed loop"):
        replace(question, workload=replace(question.workload, concurrency=4, rate=None))


def figures(**changes: Any) -> Figures:
    summary: Any = None
    known: dict[str, Any] = {
        "ttft": summary, "tpot": summary, "end_to_end": summary, "output_tokens_per_second": 1.0,
        "requests_per_second": 1.0, "attainment": 1.0, "goodput": 1.0, "headroom": 1.5, "tightest": "tpot_p95",
        "state": "stable", "capacity": 9.0, "busy": 0.5, "kv_peak": 0.1, "bottleneck": "", "source": "learned",
    }  # fmt: skip
    return Figures(**{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "keeps the SLO"),
        ({"headroom": 0.8}, "misses tpot_p95 by 25 %"),
        ({"state": "overloaded"}, "is overloaded at this rate"),
        ({"odds": 0.66, "asked_odds": 0.9}, "keeps the SLO with a probability of only 66 %"),
        ({"beyond": "costs too much"}, "costs too much"),
    ],
)
def test_a_row_has_one_verdict(ask: Ask, changes: dict[str, Any], verdict: str) -> None:
    question = ask()
    unit = next(question.units())
    best = Row(unit, Stage.SIMULATED, 1.0, figures())
    row = Row(unit, Stage.SIMULATED, 2.0, figures(**changes), changes.get("headroom", 1.5))
    assert row.verdict == verdict
    assert row.holds == (verdict == "keeps the SLO")
    if not row.holds:
        assert verdict in why_lost(question, best, row)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_small_steps_are_tried_on_every_gpu(name: str) -> None:
    engine = engine_named(name)
    assert {dict(each).get(engine.bounds[0]) for each in engine.commands.tried} >= {512, 2048, 16384}
